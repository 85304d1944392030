"""A lease of a folder: one holder at a time, whom the others are told by name.

On one machine, its containers included, a lock of the kernel decides: it is gone with its process,
however that ends. Another machine's lock may not be seen on a file system that both use, so there a
holder that did not give the lease back is waited for until its heartbeat is old.

Not here: what is done in the folder; locks without a name (`folder_guard.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from katgym.errors import KatgymError, UsageError
from katgym.system.atomic_files import explain_os_error
from katgym.system.locks.file_lock import lock_file
from katgym.system.steady_clock import SteadyClock, boot_id

logger = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
"""A holder says that it is alive as often as this."""
STALE_S = 30.0
"""Seconds without a sign of life after which another machine's holder counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds, or held, a lease.

    Example:
        Holder(host="node7", pid=4711, url="http://node7:8900", boot="6f1c...", origin_s=1.7e9)
    """

    host: str = ""
    pid: int = 0
    url: str = ""
    boot: str = ""
    """Of the machine's kernel; equal ones see each other's locks."""
    origin_s: float = 0.0
    """Of its clock; see `SteadyClock`."""
    is_over: bool = False
    """Whether it gave the lease back."""


class FolderLease:
    """Holds a folder for this process, with a clock that goes on from the last holder's.

    Example:
        lease = FolderLease.take(Path("rollouts"), what="gateway", url="http://127.0.0.1:8900")
        lease.release()
    """

    def __init__(self, path: Path, file: BinaryIO, clock: SteadyClock) -> None:
        """Use `take` instead."""
        self.clock = clock
        self._path = path
        self._file = file
        self._holder = Holder()

    @classmethod
    def take(cls, folder: Path, *, what: str, url: str = "") -> FolderLease:
        """Take a folder, which exists; `UsageError` naming the holder if there is one.

        what: the kind of holder, which names the file. url: where others reach this one.
        """
        path = folder / f"{what}.lease"
        with explain_os_error(path):
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            file = os.fdopen(os.open(path, flags, 0o644), "r+b", buffering=0)
        try:
            before = _read(file)
            try:
                lock_file(file)
            except BlockingIOError:
                raise UsageError(_refusal(what, folder, before)) from None
            before = _read(file)
            is_same_boot = before.boot == boot_id() != ""
            is_elsewhere = before.host not in ("", socket.gethostname()) and not is_same_boot
            silent_s = time.time() - os.fstat(file.fileno()).st_mtime
            if is_elsewhere and not before.is_over and silent_s < STALE_S:
                raise UsageError(
                    f"{_refusal(what, folder, before)}. It is another machine, whose lock cannot be"
                    f" relied on here: if it is dead, try again in {STALE_S - silent_s:.0f} s"
                )
            origin_s = before.origin_s if is_same_boot and before.origin_s else None
            lease = cls(path, file, SteadyClock(origin_s))
            lease.announce(url)
        except BaseException:
            file.close()
            raise
        return lease

    def announce(self, url: str) -> None:
        """Tell others where this holder is reached."""
        self._write(
            Holder(
                host=socket.gethostname(),
                pid=os.getpid(),
                url=url,
                boot=boot_id(),
                origin_s=self.clock.origin_s,
            )
        )

    def beat(self) -> None:
        """Say that this holder is alive; does nothing once the lease is given back."""
        if not self._file.closed:
            os.utime(self._path)

    async def keep(self) -> None:
        """Say again and again that this holder is alive; returns never."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await asyncio.to_thread(self.beat)
            except OSError as e:
                logger.warning("the lease %s cannot be touched: %s", self._path, e)

    def release(self) -> None:
        """Give the folder back; may be called twice."""
        if self._file.closed:
            return
        try:
            self._write(replace(self._holder, is_over=True))
        except KatgymError as e:  # the lock is gone with the file all the same
            logger.warning("%s", e)
        finally:
            self._file.close()

    def _write(self, holder: Holder) -> None:
        self._holder = holder
        with explain_os_error(self._path):
            # Over what stands there, so that a full disk has room for it.
            content = msgspec.json.encode(holder) + b"\n"
            self._file.seek(0)
            self._file.write(content)
            self._file.truncate()


def _read(file: BinaryIO) -> Holder:
    """Return what a file says; nobody where it says nothing that can be read."""
    file.seek(0)
    try:
        return msgspec.json.decode(file.read(), type=Holder)
    except ValueError:
        return Holder()


def _refusal(what: str, folder: Path, holder: Holder) -> str:
    at = f" at {holder.url}" if holder.url else ""
    who = f"{what} of process {holder.pid} on {holder.host!r}{at}" if holder.pid else f"{what}"
    return (
        f"another {who} uses the store {str(folder)!r}; stop that one, ask it instead, or name"
        " another store"
    )
