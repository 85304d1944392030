"""Sandboxes without isolation, level "none": folders and process groups, for `unsafe=True` alone.

Commands run as the user who runs katgym, and can do what that user can; only time, output and
per-process limits hold. For trusted code on systems without namespaces. Standard library only. Not
here: what this has in common with real ones (`launcher.py`).
"""

from __future__ import annotations

import importlib
import os
import signal
import time

from katgym.sandbox.local.launcher.copies import CopyWorkspace, remove_tree
from katgym.sandbox.local.launcher.launcher import Launcher, MadeSandbox
from katgym.sandbox.supervisor import guardian, processes, program, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CHANNEL_FD = 10


class PlainUpper:
    """A folder that holds one workspace; see `upper.Upper`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.num_users = 1
        self.own = self.upper = f"{path}/u"
        os.makedirs(self.own)

    def release(self) -> None:
        """Give up one use; the last one removes the folder."""
        self.num_users -= 1
        if self.num_users == 0:
            self.move(self.own)
            remove_tree(self.path)

    def move(self, target: str) -> None:
        """Be at `target` from here on."""
        if target != self.upper:
            os.rename(self.upper, target)
            self.upper = target


class PlainLauncher(Launcher):
    """Makes folders and process groups where `Launcher` makes namespaces."""

    def prepare(self) -> None:
        """Import what is asked for; make the state folder's parts."""
        # No PDEATHSIG: at the end of the stream it has to end what is below it.
        for name in self.config["preload"]:
            importlib.import_module(name)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        os.chdir(self.config["state"])
        for name in ("up", "boxes", "empty"):
            os.mkdir(name)
        os.symlink(self.config["layers"], "layers")
        self.is_copying, self.overlay_problem = True, ""

    def _new_upper(self, disk_bytes: int | None = None, max_files: int | None = None) -> Any:
        self.num_uppers += 1
        return PlainUpper(f"{self.config['state']}/up/{self.num_uppers}")

    def _new_workspace(
        self, request: dict[str, Any], layers: list[str], frozen: list[Any]
    ) -> CopyWorkspace:
        top = self._new_upper()
        try:
            return CopyWorkspace(layers, frozen, top, (os.geteuid(), os.getegid()))
        except OSError:
            top.release()
            raise

    def _start(self, request: dict[str, Any], fds: list[int], workspace: Any) -> MadeSandbox:
        box = f"{self.config['state']}/boxes/{request['sandbox']}"
        for name in ("tmp", "home"):
            os.makedirs(f"{box}/{name}")
        workspace.top.move(f"{box}/workspace")
        pid = os.fork()
        if pid == 0:
            _become_plain(request, fds[0], box)
        return MadeSandbox(pid, workspace, None)

    def _exchange(self, sandbox: MadeSandbox, workspace: Any) -> None:
        old: Any = sandbox.workspace
        place = old.top.upper
        old.top.move(old.top.own)
        workspace.top.move(place)
        sandbox.workspace = workspace

    def _end(self, sandbox: MadeSandbox) -> None:
        os.kill(sandbox.pid, signal.SIGKILL)
        os.waitpid(sandbox.pid, 0)
        # What it ran is this process's now: everything that is not below another sandbox.
        others = frozenset([*(made.pid for made in self.sandboxes.values()), *self.readers])
        processes.end_descendants(processes.Usage(), others)

    def _do_drop(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        answer = super()._do_drop(request, fds)
        remove_tree(f"{self.config['state']}/boxes/{request['sandbox']}")
        return answer


def _become_plain(request: dict[str, Any], channel_fd: int, box: str) -> NoReturn:
    try:
        os.setsid()
        os.dup2(channel_fd, _CHANNEL_FD, inheritable=False)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.closerange(3, _CHANNEL_FD)
        syscalls.close_from(_CHANNEL_FD + 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        supervisor = program.Supervisor(
            (_CHANNEL_FD, _CHANNEL_FD),
            guardian.Confinement(),
            workdir=f"{box}/workspace",
            tmpdir=f"{box}/tmp",
            wiped=(f"{box}/tmp", f"{box}/home"),
            deadline=time.monotonic() + request["ttl_s"],
            may_call=request["may_call"],
        )
        supervisor.serve()
        os._exit(0)
    except BaseException as error:  # this process must never go on as a second launcher
        os.write(2, f"sandbox: {error!r}\n".encode())
    os._exit(1)
