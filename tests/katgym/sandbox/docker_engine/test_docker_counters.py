"""What one container moves in the kernel a later one does not read, or the table says so."""

from __future__ import annotations

import pytest
from docker_play import run
from kernel_state import KERNEL_STATES, REFUSED, move_state, read_state

from katgym.sandbox import SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend

pytestmark = pytest.mark.docker


def test_what_was_moved_before_is_read_where_the_table_says_open(
    docker_image: str, subtests: pytest.Subtests
) -> None:
    async def read_around(backend: DockerBackend) -> None:
        for state in KERNEL_STATES:
            if state.is_open_in_containers is None:
                continue
            with subtests.test(state=state.name):
                before = await read_state(backend, state)
                await move_state(backend, state)
                after = await read_state(backend, state)
                if not state.is_open_in_containers:
                    assert before == after
                elif REFUSED in (before, after):
                    pytest.skip(f"this kernel has no {state.name}")
                elif state.by:
                    assert (int(after) - int(before)) % 2**32 >= state.by
                else:
                    assert before != after

    run(read_around, image=docker_image)


def test_no_command_begins_an_audit_session(docker_image: str) -> None:
    async def begin(backend: DockerBackend) -> bytes:
        async with await backend.create(SandboxSpec()) as sandbox:
            if (await sandbox.exec("test -e /proc/self/loginuid")).exit_code:
                pytest.skip("this kernel has no audit sessions")
            return (await sandbox.exec("echo 1000 > /proc/self/loginuid")).stderr

    assert b"not permitted" in run(begin, image=docker_image)
