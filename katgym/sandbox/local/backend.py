"""Backend `local`: sandboxes from Linux namespaces, with no daemon and nothing to install.

Each katgym process has a launcher per interpreter and set of preloaded modules; sandboxes are its
forks. Not protected against: bugs in the kernel that sandboxes share with the host, and side
channels. Not here: one sandbox (`local_link.py`), what happens inside (`launcher/`), what this
machine allows (`probes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.sandbox.base import Enforcement, SandboxError, SandboxUnavailableError
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.client import LauncherClient, LauncherKey, remove_dead_folders
from katgym.sandbox.local.local_link import LocalLink
from katgym.sandbox.local.probes import probe_enforcement
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec

LEVELS = ("namespaces+overlay+cgroup", "namespaces+overlay", "namespaces+copy", "none")
"""Best first. Without "cgroup" limits hold for a process or a command, not for all; "copy" is
slower; "none" isolates nothing and needs `unsafe=True`."""
_ADVICE = (
    "user namespaces with mounts are needed (Linux 5.12 or newer; on Ubuntu: sysctl"
    " kernel.apparmor_restrict_unprivileged_userns=0); or use backend 'docker'"
)
_RELEASE_DELAY_S = 0.05
"""So long after its end what a sandbox held stays: a loop about to be closed starts nothing."""
_OWN_FOLDERS = ("/tmp", "/dev", "/proc", "/home/agent")
_TAKEN = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "usr")
_log = logging.getLogger(__name__)


class LocalBackend(SandboxBackend):
    """Makes local sandboxes; see the module."""

    name = "local"

    def __init__(self, *, unsafe: bool = False, level: str | None = None) -> None:
        """Prepare; nothing is started before the first `create`.

        unsafe: go on where this machine cannot isolate at all; recorded in `provenance`.
        level: one of `LEVELS`; None takes the best that works here, down to the last safe one.
        """
        if level is not None and level not in LEVELS:
            raise UnknownNameError(unknown_name("sandbox level", level, LEVELS))
        if level == "none" and not unsafe:
            raise UsageError("level 'none' isolates nothing; unsafe=True accepts that")
        self.unsafe = unsafe
        self.live: dict[str, LocalLink] = {}
        self.snapshots: dict[str, LauncherClient] = {}
        self.level: str | None = None
        """What sandboxes have; known once one was made."""
        self._asked = level
        self._launchers: dict[LauncherKey, LauncherClient] = {}
        self._num_closings = 0
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._ended: list[LocalLink] = []
        """Those that ended by themselves and still hold something."""
        self._settling: asyncio.Task[None] | None = None
        self._groups, self.groups_text = cgroups.find()
        if level is not None and not level.endswith("+cgroup"):
            self._groups, self.groups_text = None, f"not used: level={level!r}"
        self._enforcement: Enforcement | None = None

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a live sandbox; refuse where isolation is incomplete, unless `unsafe`."""
        if not self.unsafe:
            found = await self.enforcement()
            if not found.is_safe:
                raise SandboxUnavailableError(
                    f"local sandboxes do not isolate on this machine ({'; '.join(found.notes)});"
                    " LocalBackend(unsafe=True) goes on with what there is, and results say so"
                )
        return await self.create_unchecked(spec)

    async def create_unchecked(self, spec: SandboxSpec) -> Sandbox:
        """Create without asking whether this machine isolates; the probes do."""
        if spec.image is not None:
            raise UsageError(
                f"backend 'local' runs no images, got image={spec.image!r}; use backend 'docker'"
            )
        if spec.preload and spec.python is None:
            raise UsageError("`preload` needs `python`: the interpreter that has the modules")
        for place in (spec.workdir, *spec.folders):
            if place.split("/")[1] in _TAKEN or place.rstrip("/") in ("/tmp", "/home"):
                raise UsageError(f"{place!r} is the system's; take another, such as '/workspace'")
        _check_interpreter(spec.python)
        key = LauncherKey(python=spec.python, preload=spec.preload)
        async with self._starting:
            launcher = self._launchers.get(key)
            if launcher is None or not launcher.is_open:
                num_closings = self._num_closings
                launcher = await self._start_launcher(key)
                if self._num_closings != num_closings:  # `aclose` knew nothing of it
                    await launcher.close()
                    raise SandboxError("the backend was closed while a sandbox was being made")
                self._launchers[key] = launcher
        if spec.folders and launcher.workspace == "plain":
            raise UsageError(f"without isolation there are no further folders: {spec.folders!r}")
        return Sandbox(await self.make(spec, launcher, None), self)

    async def _start_launcher(self, key: LauncherKey) -> LauncherClient:
        """Start one at the level that was asked for, or at the best one."""
        asked = self._asked or "auto"
        if asked.endswith("+cgroup") and self._groups is None:
            raise SandboxUnavailableError(f"level {asked!r} cannot be had: {self.groups_text}")
        workspaces = dict(zip(LEVELS, ("overlay", "overlay", "copy", "plain"), strict=True))
        try:
            return await self._try(key, workspaces.get(asked, "auto"))
        except SandboxUnavailableError as e:
            if not self.unsafe or self._asked is not None:
                raise SandboxUnavailableError(f"{e}; {_ADVICE}") from e
            _log.warning("unsafe: sandboxes without any isolation, because %s", e)
            return await self._try(key, "plain")

    async def _try(self, key: LauncherKey, workspace: str) -> LauncherClient:
        if workspace == "plain":
            self._groups = None
        launcher = LauncherClient(key, workspace=workspace, has_group=self._groups is not None)
        await launcher.start()
        self.level = {"plain": "none"}.get(
            launcher.workspace,
            f"namespaces+{launcher.workspace}" + ("+cgroup" if self._groups else ""),
        )
        return launcher

    async def make(self, spec: SandboxSpec, launcher: LauncherClient, at: str | None) -> LocalLink:
        """Return the link to a new sandbox, started from a snapshot or from the layers."""
        try:
            group = None if self._groups is None else self._groups.make(spec.limits)
        except OSError as e:
            raise SandboxError(f"a control group cannot be made: {e}") from e
        link = LocalLink(self, spec, launcher, group)
        self.live[link.id] = link
        try:
            await link.start(at)
        except BaseException:
            await link.kill()
            raise
        return link

    def discard(self, link: LocalLink) -> None:
        """Strike a sandbox off the list of those that live."""
        self.live.pop(link.id, None)

    def release_soon(self, link: LocalLink) -> None:
        """Take note of a sandbox that ended by itself; see `_settle`."""
        self.discard(link)
        self._ended.append(link)
        with contextlib.suppress(RuntimeError):  # the event loop is ending; `gc` does the rest
            asyncio.get_running_loop().call_later(_RELEASE_DELAY_S, self._start_settling)

    def _start_settling(self) -> None:
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        """Release what sandboxes that ended by themselves hold."""
        while self._ended:
            await self._ended.pop().release()

    async def enforcement(self) -> Enforcement:
        async with self._probing:
            if self._enforcement is None:
                self._enforcement = await probe_enforcement(self)
            return self._enforcement

    async def gc(self) -> int:
        """Remove what dead katgym processes left; return how many sandboxes that were.

        Their sandboxes died with them, but for those of level "none", whose folders are removed.
        """
        groups = [] if self._groups is None else list(self._groups.leftovers())
        for group in groups:
            group.end()
            await group.remove()
        await asyncio.to_thread(remove_dead_folders)
        return len(groups)

    async def aclose(self) -> None:
        self._num_closings += 1
        await self._kill_all()
        if self._settling is not None:
            await self._settling
        await self._settle()
        for launcher in self._launchers.values():
            await launcher.close()
        self._launchers.clear()
        self.snapshots.clear()
        await self._kill_all()  # those that were being made

    async def _kill_all(self) -> None:
        for link in list(self.live.values()):
            await link.kill()

    def provenance(self) -> Mapping[str, Any]:
        return {"backend": self.name, "level": self.level, "unsafe": self.unsafe}


def _check_interpreter(python: str | None) -> None:
    if python is None:
        return
    if not Path(python).is_absolute() or not os.access(python, os.X_OK):
        raise UsageError(f"`python` is the absolute path of an interpreter, got {python!r}")
    for folder in _OWN_FOLDERS:
        if python.startswith(folder + "/"):
            raise UsageError(
                f"the interpreter {python!r} lies below {folder}, which every sandbox has of its"
                " own; make its venv elsewhere"
            )
