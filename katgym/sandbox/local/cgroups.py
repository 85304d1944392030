"""Control groups of local sandboxes: memory and processes as hard limits, counters read back.

Version 2 where a writable group with both controllers is at hand, else version 1 as root. Not here:
joining a group (the launcher's child does, through descriptors opened here).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from katgym.sandbox.limits import SandboxLimits

_ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"katgym-(\d+)-(\d+)-\d+")
_numbers = itertools.count(1)


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """Counters of a group at one moment."""

    num_oom_kills: int = 0
    peak_bytes: int = 0


class Group:
    """One sandbox's group (in version 1: one in each hierarchy)."""

    def __init__(self, folders: Mapping[str, Path], *, version: int) -> None:
        self.folders = dict(folders)
        self.version = version
        self._open: tuple[int, int] | None = None

    def open_joins(self) -> list[int]:
        """Return descriptors into which a process writes "0" to join; the caller closes them."""
        return [
            os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            for folder in dict.fromkeys(self.folders.values())
        ]

    def use(self) -> GroupUse:
        """Return the counters now."""
        kills, peak = self._counters()
        return GroupUse(
            num_oom_kills=_field(os.pread(kills, 4096, 0)),
            peak_bytes=_number(os.pread(peak, 64, 0)),
        )

    def restart_peak(self) -> None:
        """Make the peak count from here, where the kernel can."""
        with contextlib.suppress(OSError):  # version 2 before Linux 6.12 cannot
            os.pwrite(self._counters()[1], b"0", 0)

    def _counters(self) -> tuple[int, int]:
        """Return descriptors of the counters, kept open: they are read with every command."""
        if self._open is None:
            names = ("memory.events", "memory.peak")
            if self.version == 1:
                names = ("memory.oom_control", "memory.max_usage_in_bytes")
            kills, peak = (str(self.folders["memory"] / name) for name in names)
            self._open = (os.open(kills, os.O_RDONLY | os.O_CLOEXEC), _open_peak(peak))
        return self._open

    def _close(self) -> None:
        opened, self._open = self._open, None
        for fd in opened or ():
            os.close(fd)

    def remove(self) -> None:
        """Remove it; what still ends in it is waited for a moment, the rest is left to `gc`."""
        self._close()
        for folder in dict.fromkeys(self.folders.values()):
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as e:
                    if e.errno != errno.EBUSY:
                        raise
                    time.sleep(0.001)
                else:
                    break


class GroupMaker:
    """Makes groups below the given places; `find` looks for them on this machine."""

    def __init__(self, parents: Mapping[str, Path], *, version: int) -> None:
        self.parents = dict(parents)
        self.version = version

    def make(self, limits: SandboxLimits) -> Group:
        """Return a new group with the limits set; `OSError` if that fails."""
        start = process_start(os.getpid())
        name = f"katgym-{os.getpid()}-{start}-{next(_numbers)}"
        group = Group({k: p / name for k, p in self.parents.items()}, version=self.version)
        try:
            for folder in dict.fromkeys(group.folders.values()):
                folder.mkdir()
            self._set(group, limits)
        except OSError:
            group.remove()
            raise
        return group

    def _set(self, group: Group, limits: SandboxLimits) -> None:
        memory, pids = group.folders["memory"], group.folders["pids"]
        # The supervisor and its guardians count, too.
        num = "max" if limits.max_processes is None else str(limits.max_processes + 8)
        (pids / "pids.max").write_text(num)
        if limits.memory_bytes is None:
            return
        if self.version == 2:
            (memory / "memory.max").write_text(str(limits.memory_bytes))
            with contextlib.suppress(FileNotFoundError):  # no swap accounting
                (memory / "memory.swap.max").write_text("0")
            return
        (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
        with contextlib.suppress(FileNotFoundError):
            (memory / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))

    def leftovers(self) -> Iterator[Path]:
        """Yield the groups of katgym processes that have died."""
        for parent in dict.fromkeys(self.parents.values()):
            for folder in parent.glob("katgym-*"):
                found = _NAME.fullmatch(folder.name)
                if found and process_start(int(found[1])) != int(found[2]):
                    yield folder


def find() -> tuple[GroupMaker | None, str]:
    """Return what makes groups here, or None, and in words what was found."""
    own = _own_groups()
    for base in (_ROOT, _ROOT / "unified"):
        parent = base / own.get("", "").lstrip("/")
        if _usable(parent, ("memory", "pids"), "cgroup.subtree_control"):
            return GroupMaker({"memory": parent, "pids": parent}, version=2), "cgroup v2"
    parents = {name: _ROOT / name / own.get(name, "").lstrip("/") for name in ("memory", "pids")}
    if all(os.access(path, os.W_OK) for path in parents.values()):
        return GroupMaker(parents, version=1), "cgroup v1"
    return None, "no cgroup that may be written, with memory and pids controllers"


def _own_groups() -> dict[str, str]:
    """Return controller -> this process's group; "" is version 2's."""
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    return groups


def _usable(parent: Path, controllers: tuple[str, ...], name: str) -> bool:
    try:
        enabled = (parent / name).read_text(encoding="utf-8").split()
    except OSError:
        return False
    return all(c in enabled for c in controllers) and os.access(parent, os.W_OK)


def _open_peak(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # version 2 before Linux 5.19 has no peak
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _field(data: bytes) -> int:
    """Return the number of line "oom_kill N"."""
    for line in data.splitlines():
        key, _, value = line.partition(b" ")
        if key == b"oom_kill":
            return int(value)
    return 0


def _number(data: bytes) -> int:
    return int(data) if data.strip().isdigit() else 0
