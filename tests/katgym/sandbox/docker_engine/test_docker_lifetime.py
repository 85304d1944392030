"""Containers end when they are killed, cancelled, out of time or left behind; nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys

import docker
import pytest
from docker_play import containers, run
from waiting import wait_until, wait_until_async

from katgym.sandbox import SandboxError, SandboxSpec
from katgym.sandbox.docker_engine import labels

pytestmark = pytest.mark.docker


def test_killing_does_not_wait_and_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "kill"})
        box = await backend.create(spec)
        stubborn = "trap '' TERM; touch /tmp/up; while :; do sleep 1; done"
        command = asyncio.create_task(box.exec(stubborn))
        while (await box.exec("test -e /tmp/up")).exit_code:
            await asyncio.sleep(0.02)
        client = docker.from_env()
        events = client.events(decode=True, filters={"container": box.id, "type": "container"})
        await box.kill()
        await box.kill()
        told = list(itertools.takewhile(lambda event: event["Action"] != "destroy", events))
        client.close()
        signals = [e["Actor"]["Attributes"]["signal"] for e in told if e["Action"] == "kill"]
        with pytest.raises(SandboxError, match="was ended"):
            await command
        with pytest.raises(SandboxError, match="was killed"):
            await box.exec(["true"])
        return signals, containers(label="test=kill")

    # An orderly stop sends SIGTERM first and waits ten seconds.
    assert run(work) == (["9"], [])


def test_sandbox_ends_itself_after_its_time(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, ttl_s=0.5, labels={"test": "ttl"})
        with pytest.raises(SandboxError):
            await (await backend.create(spec)).exec("sleep 3600")
        await wait_until_async(lambda: not containers(label="test=ttl"), "the container to go")

    run(work)


def test_cancelled_creation_leaves_nothing(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, labels={"test": "cancel"})
        await (await backend.create(spec)).kill()
        for delay in (0.0, 0.01, 0.05, 0.1):
            creating = asyncio.create_task(backend.create(spec))
            await asyncio.sleep(delay)
            creating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await creating).kill()  # it was made before
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
    await asyncio.sleep(3600)
asyncio.run(main())
"""
    child = subprocess.Popen([sys.executable, "-c", code, docker_image], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    (found,) = containers(label="test=orphan")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    # The supervisor sees the end of its stdin.
    wait_until(lambda: not containers(label="test=orphan"), "the container to go")

    client = docker.from_env()
    try:
        # One that was created and never started has nobody inside to see that.
        orphan = found["Config"]["Labels"]
        client.api.create_container(docker_image, ["/bin/true"], labels=orphan)
        mine = labels.make_labels("mine", 60.0, {"test": "orphan-mine"})
        kept = client.api.create_container(docker_image, ["/bin/true"], labels=mine)

        async def work(backend):
            return await backend.gc()

        run(work)  # how many it removes is not asked: another process may sweep up as well
        assert containers(label="test=orphan") == []
        assert len(containers(label="test=orphan-mine")) == 1
        client.api.remove_container(kept["Id"])
    finally:
        client.close()
