"""The birth of a sandbox from a fork of the launcher: namespaces, files, descriptors, supervisor.

Standard library only. Not here: the launcher (`launcher.py`), what confines a command
(`confinement.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import time

from katgym.sandbox.local.launcher import linux, rootfs
from katgym.sandbox.local.launcher.confinement import Agent, NamespaceConfinement
from katgym.sandbox.supervisor import program, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

NAMESPACES = linux.CLONE_NEWPID | linux.CLONE_NEWNS
_FURTHER_NAMESPACES = (
    linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWNET | linux.CLONE_NEWCGROUP
)
_CHANNEL_FD = 10
_CONTROL_FD = 11
_GROUP_FD = 12
_NET_FIGURES = ("protocols", "sockstat", "sockstat6", "softnet_stat", "stat")
_PORTS = (32_768, 55_000)
"""Bounds that the range of ports starts and ends above."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def become_sandbox(
    agent: Agent, request: dict[str, Any], fds: list[int], control_fd: int, mount_fd: int
) -> NoReturn:
    """Be PID 1 of a sandbox; never returns.

    fds: the channel to katgym, then those of the control group (see `cgroups.GroupFds`), of which
    `request["num_joins"]` are to be joined at once.
    """
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        num_joins = request["num_joins"]
        for fd in fds[1 : 1 + num_joins]:
            os.write(fd, b"0")  # this process
        # Not in the fork: a network takes milliseconds, for which the launcher need not wait.
        linux.unshare(_FURTHER_NAMESPACES)
        socket.sethostname("sandbox")
        _raise_loopback()
        uid, gid = agent.owner
        area = {**request, "uid": uid, "gid": gid}
        rootfs.enter("root", request["workdir"], mount_fd, area)
        _separate_network()
        group_fds = _keep_descriptors(fds[0], control_fd, fds[1 + num_joins :])
        linux.drop_bounding_set()
        is_born_inside = request["is_born_inside"]
        confinement = NamespaceConfinement(
            agent,
            has_group=bool(group_fds),
            joins=() if is_born_inside else group_fds,
            birthplace=group_fds[0] if is_born_inside else -1,
        )
        _serve(request, confinement)
    except BaseException as error:  # this process must never go on as a second launcher
        os.write(2, f"sandbox: {error!r}\n".encode())
    os._exit(1)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _separate_network() -> None:
    """Hide the figures of all networks of the machine, and draw the range of ports anew.

    The table that ports of connections are drawn from is one for the machine, and counts; without
    the range of the sandbox that it was counted in, the remainder that a port is tells nothing.
    """
    for name in _NET_FIGURES:
        if os.path.exists("/proc/net/" + name):
            os.chmod("/proc/net/" + name, 0)
    low, high = (start + int.from_bytes(os.urandom(2), "big") % 5000 for start in _PORTS)
    linux.write("/proc/sys/net/ipv4/ip_local_port_range", f"{low & ~1} {high | 1}")


def _keep_descriptors(channel_fd: int, control_fd: int, group_fds: list[int]) -> tuple[int, ...]:
    """Keep what this sandbox needs and /dev/null; close what belongs to the launcher and to others.

    Returns where the control group's are.
    """
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (channel_fd, control_fd, *group_fds)]
    for number, fd in enumerate(kept):
        os.dup2(fd, _CHANNEL_FD + number, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, _CHANNEL_FD)
    syscalls.close_from(_GROUP_FD + len(group_fds))
    return tuple(range(_GROUP_FD, _GROUP_FD + len(group_fds)))


def _serve(request: dict[str, Any], confinement: NamespaceConfinement) -> None:
    workdir = request["workdir"]

    def exchange(packet: program.Request, payload: bytes) -> program.Reply:
        (mount_fd,) = packet["fds"]
        supervisor.end_all()
        linux.umount(workdir)
        linux.move_mount(mount_fd, workdir)
        os.close(mount_fd)
        return {}, b""

    supervisor = program.Supervisor(
        (_CHANNEL_FD, _CHANNEL_FD),
        confinement,
        workdir=workdir,
        wiped=("/tmp", "/dev/shm", "/home/agent", *request["folders"]),
        ops={"mount": exchange},
        deadline=time.monotonic() + request["ttl_s"],
        may_call=request["may_call"],
    )
    control = socket.socket(fileno=_CONTROL_FD)
    supervisor.add_fd_socket(control)
    supervisor.serve()
    os._exit(0)
