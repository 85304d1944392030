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
from katgym.sandbox.supervisor.guardian import Confinement, set_rlimits
from katgym.sandbox.supervisor.seccomp import SeccompFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class NamespaceConfinement(Confinement):
    """A PID namespace for each command, no capabilities, no new privileges, seccomp.

    is_single_uid: this user namespace holds one uid, 0; the agent's uid is made in another below.
    has_group: whether control groups limit processes; if not, each command gets a user namespace,
        as the kernel counts the processes of a user there.
    joins, birthplace: descriptors of the control group (see `cgroups.GroupFds`), kept open.
    """

    is_nested = True

    def __init__(
        self,
        agent: int,
        seccomp: SeccompFilter,
        *,
        is_single_uid: bool,
        has_group: bool,
        joins: tuple[int, ...] = (),
        birthplace: int = -1,
    ) -> None:
        self.agent = agent
        self.seccomp = seccomp
        self.is_single_uid = is_single_uid
        self.has_own_namespace = is_single_uid or not has_group
        self.joins = joins
        self.birthplace = birthplace
        self.owner = (0, 0) if is_single_uid else (agent, agent)

    def fork_guardian(self) -> int:
        """Fork into a PID namespace, whose PID 1 the guardian is, and a mount namespace."""
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS
        pid = syscalls.fork_into(flags, self.birthplace)
        if pid == 0:
            for fd in self.joins:
                os.write(fd, b"0")  # this process
        return pid

    def enter_guardian(self) -> None:
        """Give the command's namespace a /proc of its own."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", "/proc", "proc", flags)
        if self.joins or self.birthplace >= 0:
            syscalls.unshare(syscalls.CLONE_NEWCGROUP)  # the group's name is the host's business

    def enter_command(self, user: str, limits: Mapping[str, Any]) -> None:
        """Become `user` without any privilege."""
        uid = self._uid(user)
        for fd in range(3):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):  # so that /dev/stdout can be opened by name
                os.fchown(fd, 0 if self.is_single_uid else uid, -1)
        if not self.is_single_uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self is not the command's own
        if self.has_own_namespace:
            _enter_user_namespace(uid, 0 if self.is_single_uid else uid)
            syscalls.drop_bounding_set()  # it was filled again
            if limits.get("max_processes"):
                set_rlimits({"NPROC": limits["max_processes"]})
        if uid == 0 or self.has_own_namespace:  # leaving uid 0 has dropped them already
            syscalls.drop_capabilities()
        # A change of capabilities takes it away again.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        self.seccomp.install()

    def _uid(self, user: str) -> int:
        uid = {"agent": self.agent, "root": 0}.get(user)
        if uid is None:
            uid = int(user) if user.isdigit() else -1
        if not 0 <= uid < 65_536 or (self.is_single_uid and uid not in (0, self.agent)):
            raise OSError(errno.EINVAL, f"there is no user {user!r} in this sandbox")
        return uid


def _enter_user_namespace(uid: int, outer: int) -> None:
    """Be `uid` in a user namespace where there is nobody else; `outer` is who this process was."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    texts = {"setgroups": "deny", "uid_map": f"{uid} {outer} 1", "gid_map": f"{uid} {outer} 1"}
    for name, text in texts.items():
        syscalls.write(f"/proc/self/{name}", text)
    syscalls.forbid_user_namespaces()
