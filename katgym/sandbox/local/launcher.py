"""The process that makes local sandboxes: a small forking server in namespaces of its own.

Started by `client.py` as `python -c BOOT`, standard library only. It holds every writable layer in
memory-backed mounts that nobody else sees, so its death leaves nothing behind; and it dies with
katgym. Requests come as packets (JSON, descriptors beside it), replies go as frames like the
supervisor's. Not here: what a fork does to become a sandbox (`birth.py`), sandboxes without
isolation (`plain.py`), commands and files (`katgym.sandbox.supervisor`), cgroups (`cgroups.py`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys

from katgym.sandbox.local import birth, differences, overlay, rootfs, syscalls
from katgym.sandbox.local.copies import CopyWorkspace, tree_size
from katgym.sandbox.supervisor import program, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Workspace = overlay.OverlayWorkspace | CopyWorkspace
    Answer = tuple[dict[str, Any], bytes]

_ACK_TIMEOUT_S = 10.0


class MadeSandbox:
    """A live sandbox as the launcher knows it."""

    def __init__(self, pid: int, workspace: Workspace, control: socket.socket | None) -> None:
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
        self.is_copying = config["workspace"] == "copy"
        self.sandboxes: dict[str, MadeSandbox] = {}
        self.snapshots: dict[str, list[overlay.Upper]] = {}
        self.num_uppers = 0
        self.readers: set[int] = set()
        """Children that compute a diff."""

    def prepare(self) -> None:
        """Import what is asked for, make the root file system, enter the user namespace."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        syscalls.name_process("katgym-sandbox")  # commands can read it, as that of their PID 1
        for name in self.config["preload"]:
            importlib.import_module(name)
        self.seccomp = seccomp.build_filter()
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
            if self.config["has_group"]:
                syscalls.forbid_user_namespaces()
        syscalls.mount("uppers", "up", "tmpfs", syscalls.MS_NOSUID, "mode=0755")
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        self._choose_workspaces()

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

    def _choose_workspaces(self) -> None:
        """Take overlays if they work here; `OSError` if they were asked for and do not."""
        self.overlay_problem = ""
        if self.is_copying:
            return
        try:
            overlay.check_overlay("up")
        except OSError as e:
            if self.config["workspace"] == "overlay":
                raise
            self.is_copying = True
            self.overlay_problem = str(e)

    def serve(self) -> None:
        """Serve until katgym closes its end, or dies."""
        gc.collect()
        gc.freeze()
        text = "copy" if self.is_copying else "overlay"
        self.reply({"op": "ready", "workspace": text, "overlay_problem": self.overlay_problem})
        while True:
            data, fds, _, _ = socket.recv_fds(self.requests, 1 << 20, 16)
            if not data:
                break
            request = json.loads(data)
            payload = b""
            try:
                answer, payload = getattr(self, "_do_" + request["op"])(request, fds)
            except Exception as e:  # one sandbox's trouble must not become that of all
                answer = {"error": str(e) if isinstance(e, OSError) else repr(e)}
            finally:
                for fd in fds:
                    os.close(fd)
            self.reply({**answer, "id": request["id"]}, payload)
            self._reap_readers()
        for name in list(self.sandboxes):
            self._do_drop({"sandbox": name}, [])

    def reply(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send one frame."""
        self.replies.sendall(frame(header, payload))

    def _find(self, request: dict[str, Any]) -> MadeSandbox:
        try:
            return self.sandboxes[request["sandbox"]]
        except KeyError:
            raise OSError(f"there is no sandbox {request['sandbox']!r} any more") from None

    def _frozen(self, request: dict[str, Any]) -> list[overlay.Upper]:
        if not request["at"]:
            return []
        try:
            return self.snapshots[request["at"]]
        except KeyError:
            raise OSError(f"there is no snapshot {request['at']!r} any more") from None

    def _new_upper(
        self, disk_bytes: int | None = None, max_files: int | None = None
    ) -> overlay.Upper:
        self.num_uppers += 1
        return overlay.Upper("up", str(self.num_uppers), disk_bytes, max_files)

    def _new_workspace(
        self, request: dict[str, Any], layers: list[str], frozen: list[overlay.Upper]
    ) -> Workspace:
        disk_bytes, max_files = request["disk_bytes"], request["max_files"]
        if self.is_copying and layers:
            # The limits are for what is written, so the layers' own size comes on top.
            num_bytes, num_files = tree_size(layers)
            disk_bytes = disk_bytes and disk_bytes + num_bytes
            max_files = max_files and max_files + num_files
        top = self._new_upper(disk_bytes, max_files)
        owner = (0, 0) if self.is_single_uid else (self.agent, self.agent)
        make = CopyWorkspace if self.is_copying else overlay.OverlayWorkspace
        try:
            return make(layers, frozen, top, owner)
        except OSError:
            top.release()
            raise

    def _do_create(self, request: dict[str, Any], fds: list[int]) -> Answer:
        layers = [f"layers/{digest}/tree" for digest in request["layers"]] or ["empty"]
        workspace = self._new_workspace(request, layers, self._frozen(request))
        try:
            made = self._start(request, fds, workspace)
        except OSError:
            workspace.release()
            raise
        self.sandboxes[request["sandbox"]] = made
        return {"pid": made.pid}, b""

    def _start(self, request: dict[str, Any], fds: list[int], workspace: Workspace) -> MadeSandbox:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mount_fd = -1
        try:
            mount_fd = workspace.clone()
            pid = syscalls.fork_into(birth.NAMESPACES)
            if pid == 0:
                birth.become_sandbox(self, request, fds, theirs.fileno(), mount_fd)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            if mount_fd >= 0:
                os.close(mount_fd)
        ours.settimeout(_ACK_TIMEOUT_S)
        return MadeSandbox(pid, workspace, ours)

    def _exchange(self, sandbox: MadeSandbox, workspace: Workspace) -> None:
        """Make `workspace` the sandbox's own in the place of the one it has."""
        assert sandbox.control is not None
        try:
            mount_fd = workspace.clone()
            try:
                socket.send_fds(sandbox.control, [json.dumps({"op": "mount"}).encode()], [mount_fd])
                answer = json.loads(sandbox.control.recv(1 << 16) or b'{"error": "it is gone"}')
            finally:
                os.close(mount_fd)
            if "error" in answer:
                raise OSError(f"the sandbox did not take its workspace: {answer['error']}")
        except OSError:
            workspace.release()
            raise
        sandbox.workspace = workspace

    def _do_snapshot(self, request: dict[str, Any], fds: list[int]) -> Answer:
        sandbox = self._find(request)
        old = sandbox.workspace
        frozen = old.freeze()
        squashed = self._squash(frozen) if len(frozen) > overlay.MAX_DEPTH else None
        if squashed is None:
            self._exchange(sandbox, self._new_workspace(request, old.layers, frozen))
            old.give_up()
        else:
            frozen = [squashed]
            self._exchange(sandbox, self._new_workspace(request, old.layers, frozen))
            old.release()
        self.snapshots[request["snapshot"]] = frozen
        return {}, b""

    def _squash(self, frozen: list[overlay.Upper]) -> overlay.Upper | None:
        """Return one upper for a stack of them; None if there is no copying it."""
        into = self._new_upper()
        try:
            overlay.squash(frozen, into)
        except OSError:  # such as a path longer than the system takes
            into.release()
            return None
        return into

    def _do_reset(self, request: dict[str, Any], fds: list[int]) -> Answer:
        sandbox = self._find(request)
        old = sandbox.workspace
        new = self._new_workspace(request, old.layers, self._frozen(request))
        self._exchange(sandbox, new)
        old.release()
        return {}, b""

    def _do_diff(self, request: dict[str, Any], fds: list[int]) -> Answer:
        """Have a child write the diff, as a frame, to the descriptor that came along.

        A child, because what an agent left takes any time and memory to look at.
        """
        sources = self._find(request).workspace.sources()
        pid = os.fork()
        if pid == 0:
            _write_diff(sources, request, fds[0])
        self.readers.add(pid)
        return {}, b""

    def _reap_readers(self) -> None:
        for pid in list(self.readers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.readers.discard(pid)

    def _do_forget(self, request: dict[str, Any], fds: list[int]) -> Answer:
        for upper in self.snapshots.pop(request["snapshot"], []):
            upper.release()
        return {}, b""

    def _do_drop(self, request: dict[str, Any], fds: list[int]) -> Answer:
        sandbox = self.sandboxes.pop(request["sandbox"], None)
        if sandbox is not None:
            self._end(sandbox)
            sandbox.workspace.release()
        return {}, b""

    def _end(self, sandbox: MadeSandbox) -> None:
        os.kill(sandbox.pid, signal.SIGKILL)
        os.waitpid(sandbox.pid, 0)
        if sandbox.control is not None:
            sandbox.control.close()


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return header and payload as they go over a stream."""
    data = json.dumps(header).encode()
    return struct.pack("!II", len(data), len(payload)) + data + payload


def _write_diff(sources: differences.Sources, request: dict[str, Any], fd: int) -> NoReturn:
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        limits = request["max_file_bytes"], request["max_changes"]
        try:
            found, contents, num_omitted = differences.changes(sources, *limits)
            sizes = [len(content) for content in contents]
            header = {"changes": found, "sizes": sizes, "omitted": num_omitted}
            data = frame(header, b"".join(contents))
        except (OSError, MemoryError) as e:
            data = frame({"error": str(e) or repr(e)})
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
    finally:  # this process must never go on as a second launcher
        os._exit(0)


def _enter_single_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        syscalls.write(f"/proc/self/{name}", text)


def _make(requests: socket.socket, replies: socket.socket, config: dict[str, Any]) -> Launcher:
    if config["workspace"] == "plain":
        from katgym.sandbox.local.plain import PlainLauncher

        return PlainLauncher(requests, replies, config)
    return Launcher(requests, replies, config)


def main() -> None:
    """Serve on the sockets that are stdin and stdout; the first packet is the configuration."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is katgym's to handle
    program.handle_ignored_signals()
    requests, replies = (socket.socket(fileno=os.dup(fd)) for fd in (0, 1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    config = requests.recv(1 << 20)
    if not config:
        return  # whoever started it has given up
    launcher = _make(requests, replies, json.loads(config))
    try:
        launcher.prepare()
    except (OSError, ImportError, KeyError) as e:
        launcher.reply({"op": "failed", "error": str(e) if isinstance(e, OSError) else repr(e)})
        sys.exit(1)
    launcher.serve()
