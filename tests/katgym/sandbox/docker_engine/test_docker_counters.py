"""What one container moves in the kernel a later one does not read, or the table says so."""

from __future__ import annotations

import pytest
from docker_play import run
from kernel_state import KERNEL_STATES, REFUSED, KernelState, move_state, read_state

from katgym.sandbox import SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(
    "state", [s for s in KERNEL_STATES if s.is_open_in_containers is not None], ids=str
)
def test_what_was_moved_before_is_read_where_the_table_says_open(
    state: KernelState, docker_image: str
) -> None:
    async def read_around(backend: DockerBackend) -> tuple[int | str, int | str]:
        before = await read_state(backend, state)
        await move_state(backend, state)
        return before, await read_state(backend, state)

    before, after = run(read_around, image=docker_image)
    if not state.is_open_in_containers:
        assert before == after
    elif REFUSED in (before, after):
        pytest.skip(f"this kernel has no {state.name}")
    elif state.by:
        assert (int(after) - int(before)) % 2**32 >= state.by
    else:
        assert before != after


def test_no_command_begins_an_audit_session(docker_image: str) -> None:
    async def begin(backend: DockerBackend) -> bytes:
        async with await backend.create(SandboxSpec()) as sandbox:
            if (await sandbox.exec("test -e /proc/self/loginuid")).exit_code:
                pytest.skip("this kernel has no audit sessions")
            return (await sandbox.exec("echo 1000 > /proc/self/loginuid")).stderr

    assert b"not permitted" in run(begin, image=docker_image)
