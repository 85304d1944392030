"""Containers of a real Docker Engine as sandboxes: what they may do, and which limits hold.

Not here: resets (`test_docker_reset.py`), ends (`test_docker_lifetime.py`), images
(`test_docker_images.py`), what the engine is asked for without one (`test_docker_settings.py`).
"""

from __future__ import annotations

import asyncio
import os

import pytest
from docker_play import containers, run

from katgym.errors import UsageError
from katgym.sandbox import SandboxLimits, SandboxSpec
from katgym.sandbox.limits import MEBIBYTE

pytestmark = pytest.mark.docker


def test_command_has_no_privilege_no_network_and_a_read_only_root(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            status = await box.exec(
                "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"
            )
            links = await box.exec("id -u; ls /sys/class/net; touch /x 2>&1; ls /proc/1/fd 2>&1")
            return status.stdout.split(), links.text()

    status, text = run(work)
    assert status[1::2] == [b"0" * 16, b"0" * 16, b"1", b"2"]
    assert text.splitlines()[:2] == ["1000", "lo"]
    assert "Read-only file system" in text
    assert "cannot open directory '/proc/1/fd': Permission denied" in text


def test_engine_was_asked_for_limits_and_labels(docker_image):
    limits = SandboxLimits(memory_bytes=200 * MEBIBYTE, max_processes=20)
    spec = SandboxSpec(image=docker_image, limits=limits, labels={"test": "inspect"})

    async def work(backend):
        async with await backend.create(spec):
            return containers(label="test=inspect")

    (found,) = run(work)
    host = found["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 200 * MEBIBYTE
    assert host["PidsLimit"] == 24
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert found["Config"]["Labels"]["katgym.sandbox.pid"] == str(os.getpid())
    assert containers(label="test=inspect") == []


@pytest.mark.parametrize(
    ("command", "limits", "limit_hit"),
    [
        ("python3 -c 'x = bytearray(10**9)'", {"memory_bytes": 128 * MEBIBYTE}, "memory_bytes"),
        ("f() { f | f & }; f; sleep 60", {"wall_s": 0.5, "max_processes": 32}, "wall_s"),
        ("while :; do :; done", {"cpu_s": 0.3}, "cpu_s"),
        ("exec head -c 99999 /dev/zero > f", {"file_bytes": 4096}, "file_bytes"),
    ],
)
def test_limit_ends_the_command_and_the_sandbox_lives_on(docker_image, command, limits, limit_hit):
    async def work(backend):
        spec = SandboxSpec(image=docker_image, limits=SandboxLimits(**limits))
        async with await backend.create(spec) as box:
            result = await box.exec(command)
            ps = await box.exec("cat /proc/[0-9]*/comm")
            return result, ps.stdout.split()

    result, left = run(work)
    assert result.limit_hit == limit_hit
    assert result.is_timed_out == (limit_hit in ("wall_s", "cpu_s"))
    assert result.is_out_of_memory == (limit_hit == "memory_bytes")
    assert len(left) <= 4  # supervisor, guardian, bash or cat


def test_full_disk_and_too_many_files_are_the_commands_problem(docker_image):
    limits = SandboxLimits(memory_bytes=256 * MEBIBYTE, disk_bytes=4 * MEBIBYTE, max_files=50)

    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image, limits=limits)) as box:
            full = await box.exec("head -c 9000000 /dev/zero > big; rm big")
            many = await box.exec("for i in $(seq 60); do echo > f$i || break; done; ls | wc -l")
            return full.text(), many.stdout

    full, many = run(work)
    assert "No space left on device" in full
    assert int(many) <= 50


def test_agent_cannot_end_or_stop_the_supervisor(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            await box.exec("kill -9 1; kill -STOP 1; kill -9 -1")
            await box.exec("kill -9 $PPID; sleep 1")
            await box.exec("kill -STOP $PPID; sleep 60", limits=SandboxLimits(wall_s=0.3))
            return (await box.exec("echo alive; ls -d /proc/[0-9]* | wc -l")).stdout

    assert run(work).startswith(b"alive\n")


def test_users_other_than_the_agent_are_refused(docker_image):
    async def work(backend):
        async with await backend.create(SandboxSpec(image=docker_image)) as box:
            with pytest.raises(UsageError, match="as user 'agent' only, got 'root'"):
                await box.exec(["id"], user="root")

    run(work)


def test_many_are_created_at_once(docker_image):
    async def work(backend):
        spec = SandboxSpec(image=docker_image)
        boxes = await asyncio.gather(*(backend.create(spec) for _ in range(12)))
        results = await asyncio.gather(
            *(box.exec(f"echo {i} > f; cat f") for i, box in enumerate(boxes))
        )
        return [result.stdout for result in results], backend.provenance()

    outputs, provenance = run(work)
    assert outputs == [b"%d\n" % i for i in range(12)]
    assert provenance["images"][docker_image]["id"] == docker_image
