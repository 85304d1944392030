"""Control groups of local sandboxes: memory and processes as hard limits, counters read back.

Version 2 where a writable group hands on both controllers, else version 1 as root. A sandbox's
supervisor stays outside the limits, so that what a command does never costs the sandbox: in version
1 each command joins by itself, in version 2 it is born inside. Not here: doing so
(`launcher/confinement.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.local.identity import SUBUID_BASE
from katgym.system.processes import process_start

_ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"katgym-(\d+)-(\d+)-\d+")
_CONTROLLERS = ("memory", "pids")
_OWN_PROCESSES = 8
"""Guardians, which count towards a limit of processes that is meant for commands."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFds:
    """Open files of a group, which the caller closes."""

    at_start: tuple[int, ...] = ()
    """The supervisor writes "0" to them, and is in the sandbox's group but not under its limits."""
    per_command: tuple[int, ...] = ()
    """A command's first process writes "0" to them..."""
    birthplace: int = -1
    """... or is born in this directory (version 2)."""

    def all(self) -> list[int]:
        """Return every descriptor."""
        born = [self.birthplace] if self.birthplace >= 0 else []
        return [*self.at_start, *self.per_command, *born]


class Meter:
    """Counters of a group during one command; close it."""

    def __init__(self, group: Group) -> None:
        memory = group.folders["memory"]
        is_new = group.version == 2
        self._kill_file = str(memory / ("memory.events" if is_new else "memory.oom_control"))
        peak = str(memory / ("memory.peak" if is_new else "memory.max_usage_in_bytes"))
        try:
            # Version 2 (Linux 6.12) restarts the peak for those who read through this descriptor.
            self._peak_fd = os.open(peak, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._peak_fd, b"0")
        except OSError:
            try:
                self._peak_fd = os.open(peak, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._peak_fd = -1
        self._kills_before = self._kills()

    def read(self) -> tuple[bool, int]:
        """Return whether the kernel killed for memory since, and the peak in bytes."""
        try:
            peak = 0 if self._peak_fd < 0 else int(os.pread(self._peak_fd, 64, 0) or 0)
        except OSError:  # the group was removed meanwhile
            return False, 0
        return self._kills() > self._kills_before, peak

    def close(self) -> None:
        """Close it."""
        if self._peak_fd >= 0:
            os.close(self._peak_fd)
            self._peak_fd = -1

    def _kills(self) -> int:
        try:
            fd = os.open(self._kill_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            fields = os.read(fd, 1 << 12).split()
        finally:
            os.close(fd)
        return int(fields[fields.index(b"oom_kill") + 1]) if b"oom_kill" in fields else 0


class Group:
    """One sandbox's group (in version 1: one in each hierarchy).

    folders: controller -> the folder that has the limits; outer: further folders around them.
    """

    def __init__(
        self, folders: Mapping[str, Path], *, version: int, outer: tuple[Path, ...] = ()
    ) -> None:
        self.folders = dict(folders)
        self.version = version
        self.outer = outer

    def open(self) -> GroupFds:
        """Return the descriptors that a sandbox needs."""
        if self.version == 1:
            procs = [folder / "cgroup.procs" for folder in self._list_limited()]
            fds = tuple(os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in procs)
            return GroupFds(per_command=fds)
        start = os.open(self.outer[0] / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        place = os.open(self._list_limited()[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return GroupFds(at_start=(start,), birthplace=place)

    def _list_limited(self) -> list[Path]:
        return list(dict.fromkeys(self.folders.values()))

    def end(self) -> None:
        """Kill every process in it."""
        for folder in (*self._list_limited(), *self.outer):
            try:
                pids = (folder / "cgroup.procs").read_text(encoding="ascii").split()
            except OSError:
                continue  # it is gone
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)

    async def remove(self) -> None:
        """Remove it; what still ends in it is waited for a moment, the rest is left to `gc`.

        What its commands have read of the host's files leaves memory with it: another sandbox can
        tell whether a file is there.
        """
        if self._num_cached_bytes():
            try:
                await asyncio.to_thread(self._reclaim)  # takes milliseconds
            except RuntimeError:  # at the interpreter's exit there are no more threads
                self._reclaim()
        for folder in (*self._list_limited(), *self.outer):
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as e:
                    if e.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise
                    await asyncio.sleep(0.001)
                else:
                    break

    def _num_cached_bytes(self) -> int:
        """Return how much of files it holds in memory, but for file systems that are memory."""
        try:
            text = (self.folders["memory"] / "memory.stat").read_text(encoding="ascii")
        except OSError:  # it is gone
            return 0
        counts = {name: int(value) for name, value in map(str.split, text.splitlines())}
        return counts["file" if self.version == 2 else "cache"] - counts.get("shmem", 0)

    def _reclaim(self) -> None:
        # All of it is clean or nobody's by now. Version 2 says EAGAIN if it freed less than asked.
        name = "memory.reclaim" if self.version == 2 else "memory.force_empty"
        with contextlib.suppress(OSError):
            text = str(self._num_cached_bytes()) if self.version == 2 else "0"
            (self.folders["memory"] / name).write_text(text, encoding="ascii")


class GroupMaker:
    """Makes groups below the given places; `find` looks for them on this machine."""

    def __init__(self, parents: Mapping[str, Path], *, version: int) -> None:
        self.parents = dict(parents)
        self.version = version

    def make(self, limits: SandboxLimits) -> Group:
        """Return a new group with the limits set; `OSError` if that fails."""
        start = process_start(os.getpid())
        name = f"katgym-{os.getpid()}-{start}-{next(_numbers)}"
        group = self._group(name)
        try:
            # Outermost first in version 2; a sandbox's own processes must be able to be born there.
            for folder in (*reversed(group.outer), *group._list_limited()):
                folder.mkdir()
                if group.outer and folder == group.outer[-1]:
                    text = " ".join(f"+{name}" for name in _CONTROLLERS)
                    (folder / "cgroup.subtree_control").write_text(text)
                if self.version == 2 and os.geteuid() == 0:
                    for path in (folder, folder / "cgroup.procs"):
                        os.chown(path, SUBUID_BASE, SUBUID_BASE)
            memory, pids = group.folders["memory"], group.folders["pids"]
            if limits.max_processes is not None:
                (pids / "pids.max").write_text(str(limits.max_processes + _OWN_PROCESSES))
            if limits.memory_bytes is not None:
                most = swap_most = str(limits.memory_bytes)
                file, swap_file = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
                if self.version == 2:
                    file, swap_file, swap_most = "memory.max", "memory.swap.max", "0"
                (memory / file).write_text(most)
                with contextlib.suppress(FileNotFoundError):  # no swap accounting
                    (memory / swap_file).write_text(swap_most)
        except OSError:
            for folder in (*group._list_limited(), *group.outer):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        return group

    def _group(self, name: str) -> Group:
        if self.version == 1:
            return Group({c: p / name for c, p in self.parents.items()}, version=1)
        top = self.parents["memory"] / name
        folders = dict.fromkeys(_CONTROLLERS, top / "commands")
        return Group(folders, version=2, outer=(top / "supervisor", top))

    def leftovers(self) -> Iterator[Group]:
        """Yield the groups of katgym processes that have died."""
        names: set[str] = set()
        for parent in self.parents.values():
            names.update(path.name for path in parent.glob("katgym-*"))
        for name in sorted(names):
            found = _NAME.fullmatch(name)
            if found and process_start(int(found[1])) != int(found[2]):
                yield self._group(name)


def find(root: Path = _ROOT, own: dict[str, str] | None = None) -> tuple[GroupMaker | None, str]:
    """Return what makes groups here, or None, and in words what was found.

    root: where the hierarchies are mounted; own: controller -> this process's group ("" is version
    2's), by default as the kernel tells.
    """
    if own is None:
        own = {}
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, names, path = line.split(":", 2)
            own |= dict.fromkeys(names.split(","), path)
    for base in (root, root / "unified"):
        group = base / own.get("", "").lstrip("/")
        # A group with processes hands nothing on, so the nearest one above that does is used.
        while group.is_relative_to(base):
            if _hands_on(group):
                return GroupMaker(dict.fromkeys(_CONTROLLERS, group), version=2), "cgroup v2"
            group = group.parent
    parents = {name: root / name / own.get(name, "").lstrip("/") for name in _CONTROLLERS}
    if all((p / "cgroup.procs").exists() and os.access(p, os.W_OK) for p in parents.values()):
        return GroupMaker(parents, version=1), "cgroup v1"
    return None, "no cgroup that may be written, with memory and pids controllers"


def _hands_on(group: Path) -> bool:
    try:
        enabled = (group / "cgroup.subtree_control").read_text(encoding="utf-8").split()
    except OSError:
        return False
    places = (group, group / "cgroup.procs")
    return set(_CONTROLLERS) <= set(enabled) and all(os.access(p, os.W_OK) for p in places)
