"""What a command in a local sandbox can and cannot do, on the real kernel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from local_play import in_sandbox, shown, wait_until_alone

from katgym.sandbox import Sandbox, SandboxLimits

LEADS_OUT = (
    "unshare -U true",
    "unshare -r true",
    "mount -t tmpfs none /tmp",
    "python3 -c 'import ctypes; exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0)' && false",
    "touch /usr/x",
    "touch /etc/x",
    "mkdir /x",
    "mknod /tmp/x b 8 0",
    "kill -9 1",
    "echo 0 > /proc/sys/kernel/randomize_va_space",
    "python3 -c 'import socket; socket.socket(40, 1)'",
    "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\"",
    "python3 -c 'import os; os.setuid(0)'",
    "python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True);"
    " exit(l.syscall(250, 0, 0) < 0)'",  # keyctl
)


def test_a_command_has_no_privilege_and_nothing_of_the_host_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")

    async def play(sandbox: Sandbox) -> None:
        status = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status"
        told = await shown(sandbox, f"id -u; {status}; pwd; echo $HOME")
        lines = told.split()
        assert lines[0] == "1000"
        assert told.count("0000000000000000") == 5
        assert "NoNewPrivs:\t1" in told and "Seccomp:\t2" in told
        assert lines[-2:] == ["/workspace", "/home/agent"]
        told = await shown(
            sandbox,
            f"cat {secret}; env; ls -d /sys /home/* /root/* /var/run/docker.sock /etc/shadow;"
            "cat /proc/1/environ /proc/1/cmdline; ls /proc/1/fd /proc/1/root",
        )
        assert "hidden" not in told
        assert str(Path(__file__).parents[4]) not in told
        assert "/home/agent" in told and "docker.sock': No such file" in told.replace('"', "'")

    in_sandbox(play)


def test_what_would_lead_out_is_refused(subtests: pytest.Subtests) -> None:
    async def play(sandbox: Sandbox) -> None:
        for command in LEADS_OUT:
            with subtests.test(command=command):
                assert (await sandbox.exec(command)).exit_code != 0
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"

    in_sandbox(play)


def test_two_sandboxes_share_no_process_no_file_and_no_abstract_socket() -> None:
    async def play(one: Sandbox) -> None:
        other = await one.backend.create(one.spec)
        listen = (
            "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen();"
            " open('/tmp/up', 'w'); time.sleep(3600)"
        )
        running = asyncio.create_task(one.exec(["python3", "-c", listen]))
        while (await one.exec("test -e /tmp/up")).exit_code:
            assert not running.done()
            await asyncio.sleep(0.02)
        call = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0meet')"
        assert (await one.exec(["python3", "-c", call])).exit_code == 0
        assert b"refused" in (await other.exec(["python3", "-c", call])).stderr
        assert (await other.exec("test -e /tmp/up")).exit_code == 1
        running.cancel()

    in_sandbox(play)


def test_what_a_command_left_running_ends_with_it_and_a_fork_bomb_is_bounded(
    subtests: pytest.Subtests,
) -> None:
    async def play(sandbox: Sandbox) -> None:
        for command in (
            "setsid sleep 600 & sleep 600 & echo started",
            "setsid bash -c 'trap \"\" TERM HUP; sleep 600' >/dev/null 2>&1 & echo started",
            "(setsid setsid sleep 600 &) ; echo started",
        ):
            with subtests.test(command=command):
                result = await sandbox.exec(command)
                # Who waits for what is left behind ends at the wall limit.
                told = (result.stdout, result.exit_code, result.limit_hit)
                assert told == (b"started\n", 0, None)
                assert (await sandbox.exec("pgrep -c sleep")).stdout == b"0\n"
                wait_until_alone(sandbox)
        bomb = "bomb() { bomb | bomb & }; bomb; sleep 0.3; echo survived"
        result = await sandbox.exec(bomb, limits=SandboxLimits(wall_s=1))
        assert result.limit_hit in (None, "wall_s")
        wait_until_alone(sandbox)
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"

    in_sandbox(play)


def test_limits_end_a_command_and_say_which(subtests: pytest.Subtests) -> None:
    cases = (
        ("trap '' TERM; while :; do sleep 1; done", SandboxLimits(wall_s=0.3), "wall_s"),
        ("while :; do :; done", SandboxLimits(cpu_s=0.3), "cpu_s"),
        ("(while :; do :; done) & while :; do :; done", SandboxLimits(cpu_s=0.4), "cpu_s"),
        ("python3 -c 'bytearray(400 << 20)'", None, "memory_bytes"),
    )

    async def play(sandbox: Sandbox) -> None:
        for command, limits, hit in cases:
            with subtests.test(command=command):
                result = await sandbox.exec(command, limits=limits)
                assert (result.exit_code, result.signal, result.limit_hit) == (None, 9, hit)
                assert result.is_timed_out == (hit != "memory_bytes")
                assert result.is_out_of_memory == (hit == "memory_bytes")

    in_sandbox(play)


def test_disk_inodes_and_shared_memory_are_bounded() -> None:
    async def play(sandbox: Sandbox) -> list[int]:
        told = await shown(
            sandbox,
            "for d in . /tmp /dev/shm $HOME; do head -c 20000000 /dev/zero > $d/big 2>/dev/null;"
            " stat -c %s $d/big; rm $d/big; done;"
            "for i in $(seq 400); do echo > f$i || break; done 2>/dev/null; ls | wc -l",
        )
        return [int(word) for word in told.split()]

    sizes = in_sandbox(play)
    assert sizes[:4] == [8 << 20] * 4
    assert 150 < sizes[4] < 200


def test_a_flood_of_output_is_counted_not_kept_and_large_input_comes_back() -> None:
    data = os.urandom(3_000_000)

    async def play(sandbox: Sandbox) -> None:
        few = SandboxLimits(output_bytes=1000)
        result = await sandbox.exec("yes | head -c 30000000", limits=few)
        assert (len(result.stdout), result.stdout_omitted) == (1000, 30_000_000 - 1000)
        assert result.stdout_split == 500
        assert "[29999000 bytes left out]" in result.text()
        more = SandboxLimits(output_bytes=8_000_000)  # than the sandbox's own
        result = await sandbox.exec("cat", stdin=data, limits=more)
        assert result.stdout_omitted == 3_000_000 - (1 << 20)
        half = 1 << 19
        assert (result.stdout[:half], result.stdout[half:]) == (data[:half], data[-half:])

    in_sandbox(play)
