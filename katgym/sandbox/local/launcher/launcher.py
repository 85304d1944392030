"""The process that makes local sandboxes: a small forking server in namespaces of its own.

Standard library only. It holds every writable layer in
memory-backed mounts that nobody else sees, so its death leaves nothing behind; and it dies with
katgym. Requests come as packets (JSON, descriptors beside it), replies go as frames like the
supervisor's. Not here: its start (`boot.py`), what a fork does to become a sandbox (`birth.py`),
sandboxes without isolation (`plain.py`), commands and files (`katgym.sandbox.supervisor`).
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

from katgym.sandbox.local.launcher import birth, differences, linux, overlay, rootfs
from katgym.sandbox.local.launcher.confinement import Agent
from katgym.sandbox.local.launcher.copies import CopyWorkspace, tree_size
from katgym.sandbox.local.launcher.upper import Upper
from katgym.sandbox.supervisor import seccomp, syscalls
from katgym.sandbox.supervisor.guardian import fix_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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

    agent: Agent
    """Known once `prepare` has run."""

    def __init__(self, requests: socket.socket, replies: socket.socket, config: dict[str, Any]):
        self.requests = requests
        self.replies = replies
        self.config = config
        self.is_copying = config["workspace"] == "copy"
        self.sandboxes: dict[str, MadeSandbox] = {}
        self.snapshots: dict[str, list[Upper]] = {}
        self.num_uppers = 0
        self.readers: set[int] = set()
        """Children that compute a diff."""

    def prepare(self) -> None:
        """Import what is asked for, make the root file system, enter the user namespace."""
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        fix_session()
        linux.name_process("katgym-sandbox")  # commands can read it, as that of their PID 1
        for name in self.config["preload"]:
            importlib.import_module(name)
        config = self.config
        is_single_uid: bool = config["is_single_uid"]
        self.agent = Agent(config["agent_uid"], seccomp.build_filter(), is_single_uid=is_single_uid)
        state = self.config["state"]
        if is_single_uid:
            _enter_single_user_namespace()
        else:
            linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("launcher", state, "tmpfs", linux.MS_NOSUID, "mode=0755,size=16m")
        os.chdir(state)
        self.agent.covers = rootfs.build_template(f"{state}/root", config["binds"], config["masks"])
        for name in ("layers", "up", "empty"):
            os.mkdir(name)
        linux.mount(self.config["layers"], "layers", "", linux.MS_BIND | linux.MS_REC)
        if not is_single_uid:
            base = self.config["subuid_base"]
            os.chown("root", base, base)
            linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
            self.reply({"op": "map", "pid": os.getpid(), "id": config["id"]})
            mapped = self.requests.recv(1 << 10)
            if not mapped:
                sys.exit("launcher: the user namespace was not mapped")
            config["id"] = json.loads(mapped)["id"]
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            # A change of ids switches it off; katgym's death would go unnoticed for a while.
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            if self.config["has_group"]:
                linux.forbid_user_namespaces()
        linux.mount("uppers", "up", "tmpfs", linux.MS_NOSUID, "mode=0755")
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        self._choose_workspaces()

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
        ready = {"op": "ready", "workspace": text, "overlay_problem": self.overlay_problem}
        self.reply({**ready, "id": self.config["id"]})
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
            for pid in list(self.readers):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self.readers.discard(pid)
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

    def _frozen(self, request: dict[str, Any]) -> list[Upper]:
        if not request["at"]:
            return []
        try:
            return self.snapshots[request["at"]]
        except KeyError:
            raise OSError(f"there is no snapshot {request['at']!r} any more") from None

    def _new_upper(self, disk_bytes: int | None = None, max_files: int | None = None) -> Upper:
        self.num_uppers += 1
        return Upper("up", str(self.num_uppers), disk_bytes, max_files)

    def _new_workspace(
        self, request: dict[str, Any], layers: list[str], frozen: list[Upper]
    ) -> Workspace:
        disk_bytes, max_files = request["disk_bytes"], request["max_files"]
        if self.is_copying and layers:
            # The limits are for what is written, so the layers' own size comes on top.
            num_bytes, num_files = tree_size(layers)
            disk_bytes = disk_bytes and disk_bytes + num_bytes
            max_files = max_files and max_files + num_files
        top = self._new_upper(disk_bytes, max_files)
        make = CopyWorkspace if self.is_copying else overlay.OverlayWorkspace
        try:
            return make(layers, frozen, top, self.agent.owner)
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
            pid = linux.fork_into(birth.NAMESPACES)
            if pid == 0:
                birth.become_sandbox(self.agent, request, fds, theirs.fileno(), mount_fd)
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

    def _squash(self, frozen: list[Upper]) -> Upper | None:
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
            try:
                syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
                try:
                    header, payload = differences.pack_changes(
                        sources,
                        max_file_bytes=request["max_file_bytes"],
                        max_changes=request["max_changes"],
                    )
                    data = frame(header, payload)
                except (OSError, MemoryError) as e:
                    data = frame({"error": str(e) or repr(e)})
                with open(fds[0], "wb", closefd=False) as file:
                    file.write(data)
            finally:  # this process must never go on as a second launcher
                os._exit(0)
        self.readers.add(pid)
        return {}, b""

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


def _enter_single_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        linux.write(f"/proc/self/{name}", text)
