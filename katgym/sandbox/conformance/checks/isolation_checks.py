"""Conformance: a command sees and reaches nothing of the host, of the network or of its neighbours.

Not here: what it may use up (`limit_checks.py`). Passing shows that these ways are closed; it is
no proof that there are no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import katgym
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, commands, row, sandbox_check
from katgym.sandbox.sandbox import Sandbox

_CONNECT = """
import socket, sys
family, address = (socket.AF_UNIX, sys.argv[1].replace("@", chr(0))) if len(sys.argv) == 2 else (
    socket.AF_INET, (sys.argv[1], int(sys.argv[2])))
connection = socket.socket(family)
connection.settimeout(3)
try:
    connection.connect(address)
    print("connected")
except OSError as e:
    print("refused", e)
"""
_LISTEN = """
import socket, sys, time
listening = socket.socket(socket.AF_UNIX); listening.bind(chr(0) + sys.argv[1]); listening.listen()
open("/tmp/up", "w").close(); time.sleep(20)
"""
_PTRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
_SYSTEM_FILES = (
    "usr/x", "etc/x", "usr/bin/x", "lib/x", "etc/passwd", "usr/bin/python3", "x", "dev/x",
)  # fmt: skip
_PID_1_FILES = ("environ", "mem", "maps", "exe")
_PID_1_FOLDERS = ("fd", "root", "cwd", "map_files")


@sandbox_check()
async def no_capabilities(sandbox: Sandbox) -> None:
    """A command has no capability, cannot get one, and cannot gain privileges."""
    status = (await expect.run(sandbox, "cat /proc/self/status")).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect.equal(fields[name], "0" * 16, name)
    expect.equal(fields["NoNewPrivs"], "1", "NoNewPrivs")
    expect.equal(fields["Seccomp"], "2", "Seccomp (2 is a filter)")


@check()
async def what_would_lead_out(fixture: Fixture) -> None:
    """Namespaces, mounts, devices, tracing, other uids and system settings are refused."""
    call = "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({}) < 0)'"
    number = {"x86_64": (250, 165, 310), "aarch64": (219, 40, 270)}.get(platform.machine())
    scripts = [
        "unshare -U true", "unshare -r true", "unshare -m true", "mount -t tmpfs none /tmp",
        "mount --bind /tmp /etc", "mknod /tmp/device b 8 0", "chroot / true",
        "nsenter -t 1 -m true",
        "python3 -c 'import os; os.setuid(0)'", "python3 -c 'import os; os.setgid(0)'",
        "echo 0 > /proc/sys/kernel/randomize_va_space", "echo b > /proc/sysrq-trigger",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
        "python3 -c 'import socket; socket.socket(40, 1)'",
    ]  # fmt: skip
    if number is not None:  # keyctl, mount, process_vm_readv of PID 1
        scripts += [call.format(f"{number[0]}, 0, 0"), call.format(f"{number[1]}, 0, 0, 0, 0, 0")]
        scripts.append(call.format(f"{number[2]}, 1, 0, 0, 0, 0, 0"))
    async with fixture.sandbox() as sandbox:
        for command in scripts:
            result = await sandbox.exec(command)
            is_refused = result.exit_code != 127 or b"not found" in result.stderr
            expect.that(not result.ok and is_refused, f"{command!r} worked")


read_only_system = commands(
    "The system's files cannot be changed.",
    *(row(f"echo >> /{path}", ok=False) for path in _SYSTEM_FILES),
    row("rm -f /usr/bin/env /etc/passwd; mv /usr/bin/ls /usr/bin/lz", ok=False),
    row("ls /usr/bin/env /etc/passwd /usr/bin/ls"),
)


async def _expect_unreachable(sandbox: Sandbox, *address: str) -> None:
    told = (await expect.run(sandbox, ["python3", "-c", _CONNECT, *address])).stdout
    expect.that(told.startswith(b"refused"), f"{address} can be reached")


@sandbox_check()
async def no_network(sandbox: Sandbox) -> None:
    """There is no interface but loopback, no name resolves, no address answers."""
    lookup = "import socket; socket.gethostbyname('example.com')"
    told = (await expect.run(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split()
    expect.that(set(told) <= {b"lo"}, f"interfaces {told}")
    for address in (("1.1.1.1", "53"), ("169.254.169.254", "80"), ("172.17.0.1", "22")):
        await _expect_unreachable(sandbox, *address)
    await expect.run(sandbox, ["python3", "-c", lookup], ok=False)


@check()
async def no_service_of_the_host(fixture: Fixture) -> None:
    """What listens on the host's loopback, or on an abstract socket of it, is not reached."""
    name = f"katgym-conformance-{uuid.uuid4().hex}"
    with socket.create_server(("127.0.0.1", 0)) as server, _abstract_server(name):
        port = server.getsockname()[1]
        async with fixture.sandbox() as sandbox:
            await _expect_unreachable(sandbox, "127.0.0.1", str(port))
            await _expect_unreachable(sandbox, f"@{name}")


@contextlib.contextmanager
def _abstract_server(name: str) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        yield


@check()
async def no_file_of_the_host(fixture: Fixture) -> None:
    """Files of the host's /tmp, home and katgym itself are not there, by no path."""
    mark = f"katgym-conformance-{uuid.uuid4().hex}"
    with tempfile.NamedTemporaryFile("w", prefix=mark, suffix=".txt") as file:
        file.write(mark)
        file.flush()
        roots = ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../..", "/proc/self/cwd/../..")
        # The agent's own home, and /etc/hostname, exist inside with other content.
        private = (file.name, str(Path(katgym.__file__).parent / "py.typed"), "/etc/shadow")
        paths = [f"{root}{path}" for root in roots for path in private]
        async with fixture.sandbox() as sandbox:
            for path in paths:
                await expect.run(sandbox, ["cat", path], ok=False)
            look = f"ls -d /tmp/{mark}*; ls /proc/1/fd /proc/1/cwd/; ls /host"
            await expect.run(sandbox, look, ok=None, stdout=b"")


@check(harms_unisolated=True)
async def no_process_of_the_host(fixture: Fixture) -> None:
    """Processes of the host are not seen, and cannot be signalled."""
    mark = f"katgym-conformance-{uuid.uuid4().hex}"
    command = [sys.executable, "-c", "import time; time.sleep(60)", mark]
    other = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL)
    try:
        async with fixture.sandbox() as sandbox:
            look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; ls -d /proc/[0-9]*"
            result = await sandbox.exec(look)
            expect.that(mark.encode() not in result.stdout, "a process of the host is seen")
            num = result.stdout.count(b"/proc/")
            expect.that(0 < num < 20, f"{num} processes are seen")
            await sandbox.exec(f"kill -9 {other.pid} {os.getpid()}")
            expect.that(other.returncode is None, "a process of the host was killed")
    finally:
        with contextlib.suppress(ProcessLookupError):
            other.kill()
        await other.wait()


the_supervisor_is_closed = commands(
    "PID 1 can be neither traced, nor read, nor entered through /proc.",
    *(row(f"head -c 1 /proc/1/{name}", ok=None, stdout=b"") for name in _PID_1_FILES),
    *(row(f"ls /proc/1/{name}/", ok=None, stdout=b"") for name in _PID_1_FOLDERS),
    row(["python3", "-c", _PTRACE], stdout=b"-1\n"),
)


@sandbox_check()
async def no_stray_descriptors(sandbox: Sandbox) -> None:
    """A command has its three descriptors and no other."""
    look = "import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))"
    running = asyncio.create_task(sandbox.exec("sleep 1"))
    told = (await expect.run(sandbox, ["python3", "-c", look])).stdout.split()
    await running
    expect.that(told[:3] == [b"0", b"1", b"2"] and len(told) == 4, f"descriptors {told}")


devices = commands(
    "There are a null, a zero and a random device, and none that is the host's.",
    row("echo > /dev/null; head -c 1 /dev/zero /dev/urandom > /dev/null"),
    row("find /dev -type b; ls /dev | grep -E '^(k?mem|sd|vd|kvm)'; :", stdout=b""),
)


@check(harms_unisolated=True)
async def neighbours(fixture: Fixture) -> None:
    """Two sandboxes share no file, no process, no socket, no shared memory."""
    name = f"katgym-{uuid.uuid4().hex}"
    async with fixture.sandbox() as one, fixture.sandbox() as two:
        running = asyncio.create_task(one.exec(["python3", "-c", _LISTEN, name]))
        await expect.until(one, "-e /tmp/up")
        await expect.run(one, "echo > /tmp/x; echo > mine; echo > /dev/shm/x; :")
        await expect.run(one, ["python3", "-c", _CONNECT, f"@{name}"], stdout=b"connected\n")
        await _expect_unreachable(two, f"@{name}")
        told = (await two.exec("ls -A . /tmp /dev/shm; cat /proc/[0-9]*/cmdline")).stdout
        expect.that(b"mine" not in told and name.encode() not in told, f"of a neighbour: {told!r}")
        await one.exec("pkill -9 python3")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
