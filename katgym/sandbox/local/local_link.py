"""The link to one local sandbox: its supervisor runs commands, its launcher keeps its workspace.

Not here: making one (`backend.py`), what happens inside (`launcher/birth.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from pathlib import PurePosixPath
from typing import Protocol

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, SandboxError
from katgym.sandbox.changes import WorkspaceDiff, parse_changes
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.client import LauncherClient, read_frame
from katgym.sandbox.operations import Diff, Link
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervised.channel import Channel
from katgym.sandbox.supervised.supervised_link import SupervisedLink

_DIFF_TIMEOUT_S = 120.0
_PATH = "/usr/local/bin:/usr/bin:/bin"
_numbers = itertools.count(1)


class LocalMaker(Protocol):
    """What a local sandbox needs of the backend that made it."""

    snapshots: dict[str, LauncherClient]
    """Id of a snapshot -> the launcher that has it."""

    async def make(self, spec: SandboxSpec, launcher: LauncherClient, at: str | None) -> Link:
        """Return the link to a new sandbox."""

    def discard(self, link: LocalLink) -> None:
        """Strike a sandbox off the list of those that live."""

    def release_soon(self, link: LocalLink) -> None:
        """Release what a sandbox that ended by itself holds, once there is time."""


class LocalLink(SupervisedLink):
    """One sandbox: a PID namespace whose PID 1 is a supervisor that answers on a socket."""

    def __init__(
        self,
        maker: LocalMaker,
        spec: SandboxSpec,
        launcher: LauncherClient,
        group: cgroups.Group | None,
    ) -> None:
        name = f"local-{os.getpid()}-{next(_numbers)}"
        is_plain = launcher.workspace == "plain"
        self._box = f"{launcher.state}/boxes/{name}" if is_plain else None
        folder = "" if spec.python is None else f"{PurePosixPath(spec.python).parent}:"
        env = {
            "PATH": folder + _PATH,
            "HOME": "/home/agent" if self._box is None else f"{self._box}/home",
            "LANG": "C.UTF-8",
            "USER": AGENT,
            "TMPDIR": "/tmp" if self._box is None else f"{self._box}/tmp",
        }
        super().__init__(name, spec, env)
        self.has_cgroup = group is not None
        self.group = group
        self.pid = 0
        """Of the supervisor, outside; 0 before it is started."""
        self._maker = maker
        self._launcher = launcher
        self._deadline = time.monotonic() + spec.ttl_s

    async def start(self, at: str | None) -> None:
        """Make it, from a snapshot or from the layers; whoever calls kills it if that fails."""
        ours, theirs = socket.socketpair()
        fds = cgroups.GroupFds() if self.group is None else self.group.open()
        fields = {
            **self._sizes(),
            "sandbox": self.id,
            "layers": [layer.digest for layer in self.spec.layers],
            "at": at,
            "workdir": self.spec.workdir,
            "folders": self.spec.folders,
            "ttl_s": self.spec.ttl_s,
            "may_call": bool(self.spec.preload),
            "num_joins": len(fds.at_start),
            "is_born_inside": fds.birthplace >= 0,
        }
        try:
            reply, _ = await self._launcher.ask("create", fields, [theirs.fileno(), *fds.all()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in fds.all():
                os.close(fd)
        self.pid = reply["pid"]
        channel = Channel(f"sandbox {self.id}", describe_end=self._describe_end)
        self.channel = channel
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: channel, sock=ours)
        if self.end is not None:  # killed meanwhile, when there was no channel to close
            channel.close()
            raise SandboxError(f"sandbox {self.id} {self.end}")
        channel.closed.add_done_callback(self._on_closed)

    def _sizes(self) -> dict[str, int | None]:
        limits = self.spec.limits
        return {"disk_bytes": limits.disk_bytes, "max_files": limits.max_files}

    def _describe_end(self) -> str:
        if time.monotonic() >= self._deadline - 0.05:
            return f"it reached its deadline, ttl_s={self.spec.ttl_s:g}"
        return ""

    def _on_closed(self, closed: asyncio.Future[None]) -> None:
        """What a sandbox that ended by itself holds is released although its owner does nothing."""
        if self.end is None:
            why = self._describe_end()
            self.end = "ended by itself" + (f": {why}" if why else "")
            self._kill_process()
            self._maker.release_soon(self)

    def check_user(self, user: str) -> None:
        numbers = range(65_536) if os.geteuid() == 0 else (0, 1000)
        is_known = user in (AGENT, "root") or (user.isdecimal() and int(user) in numbers)
        if self._box is not None:
            is_known = user == AGENT
        if not is_known:
            raise UsageError(
                f"unknown sandbox user {user!r}; allowed: 'agent', 'root', and a numeric uid below"
                " 65536 where the backend has capability 'users'"
            )

    def place(self, path: str) -> str:
        if self._box is not None:
            for root, name in ((self.spec.workdir.rstrip("/"), "workspace"), ("/tmp", "tmp")):
                if path == root or path.startswith(root + "/"):
                    return f"{self._box}/{name}{path[len(root) :]}"
        return path

    def open_meter(self) -> cgroups.Meter | None:
        return None if self.group is None else cgroups.Meter(self.group)

    async def compare(self, operation: Diff) -> WorkspaceDiff:
        """Return what changed; a child of the launcher writes the list to a socket."""
        fields = {
            "sandbox": self.id,
            "max_file_bytes": operation.max_file_bytes,
            "max_changes": operation.max_changes,
        }
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                await self._launcher.ask("diff", fields, [theirs.fileno()])
                theirs.close()  # so that the child's end is the end of the stream
                async with asyncio.timeout(_DIFF_TIMEOUT_S):
                    return parse_changes(*await read_frame(reader))
            except (EOFError, OSError, ValueError) as e:
                text = f"sandbox {self.id}: no diff came ({type(e).__name__})"
                raise SandboxError(text) from e
            finally:
                writer.close()

    async def freeze(self) -> str:
        name = f"snapshot-{next(_numbers)}"
        fields = {**self._sizes(), "sandbox": self.id, "snapshot": name}
        await self._launcher.ask("snapshot", fields)
        self._maker.snapshots[name] = self._launcher
        return name

    async def restore(self, to: str | None) -> None:
        await self._launcher.ask("reset", {**self._sizes(), "sandbox": self.id, "at": to})

    async def forget(self, name: str) -> None:
        await self._launcher.ask("forget", {"snapshot": name})
        self._maker.snapshots.pop(name, None)

    async def sibling(self, at: str) -> Link:
        return await self._maker.make(self.spec, self._launcher, at)

    def check_snapshot(self, name: str) -> None:
        if self._maker.snapshots.get(name) is not self._launcher:
            raise UsageError(f"no snapshot {name!r} of this kind of sandbox in this backend")

    async def kill(self) -> None:
        if self.end is None:
            self.end = "was killed"
            await self.release()

    async def release(self) -> None:
        """Give back what it holds; it has ended."""
        self._maker.discard(self)
        self._kill_process()
        if self.channel is not None:
            self.channel.close()
        if self._launcher.is_open:
            with contextlib.suppress(SandboxError):  # then the launcher is gone, and it with it
                await self._launcher.ask("drop", {"sandbox": self.id})
        if self.group is not None:
            await self.group.remove()

    def _kill_process(self) -> None:
        if self.pid and self._launcher.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # not reaped before "drop", so it is this one
