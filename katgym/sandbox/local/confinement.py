"""How a command of a local sandbox is confined on its way from supervisor to program.

Runs inside the sandbox, standard library only. Not here: the sandbox's own namespaces
(`launcher.py`), the steps' order (`katgym.sandbox.supervisor.guardian`).
"""

from __future__ import annotations

import errno
import os
import signal
import stat

from katgym.sandbox.local import syscalls
from katgym.sandbox.supervisor.guardian import Confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class NamespaceConfinement(Confinement):
    """A PID namespace for each command, no capabilities, no new privileges, seccomp.

    is_single_uid: this user namespace holds one uid, 0; the agent's uid is made in another below.
    """

    is_nested = True

    def __init__(self, agent: int, seccomp: syscalls.SeccompFilter | None, *, is_single_uid: bool):
        self.agent = agent
        self.seccomp = seccomp
        self.is_single_uid = is_single_uid
        self.owner = (0, 0) if is_single_uid else (agent, agent)

    def fork_guardian(self) -> int:
        """Fork into a PID namespace, whose PID 1 the guardian is, and a mount namespace."""
        return syscalls.fork_into(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)

    def enter_guardian(self) -> None:
        """Give the command's namespace a /proc of its own."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)

    def enter_command(self, user: str, limits: Mapping[str, Any]) -> None:
        """Become `user` without any privilege."""
        uid = self._uid(user)
        for fd in range(3):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):  # so that /dev/stdout can be opened by name
                os.fchown(fd, 0 if self.is_single_uid else uid, -1)
        if self.is_single_uid:
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to nobody
            _enter_user_namespace(uid)
        else:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        if uid == 0 or self.is_single_uid:  # leaving uid 0 has dropped them already
            syscalls.drop_capabilities()
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self is not the command's own
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        if self.seccomp is not None:
            self.seccomp.install()

    def _uid(self, user: str) -> int:
        uid = {"agent": self.agent, "root": 0}.get(user)
        if uid is None:
            uid = int(user) if user.isdigit() else -1
        if not 0 <= uid < 65_536 or (self.is_single_uid and uid not in (0, self.agent)):
            raise OSError(errno.EINVAL, f"there is no user {user!r} in this sandbox")
        return uid


def _enter_user_namespace(uid: int) -> None:
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} 0 1"), ("gid_map", f"{uid} 0 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
