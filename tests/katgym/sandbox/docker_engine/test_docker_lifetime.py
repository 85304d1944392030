"""Containers end when they are killed, cancelled, out of time or left behind; nothing stays."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import docker
import pytest
from docker_play import containers, run

from katgym.sandbox import SandboxError, SandboxSpec
from katgym.sandbox.docker_engine import labels

pytestmark = pytest.mark.docker


def test_killing_does_not_wait_and_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "kill"})
        box = await backend.create(spec)
        command = asyncio.create_task(box.exec("trap '' TERM; while :; do sleep 1; done"))
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        await box.kill()
        took = time.perf_counter() - started
        await box.kill()
        with pytest.raises(SandboxError, match="was ended"):
            await command
        with pytest.raises(SandboxError, match="was killed"):
            await box.exec(["true"])
        return took, containers(label="test=kill")

    took, left = run(work)
    assert took < 9  # an orderly stop waits ten seconds
    assert left == []


def test_sandbox_ends_itself_after_its_time(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, ttl_s=0.5, labels={"test": "ttl"})
        box = await backend.create(spec)
        with pytest.raises(SandboxError):
            await box.exec("sleep 60")
        for _ in range(100):
            if not containers(label="test=ttl"):
                return True
            await asyncio.sleep(0.05)
        return False

    assert run(work)


def test_cancelled_creation_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "cancel"})
        await (await backend.create(spec)).kill()
        for delay in (0.0, 0.01, 0.05, 0.1):
            creating = asyncio.create_task(backend.create(spec))
            await asyncio.sleep(delay)
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        return containers(label="test=cancel"), backend.live

    assert run(work) == ([], {})


def test_containers_end_with_katgym_and_gc_removes_the_rest(docker_image):
    code = """
import asyncio, sys
from katgym.sandbox import SandboxSpec
from katgym.sandbox.docker_engine.backend import DockerBackend
async def main():
    backend = DockerBackend()
    await backend.create(SandboxSpec(image=sys.argv[1], labels={"test": "orphan"}))
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    child = subprocess.Popen([sys.executable, "-c", code, docker_image], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    (found,) = containers(label="test=orphan")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    until = time.monotonic() + 60
    while containers(label="test=orphan") and time.monotonic() < until:
        time.sleep(0.05)
    assert containers(label="test=orphan") == []  # the supervisor saw the end of its stdin

    client = docker.from_env()
    try:
        # One that was created and never started has nobody inside to see that.
        orphan = found["Config"]["Labels"]
        client.api.create_container(docker_image, ["/bin/true"], labels=orphan)
        mine = labels.make_labels("mine", 60.0, {"test": "orphan-mine"})
        kept = client.api.create_container(docker_image, ["/bin/true"], labels=mine)

        async def work(backend):
            return await backend.gc()

        assert run(work) == 1
        assert containers(label="test=orphan") == []
        assert len(containers(label="test=orphan-mine")) == 1
        client.api.remove_container(kept["Id"])
    finally:
        client.close()
