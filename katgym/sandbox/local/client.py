"""The host's side of a launcher: starts it, asks it, notices its death.

Not here: what it does (`launcher/`), sandboxes as callers see them (`backend.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.sandbox.base import SandboxError, SandboxUnavailableError
from katgym.sandbox.layer import layer_store
from katgym.sandbox.local.foreign_packages import foreign_packages
from katgym.sandbox.local.identity import AGENT_UID, NUM_SUBUIDS, SUBUID_BASE
from katgym.sandbox.supervised.channel import Channel, Reply
from katgym.system.cache_folder import CacheError
from katgym.system.processes import process_start

_log = logging.getLogger(__name__)
_STATE_NAME = re.compile(r"katgym-sandboxes-(\d+)-(\d+)-.+")
_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0
_MAX_REPLY_BYTES = 1 << 30
_PACKAGE = Path(__file__).parents[2]
# The launcher imports its few modules without running katgym's own __init__, which is far larger.
# Nothing about this machine is on its command line, which commands in a sandbox can read.
_BOOT = """\
import os, sys, types
package = os.environ.pop("KATGYM_PACKAGE")
for name, folder in (("katgym", package), ("katgym.sandbox", package + "/sandbox")):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [folder]
from katgym.sandbox.local.launcher import boot
boot.main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherKey:
    """What a launcher is started for; sandboxes that differ in it have different launchers."""

    python: str | None = None
    """Interpreter that is mounted in the sandboxes; None mounts none besides /usr."""
    preload: tuple[str, ...] = ()


class LauncherClient:
    """One launcher process, asked by many tasks of one event loop at a time.

    workspace: "overlay", "copy", "auto" (the first that works) or "plain" (no isolation);
    has_group: whether sandboxes get control groups.
    """

    def __init__(self, key: LauncherKey, *, workspace: str, has_group: bool) -> None:
        self.key = key
        self.workspace = workspace
        """Once started: what it is, "auto" no more."""
        self.has_group = has_group
        self.state = ""
        """Its folder, empty to those outside but for "plain"."""
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._channel: Channel | None = None
        """Where its replies come."""

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._channel is not None and self._channel.is_open

    async def start(self) -> None:
        """Start the process; `SandboxUnavailableError` if this machine does not allow it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        replies, their_replies = socket.socketpair()
        prefix = f"katgym-sandboxes-{os.getpid()}-{process_start(os.getpid())}-"
        self.state = tempfile.mkdtemp(prefix=prefix)
        interpreter = self.key.python if self.key.preload and self.key.python else sys.executable
        flags = ["-P", "-s"] if self.key.preload else ["-I", "-S"]
        env = {
            "KATGYM_PACKAGE": str(_PACKAGE),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        ours.setblocking(False)
        self._requests = ours
        try:
            # No asyncio subprocess: its watcher would be this event loop's, and outlived by it.
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                [interpreter, *flags, "-c", _BOOT],
                stdin=theirs.fileno(),
                stdout=their_replies.fileno(),
                env=env,
                cwd="/",
            )
        except OSError as e:
            replies.close()
            await self.close()
            raise SandboxUnavailableError(f"the launcher cannot be started: {e}") from e
        finally:
            theirs.close()
            their_replies.close()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                channel = self._channel = Channel("the launcher of the local sandboxes")
                loop = asyncio.get_running_loop()
                await loop.create_unix_connection(lambda: channel, sock=replies)
                await self._introduce()
        except (SandboxUnavailableError, CacheError):
            await self.close()
            raise
        except (TimeoutError, SandboxError, OSError) as e:
            await self.close()
            text = str(e) or f"it was not ready within {_START_TIMEOUT_S:g} s"
            raise SandboxUnavailableError(f"local sandboxes cannot be made here: {text}") from e
        except BaseException:  # whoever waited was cancelled
            await self.close()
            raise

    async def _introduce(self) -> None:
        binds, masks = await asyncio.to_thread(_interpreter_paths, self.key.python)
        store = layer_store()
        store.make_root()
        config = {
            "state": self.state,
            "workspace": self.workspace,
            "has_group": self.has_group,
            "layers": str(store.root),
            "binds": binds,
            "masks": masks,
            "preload": list(self.key.preload),
            "agent_uid": AGENT_UID,
            "is_single_uid": os.geteuid() != 0,
            "subuid_base": SUBUID_BASE,
        }
        header, _ = await self._exchange("configure", config, ())
        if header["op"] == "map":
            for name in ("uid_map", "gid_map"):
                text = f"0 {SUBUID_BASE} {NUM_SUBUIDS}"
                place = Path(f"/proc/{header['pid']}/{name}")
                place.write_text(text, encoding="ascii")  # noqa: ASYNC240 - no disk is behind it
            header, _ = await self._exchange("mapped", {}, ())
        if header["op"] != "ready":
            raise OSError(header.get("error", "the launcher did not get ready"))
        if header["overlay_problem"]:
            _log.warning("no overlay mounts here, copying layers: %s", header["overlay_problem"])
        if self.workspace == "auto":
            self.workspace = header["workspace"]

    async def ask(self, op: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> Reply:
        """Send a request, descriptors beside it; return reply fields and payload.

        `SandboxError` if the launcher could not do it, or is gone.
        """
        header, payload = await self._exchange(op, fields, fds)
        if "error" in header:
            raise SandboxError(f"local sandbox: {op} failed: {header['error']}")
        return header, payload

    async def _exchange(self, op: str, fields: Mapping[str, Any], fds: Sequence[int]) -> Reply:
        requests = self._requests
        if self._channel is None or requests is None:
            raise SandboxError("the launcher of the local sandboxes is closed")
        number, reply = self._channel.expect(_MAX_REPLY_BYTES)
        packet = json.dumps({**fields, "op": op, "id": number}).encode()
        while True:
            try:
                socket.send_fds(requests, [packet], list(fds))
                break
            except BlockingIOError:  # its queue of packets is full
                await asyncio.sleep(0.001)
            except OSError as e:
                reply.cancel()
                text = f"the launcher of the local sandboxes does not listen: {e}"
                raise SandboxError(text) from e
        return await reply

    def is_alive(self) -> bool:
        """Whether the process is there, so that the pids it told are those of its children."""
        return self._process is not None and self._process.poll() is None

    async def close(self) -> None:
        """End the launcher and with it every sandbox it made."""
        if self._channel is not None:
            self._channel.fail("was closed")
        if self._requests is not None:
            self._requests.close()  # it ends at the end of the stream
            self._requests = None
        try:
            if self._process is not None:
                await self._end(self._process)
        finally:
            if self.state:
                shutil.rmtree(self.state, ignore_errors=True)  # `gc` tries again

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        if self.workspace != "plain":  # nothing below it can outlive it
            process.kill()
        # Without a thread: at the interpreter's exit there are no more of them.
        deadline = time.monotonic() + _END_TIMEOUT_S
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:  # nobody would wait for it any more
            process.kill()
            process.wait()
            raise


async def read_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Return header and payload of the next frame; `EOFError` or `OSError` if none comes."""
    header_len, payload_len = struct.unpack("!II", await reader.readexactly(8))
    if header_len + payload_len > _MAX_REPLY_BYTES:
        raise OSError(f"the launcher sent {header_len + payload_len} bytes")
    header = json.loads(await reader.readexactly(header_len))
    return header, await reader.readexactly(payload_len)


def remove_dead_folders() -> list[str]:
    """Remove the folders of launchers whose katgym has died; return them."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob("katgym-sandboxes-*"):
        found = _STATE_NAME.fullmatch(path.name)
        # Another process may sweep up at the same time.
        with contextlib.suppress(FileNotFoundError):
            if found is None or path.lstat().st_uid != os.geteuid():
                continue
            if process_start(int(found[1])) != int(found[2]):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(str(path))
    return removed


def _interpreter_paths(python: str | None) -> tuple[list[str], list[str]]:
    """Return the directories an interpreter needs, and those inside that are hidden."""
    if python is None:
        return [], foreign_packages()
    code = (
        "import sys, sysconfig; print(sys.prefix); print(sys.base_prefix);"
        "at = {'base': sys.base_prefix, 'platbase': sys.base_prefix};"
        "print(*(sysconfig.get_path(kind, vars=at) for kind in ('purelib', 'platlib')), sep='\\n')"
    )
    run = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, encoding="utf-8")
    if run.returncode != 0:
        raise SandboxUnavailableError(f"the interpreter {python!r} does not run: {run.stderr!r}")
    prefix, base, *packages = run.stdout.splitlines()
    venv = str(Path(python).absolute().parents[1])
    is_venv = Path(venv, "pyvenv.cfg").exists()
    binds = list(dict.fromkeys([base, *([venv] if is_venv else [prefix])]))
    # What is installed beside the base interpreter is none of the sandbox's business; conda keeps
    # copies of it in `pkgs`, and other environments.
    others = [*packages, f"{base}/pkgs", f"{base}/envs"]
    own = {p for p in others if is_venv and not venv.startswith(f"{p}/")}
    kept = [venv] if is_venv else packages
    foreign = {p for p in foreign_packages() if not any(k.startswith(p) for k in kept)}
    return binds, sorted(own | foreign)
