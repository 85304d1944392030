"""Pretended machines: network namespaces joined by a switch, with `unshare` and `ip`, as root.

Each has an address (198.51.100.1 ...), a hostname (node1 ...), processes, /tmp, /dev/shm and HOME
of its own; of the disk they share some folders. What they do not have: processors and a clock of
their own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from waiting import HANG_S, wait_until

ROOT = Path(__file__).parents[2]
_CABLE = Path(__file__).with_name("slow_cable.py")
_SET_UP = """
set -e
hostname "$1"; shift
mount -t tmpfs keep /mnt
touch /mnt/hosts; echo 127.0.0.1 localhost > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts
n=0; for folder; do n=$((n + 1)); mkdir /mnt/$n; mount --bind "$folder" /mnt/$n; done
mount -t tmpfs -o size=3g tmp /tmp; mount -t tmpfs -o size=2g shm /dev/shm; mkdir /tmp/home
n=0; for folder; do n=$((n + 1)); mkdir -p "$folder"; mount --bind /mnt/$n "$folder"; done
ip link set lo up
echo ready
exec cat
"""


class PretendedHosts:
    """Some machines and the switch between them; they end with the process that made them."""

    def __init__(self, num: int, *shared: Path) -> None:
        """shared: folders that all of them see, beside this repository."""
        self.addresses = [f"198.51.100.{host + 1}" for host in range(num)]
        self._machines: list[subprocess.Popen[str]] = []
        self._started: list[subprocess.Popen[str]] = []
        self._cables: list[subprocess.Popen[str]] = []
        self._pids = [
            self._unshare("--uts", "--ipc", "--pid", "--mount-proc", name=name, shared=shared)
            for name in (f"node{host + 1}" for host in range(num))
        ]
        self._switch = self._unshare(name="switch")
        self._run(self._switch, "ip link add br0 type bridge")
        self._run(self._switch, "ip link set br0 up")
        for host, address in enumerate(self.addresses):
            self.add_interface(host, "e0", f"{address}/24")

    def add_interface(self, host: int, name: str, *addresses: str, is_joined: bool = True) -> None:
        """Give a machine one more interface: on the switch, or with nothing at its other end."""
        peer = f"{name}-{host}"
        pid = self._pids[host]
        self._run(self._switch, f"ip link add {peer} type veth peer name {name} netns {pid}")
        if is_joined:
            self._run(self._switch, f"ip link set {peer} master br0")
        self._run(self._switch, f"ip link set {peer} up")
        self.ip(host, f"link set {name} up")
        for address in addresses:
            self.ip(host, f"addr add {address} dev {name}" + " nodad" * (":" in address))

    def ip(self, host: int, words: str) -> None:
        """Change a machine's network by a command of `ip`, such as `addr add ...`."""
        self._run(self._pids[host], f"ip {words}")

    def cut(self, host: int) -> None:
        """Pull a machine's cable out of the switch."""
        self._run(self._switch, f"ip link set e0-{host} down")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        self._run(self._switch, f"ip link set e0-{host} up")

    def slow_down(self, host: int, *, delay_s: float, loss: float) -> None:
        """Have what a machine sends arrive late, and a share of it never (`slow_cable.py`)."""
        for command in (
            f"ip link set e0-{host} nomaster",
            f"ip link add slow-{host} type veth peer name in-{host}",
            f"ip link set in-{host} master br0",
            f"ip link set in-{host} up",
            f"ip link set slow-{host} up",
        ):
            self._run(self._switch, command)
        ends = [f"e0-{host}", f"slow-{host}", str(delay_s), str(loss)]
        process = subprocess.Popen(
            ["nsenter", f"--target={self._switch}", "--net", sys.executable, str(_CABLE), *ends],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._cables.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def write_names(self, host: int, *lines: str) -> None:
        """Write what /etc/hosts of a machine says, beside localhost."""
        text = "\n".join(["127.0.0.1 localhost", *lines, ""])
        Path(f"/proc/{self._pids[host]}/root/etc/hosts").write_text(text)

    def start(
        self,
        host: int,
        *command: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start a command on a machine, in the working folder of this process.

        stdin: as `subprocess.Popen` takes it.
        """
        found = {**os.environ, "HOME": "/tmp/home", "TMPDIR": "/tmp", **(env or {})}
        found["PATH"] = f"{Path(sys.executable).parent}:{found['PATH']}"
        enter = ["nsenter", f"--target={self._pids[host]}", "--net", "--uts", "--ipc", "--mount"]
        process = subprocess.Popen(
            [*enter, "--pid", f"--wd={Path.cwd()}", *command], env=found,
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, host: int, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command on a machine and return what it printed; it has to succeed."""
        process = self.start(host, *command, env=env)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, f"{' '.join(command)}: {out}{err}"
        return out

    def close(self) -> None:
        """End all of them and everything that runs there."""
        for cable in self._cables:
            cable.kill()
        for process in [*self._machines, *self._started, *self._cables]:
            if process.stdin is not None:  # which ends a machine's first process, and so all others
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _unshare(self, *kinds: str, name: str, shared: Sequence[Path] = ()) -> int:
        """Start a machine; return its first process."""
        script = _SET_UP if kinds else "echo ready; exec cat"
        forked = ("--fork", "--kill-child") if kinds else ()
        process = subprocess.Popen(
            ["unshare", "--net", "--mount", *kinds, *forked, "bash", "-c", script, "bash", name,
             str(ROOT), *map(str, shared)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._machines.append(process)
        assert process.stdout is not None and process.stderr is not None, "pipes"
        if process.stdout.readline() != "ready\n":
            pytest.fail(f"no machine can be pretended: {process.stderr.read()}")
        if not forked:
            return process.pid
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return int(wait_until(lambda: children.read_text().split(), "a machine")[0])

    def _run(self, pid: int, command: str) -> None:
        enter = ["nsenter", f"--target={pid}", "--net"]
        done = subprocess.run([*enter, *command.split()], capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@contextlib.contextmanager
def pretended_hosts(num: int, *shared: Path) -> Iterator[PretendedHosts]:
    """Yield machines; skip the test where nobody may make them."""
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    hosts = PretendedHosts(num, *shared)
    try:
        yield hosts
    finally:
        hosts.close()
