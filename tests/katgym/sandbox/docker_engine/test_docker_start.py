"""Containers that are killed while they start."""

from __future__ import annotations

import asyncio
import gc

import docker
import pytest

from katgym.sandbox import SandboxError, SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend

pytestmark = pytest.mark.docker


def test_a_container_killed_while_it_starts_is_gone_and_leaves_nothing_open(
    docker_image: str,
) -> None:
    async def play() -> list[str]:
        backend = DockerBackend(image=docker_image)
        names = []
        try:
            await (await backend.create(SandboxSpec())).kill()  # reads the image once
            for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2):
                making = asyncio.create_task(backend.create(SandboxSpec()))
                while not backend.live:
                    await asyncio.sleep(0)
                (sandbox,) = backend.live.values()
                names.append(sandbox.id)
                await asyncio.sleep(delay_s)
                await sandbox.kill()
                with pytest.raises(SandboxError):
                    await (await making).exec("true")
                assert not backend.live
        finally:
            await backend.aclose()
        return names

    names = asyncio.run(play())
    gc.collect()  # a channel that was not closed says so now, and fails this test
    client = docker.from_env()
    try:
        left = {c.name for c in client.containers.list(all=True)}
    finally:
        client.close()
    assert not left & set(names)
