"""A Docker sandbox runs a command."""

from __future__ import annotations

import asyncio
import os

import pytest

from katgym.sandbox import SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend

pytestmark = pytest.mark.proof


def test_a_container_runs_a_command_without_root_and_network() -> None:
    image = os.environ["KATGYM_DOCKER_IMAGE"]  # .ci/docker_engine prints it

    async def work() -> tuple[int | None, str]:
        backend = DockerBackend()
        try:
            async with await backend.create(SandboxSpec(image=image)) as box:
                await box.write("work.txt", b"42\n")
                done = await box.exec("cat work.txt; id -u; ls /sys/class/net")
                return done.exit_code, done.text()
        finally:
            await backend.aclose()

    assert asyncio.run(work()) == (0, "42\n1000\nlo\n")
