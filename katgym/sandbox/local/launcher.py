"""The process that makes local sandboxes: a small forking server in namespaces of its own.

Started by `backend.py` as `python -c BOOT`, standard library only. It holds every writable layer in
memory-backed mounts that nobody else sees, so its death leaves nothing behind; and it dies with
katgym. Requests come as packets (JSON, descriptors beside it), replies go as frames like the
supervisor's. Not here: commands, files (`katgym.sandbox.supervisor`), cgroups (`cgroups.py`).
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time

from katgym.sandbox.local import overlay, rootfs, seccomp, syscalls
from katgym.sandbox.local.confinement import NamespaceConfinement
from katgym.sandbox.supervisor import program
from katgym.sandbox.supervisor import syscalls as supervisor_syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CHANNEL_FD, _CONTROL_FD = 10, 11
_FURTHER_NAMESPACES = (
    syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWCGROUP
)
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_ACK_TIMEOUT_S = 10.0


class _Sandbox:
    """A live sandbox as the launcher knows it."""

    def __init__(self, pid: int, workspace: overlay.Workspace, control: socket.socket) -> None:
        self.pid = pid
        self.workspace = workspace
        self.control = control


class Launcher:
    """Serves requests one after the other; each takes milliseconds."""

    def __init__(self, requests: socket.socket, replies: socket.socket, config: dict[str, Any]):
        self.requests = requests
        self.replies = replies
        self.config = config
        self.agent: int = config["agent_uid"]
        self.is_single_uid: bool = config["is_single_uid"]
        self.sandboxes: dict[str, _Sandbox] = {}
        self.snapshots: dict[str, list[overlay.Upper]] = {}
        self.num_uppers = 0
        self.seccomp = seccomp.build_filter()

    def prepare(self) -> None:
        """Import what is asked for, make the root file system, enter the user namespace."""
        syscalls.name_process("katgym-sandbox")  # commands can read it, as that of their PID 1
        for name in self.config["preload"]:
            importlib.import_module(name)
        state = self.config["state"]
        if self.is_single_uid:
            _enter_single_user_namespace()
        else:
            syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("launcher", state, "tmpfs", syscalls.MS_NOSUID, "mode=0755,size=16m")
        os.chdir(state)
        rootfs.build_template(f"{state}/root", self.config["binds"], self.config["masks"])
        for name in ("layers", "up", "empty"):
            os.mkdir(name)
        syscalls.mount(self.config["layers"], "layers", "", syscalls.MS_BIND | syscalls.MS_REC)
        if not self.is_single_uid:
            base = self.config["subuid_base"]
            os.chown("root", base, base)
            self._enter_mapped_user_namespace()
        syscalls.mount("uppers", "up", "tmpfs", syscalls.MS_NOSUID, "mode=0755")
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        gc.collect()
        gc.freeze()

    def _enter_mapped_user_namespace(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        self.reply({"op": "map", "pid": os.getpid()})
        if self.requests.recv(64) != b"mapped":
            sys.exit("launcher: the user namespace was not mapped")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # A change of ids switches it off; without it katgym's death would go unnoticed for a while.
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)

    def serve(self) -> None:
        """Serve until katgym closes its end, or dies."""
        self.reply({"op": "ready", "pid": os.getpid()})
        while True:
            data, fds, _, _ = socket.recv_fds(self.requests, 1 << 20, 16)
            if not data:
                break
            request = json.loads(data)
            payload = b""
            try:
                answer, payload = getattr(self, "_do_" + request["op"])(request, fds)
            except OSError as e:
                answer = {"error": str(e), "errno": e.errno}
            finally:
                for fd in fds:
                    os.close(fd)
            self.reply({**answer, "id": request["id"]}, payload)
        for name in list(self.sandboxes):
            self._do_drop({"sandbox": name}, [])

    def reply(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame."""
        data = json.dumps(header).encode()
        self.replies.sendall(struct.pack("!II", len(data), len(payload)) + data + payload)

    def _new_upper(self, request: dict[str, Any]) -> overlay.Upper:
        self.num_uppers += 1
        return overlay.Upper(
            "up", str(self.num_uppers), request["disk_bytes"], request["max_files"]
        )

    def _new_workspace(
        self, request: dict[str, Any], layers: list[str], frozen: list[overlay.Upper]
    ) -> overlay.Workspace:
        top = self._new_upper(request)
        owner = (0, 0) if self.is_single_uid else (self.agent, self.agent)
        try:
            return overlay.Workspace(layers, frozen, top, owner)
        except OSError:
            top.release()
            raise

    def _do_create(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        layers = [f"layers/{digest}/tree" for digest in request["layers"]] or ["empty"]
        frozen = self.snapshots[request["at"]] if request["at"] else []
        workspace = self._new_workspace(request, layers, frozen)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mount_fd = -1
        try:
            mount_fd = workspace.clone()
            pid = syscalls.fork_into(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
            if pid == 0:
                self._become_sandbox(request, fds, theirs.fileno(), mount_fd)
        except OSError:
            workspace.release()
            ours.close()
            raise
        finally:
            theirs.close()
            if mount_fd >= 0:
                os.close(mount_fd)
        ours.settimeout(_ACK_TIMEOUT_S)
        self.sandboxes[request["sandbox"]] = _Sandbox(pid, workspace, ours)
        return {"pid": pid}, b""

    def _become_sandbox(
        self, request: dict[str, Any], fds: list[int], control_fd: int, mount_fd: int
    ) -> NoReturn:
        try:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            for fd in fds[1:]:
                os.write(fd, b"0")  # this process joins its control groups
            # Not in the fork: a network takes milliseconds, for which the launcher need not wait.
            syscalls.unshare(_FURTHER_NAMESPACES)
            socket.sethostname("sandbox")
            _raise_loopback()
            area = {**request, "uid": self.agent, "gid": self.agent}
            if self.is_single_uid:
                area |= {"uid": 0, "gid": 0}
            rootfs.enter("root", request["workdir"], mount_fd, area)
            _keep_descriptors(fds[0], control_fd)
            syscalls.drop_bounding_set()
            confinement = NamespaceConfinement(
                self.agent, self.seccomp, is_single_uid=self.is_single_uid
            )
            _serve_sandbox(request, confinement)
        except BaseException as error:  # this process must never go on as a second launcher
            os.write(2, f"sandbox: {error!r}\n".encode())
        os._exit(1)

    def _exchange(self, sandbox: _Sandbox, workspace: overlay.Workspace) -> None:
        """Make `workspace` the sandbox's own in the place of the one it has."""
        mount_fd = workspace.clone()
        try:
            socket.send_fds(sandbox.control, [json.dumps({"op": "mount"}).encode()], [mount_fd])
            answer = json.loads(sandbox.control.recv(1 << 16) or b'{"error": "it is gone"}')
        finally:
            os.close(mount_fd)
        if "error" in answer:
            workspace.release()
            raise OSError(f"the sandbox did not take its workspace: {answer['error']}")
        sandbox.workspace = workspace

    def _do_snapshot(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        sandbox = self.sandboxes[request["sandbox"]]
        old = sandbox.workspace
        frozen = [*old.frozen, old.top]
        self._exchange(sandbox, self._new_workspace(request, old.layers, frozen))
        old.unmount()
        # The uses of the old workspace become those of the snapshot.
        self.snapshots[request["snapshot"]] = frozen
        return {}, b""

    def _do_reset(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        sandbox = self.sandboxes[request["sandbox"]]
        old = sandbox.workspace
        frozen = self.snapshots[request["at"]] if request["at"] else []
        self._exchange(sandbox, self._new_workspace(request, old.layers, frozen))
        old.release()
        return {}, b""

    def _do_diff(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        workspace = self.sandboxes[request["sandbox"]].workspace
        found, contents, num_omitted = overlay.changes(
            workspace, request["max_file_bytes"], request["max_changes"]
        )
        sizes = [len(content) for content in contents]
        return {"changes": found, "sizes": sizes, "omitted": num_omitted}, b"".join(contents)

    def _do_forget(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        for upper in self.snapshots.pop(request["snapshot"], []):
            upper.release()
        return {}, b""

    def _do_drop(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], bytes]:
        sandbox = self.sandboxes.pop(request["sandbox"], None)
        if sandbox is not None:
            os.kill(sandbox.pid, signal.SIGKILL)
            os.waitpid(sandbox.pid, 0)
            sandbox.control.close()
            sandbox.workspace.release()
        return {}, b""


def _enter_single_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _keep_descriptors(channel_fd: int, control_fd: int) -> None:
    """Keep the two sockets and /dev/null; close what belongs to the launcher and to others."""
    channel, control = (fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (channel_fd, control_fd))
    os.dup2(channel, _CHANNEL_FD, inheritable=False)
    os.dup2(control, _CONTROL_FD, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, _CHANNEL_FD)
    supervisor_syscalls.close_from(_CONTROL_FD + 1)


def _serve_sandbox(request: dict[str, Any], confinement: NamespaceConfinement) -> None:
    workdir = request["workdir"]

    def exchange(
        packet: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        supervisor.end_all()
        syscalls.umount(workdir)
        syscalls.move_mount(fds[0], workdir)
        os.close(fds[0])
        return {}, b""

    supervisor = program.Supervisor(
        (_CHANNEL_FD, _CHANNEL_FD),
        confinement,
        workdir=workdir,
        wiped=("/tmp", "/dev/shm", "/home/agent"),
        ops={"mount": exchange},
        deadline=time.monotonic() + request["ttl_s"],
        may_call=request["may_call"],
    )
    control = socket.socket(fileno=_CONTROL_FD)
    supervisor.add_fd_socket(control)
    supervisor.serve()
    os._exit(0)


def main() -> None:
    """Serve on the sockets that are stdin and stdout; the first packet is the configuration."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is katgym's to handle
    requests, replies = (socket.socket(fileno=os.dup(fd)) for fd in (0, 1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    launcher = Launcher(requests, replies, json.loads(requests.recv(1 << 20)))
    try:
        launcher.prepare()
    except OSError as e:
        launcher.reply({"op": "failed", "error": str(e)})
        sys.exit(1)
    launcher.serve()
