"""The confinement of a local sandbox's command on its way from supervisor to program.

Runs inside the sandbox, standard library only. Not here: the sandbox's own namespaces
(`launcher.py`), the steps' order (`katgym.sandbox.supervisor.guardian`).
"""

from __future__ import annotations

import errno
import os
import signal
import stat

from katgym.sandbox.local.launcher import linux, rootfs
from katgym.sandbox.supervisor import syscalls
from katgym.sandbox.supervisor.guardian import Confinement, set_rlimits
from katgym.sandbox.supervisor.seccomp import SeccompFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Agent:
    """Whom commands run as.

    uid: inside the sandbox; is_single_uid: this user namespace holds one uid, 0; the agent's uid is
    made in another below; seccomp: what no command may ask of the kernel.
    """

    def __init__(self, uid: int, seccomp: SeccompFilter, *, is_single_uid: bool) -> None:
        self.uid = uid
        self.seccomp = seccomp
        self.is_single_uid = is_single_uid
        self.owner = (0, 0) if is_single_uid else (uid, uid)
        self.covers: list[str] = []
        """What of /proc is covered for commands."""


class NamespaceConfinement(Confinement):
    """A PID namespace for each command, no capabilities, no new privileges, seccomp.

    has_group: whether control groups limit processes; if not, each command gets a user namespace,
        as the kernel counts the processes of a user there.
    joins, birthplace: descriptors of the control group (see `cgroups.GroupFds`), kept open.
    """

    is_nested = True

    def __init__(
        self,
        agent: Agent,
        *,
        has_group: bool,
        joins: tuple[int, ...] = (),
        birthplace: int = -1,
    ) -> None:
        self.agent = agent
        self.has_own_namespace = agent.is_single_uid or not has_group
        self.joins = joins
        self.birthplace = birthplace
        self.owner = agent.owner

    def fork_guardian(self) -> int:
        """Fork into a PID namespace, whose PID 1 the guardian is, and a mount namespace."""
        flags = linux.CLONE_NEWPID | linux.CLONE_NEWNS
        pid = linux.fork_into(flags, self.birthplace)
        if pid == 0:
            for fd in self.joins:
                os.write(fd, b"0")  # this process
        return pid

    def enter_guardian(self) -> None:
        """Give the command's namespace a /proc of its own."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("proc", "/proc", "proc", flags)
        rootfs.cover_proc(self.agent.covers)
        if self.joins or self.birthplace >= 0:
            linux.unshare(linux.CLONE_NEWCGROUP)  # the group's name is the host's business

    def enter_command(self, user: str, limits: Mapping[str, Any]) -> None:
        """Become `user` without any privilege."""
        is_single_uid = self.agent.is_single_uid
        uid = {"agent": self.agent.uid, "root": 0}.get(user)
        if uid is None:
            uid = int(user) if user.isdigit() else -1
        if not 0 <= uid < 65_536 or (is_single_uid and uid not in (0, self.agent.uid)):
            raise OSError(errno.EINVAL, f"there is no user {user!r} in this sandbox")
        for fd in range(3):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):  # so that /dev/stdout can be opened by name
                os.fchown(fd, 0 if is_single_uid else uid, -1)
        if not is_single_uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self is not the command's own
        if self.has_own_namespace:
            outer = 0 if is_single_uid else uid
            # A user namespace where there is nobody else; `outer` is who this process was.
            linux.unshare(linux.CLONE_NEWUSER)
            linux.write("/proc/self/setgroups", "deny")
            for name in ("uid_map", "gid_map"):
                linux.write(f"/proc/self/{name}", f"{uid} {outer} 1")
            linux.forbid_user_namespaces()
            linux.drop_bounding_set()  # it was filled again
            if limits.get("max_processes"):
                set_rlimits({"NPROC": limits["max_processes"]})
        if uid == 0 or self.has_own_namespace:  # leaving uid 0 has dropped them already
            linux.drop_capabilities()
        # A change of capabilities takes it away again.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        self.agent.seccomp.install()
