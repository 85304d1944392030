"""The supervisor: PID 1 of a sandbox, which runs commands and touches files for the host.

Runs inside sandboxes, Python >= 3.8, with nothing but the standard library. It serves one stream:
frames of 4 bytes header length, 4 bytes payload length (big-endian), a JSON header, a payload. A
request has "id" and "op", its reply the same id; any number may be under way. Not here: what
confines a command (`guardian.Confinement` and its heirs), comparing trees (`trees.py`).
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import select
import signal
import struct
import sys
import time

from katgym.sandbox.supervisor import files, guardian, syscalls
from katgym.sandbox.supervisor.running import Running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Handler = Callable[[dict[str, Any], bytes, list[int]], tuple[dict[str, Any], bytes]]

LENGTHS = struct.Struct("!II")
_CHUNK = 1 << 18


class Supervisor:
    """Serves one stream until it ends, then ends everything.

    ops: further operations by name: `handler(request, payload, fds) -> (reply fields, payload)`;
        what they raise as `OSError` or `ValueError` is the reply.
    wiped: folders that op "wipe" empties.
    deadline: `time.monotonic()` at which the sandbox ends itself, or None.
    """

    def __init__(
        self,
        control: tuple[int, int],
        confinement: guardian.Confinement,
        *,
        workdir: str,
        tmpdir: str = "/tmp",
        wiped: Sequence[str] = ("/tmp",),
        ops: Mapping[str, Handler] | None = None,
        deadline: float | None = None,
        may_call: bool = False,
    ) -> None:
        self.confinement = confinement
        self.workdir = workdir
        roots = (guardian.encode(workdir), guardian.encode(tmpdir))
        self.folders = files.Folders(roots, confinement.owner)
        self.deadline = deadline
        self.running: dict[int, Running] = {}
        """By pid of the guardian."""
        self.unreaped: set[int] = set()
        """Guardians that are about to exit."""
        self._wiped = [guardian.encode(path) for path in wiped]
        self._may_call = may_call
        self._in, self._out = control
        self._incoming = bytearray()
        self._outgoing: list[memoryview] = []
        self._poll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._null = os.open("/dev/null", os.O_RDWR)
        self._is_ending = self._is_mute = False
        self.ops: dict[str, Handler] = {
            "ping": self._ping,
            "read": self._read,
            "write": self._write,
            "wipe": self._wipe,
            "stop": self._stop,
            "cancel": self._cancel,
            **(ops or {}),
        }

    def serve(self) -> None:
        """Serve until the stream or the deadline ends; then end every process and return."""
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no process of the agent's may look inside
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        os.umask(0)
        for fd in {self._in, self._out}:
            os.set_blocking(fd, False)
        self.watch(self._in, self._receive)
        gc.collect()
        gc.freeze()  # what lives now stays shared with every fork
        gc.disable()
        while not self._is_ending:
            self._wait()
        self.end_all()

    def watch(self, fd: int, callback: Callable[[], None], *, is_output: bool = False) -> None:
        """Call back whenever a descriptor is ready."""
        self._callbacks[fd] = callback
        self._poll.register(fd, select.EPOLLOUT if is_output else select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Take a descriptor out of the loop and close it."""
        self.mute(fd)
        os.close(fd)

    def mute(self, fd: int) -> None:
        """Take a descriptor out of the loop, open as it is."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def reap(self) -> None:
        """Reap the guardians that have exited."""
        for pid in list(self.unreaped):
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            except ChildProcessError:
                pass  # reaped with what it had left behind
            self.unreaped.discard(pid)

    def add_fd_socket(self, sock: Any) -> None:
        """Serve a SEQPACKET socket too: one JSON request a packet, descriptors beside it.

        The descriptors are the handler's to close.
        """
        import socket

        def receive() -> None:
            data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 16)
            if not data:
                self.unwatch(sock.detach())
                return
            reply, _ = self._answer(json.loads(data), b"", fds)
            sock.send(json.dumps(reply).encode())

        self.watch(sock.fileno(), receive)

    def _wait(self) -> None:
        self.reap()
        now = time.monotonic()
        times = [r.next_check for r in self.running.values() if r.next_check is not None]
        if self.deadline is not None:
            times.append(self.deadline)
        timeout = max(0.0, min(times) - now) + 0.001 if times else -1
        for fd, _ in self._poll.poll(timeout):
            callback = self._callbacks.get(fd)  # an earlier one may have ended it
            if callback is not None:
                callback()
        if not times:
            return
        now = time.monotonic()
        for running in list(self.running.values()):
            if running.next_check is not None and running.next_check <= now:
                running.check_limits(now)
        if self.deadline is not None and now >= self.deadline:
            self._is_ending = self._is_mute = True  # a killed command is not the command's result

    def _receive(self) -> None:
        try:
            data = os.read(self._in, _CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._is_ending = True
            return
        self._incoming += data
        while len(self._incoming) >= LENGTHS.size:
            header_len, payload_len = LENGTHS.unpack_from(self._incoming)
            start = LENGTHS.size + header_len
            if len(self._incoming) < start + payload_len:
                break
            request = json.loads(self._incoming[LENGTHS.size : start])
            payload = bytes(self._incoming[start : start + payload_len])
            del self._incoming[: start + payload_len]
            self._dispatch(request, payload)

    def _dispatch(self, request: dict[str, Any], payload: bytes) -> None:
        if request["op"] in ("exec", "call"):
            try:
                self._start(request, payload)
            except OSError as error:
                self.send({"id": request["id"], "error": _problem("start", error)})
            return
        self.send(*self._answer(request, payload, []))

    def _answer(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        handler = self.ops.get(request["op"])
        reply: dict[str, Any] = {}
        data = b""
        try:
            if handler is None:
                raise ValueError(f"unknown op {request['op']!r}")
            reply, data = handler(request, payload, fds)
        except OSError as error:
            reply = {"error": _problem("file", error)}
        except ValueError as error:
            reply = {"error": {"kind": "value", "errno": errno.EINVAL, "text": str(error)}}
        return {**reply, "id": request.get("id")}, data

    def send(self, reply: dict[str, Any], payload: bytes = b"") -> None:
        """Queue one frame for the host."""
        if self._is_mute:
            return
        header = json.dumps(reply).encode()
        self._outgoing.append(memoryview(LENGTHS.pack(len(header), len(payload)) + header))
        if payload:
            self._outgoing.append(memoryview(payload))
        if len(self._outgoing) <= 2:
            self._flush()

    def _flush(self) -> None:
        queue = self._outgoing
        try:
            while queue:
                num = os.writev(self._out, queue[:64])
                while queue and num >= len(queue[0]):
                    num -= len(queue.pop(0))
                if num:
                    queue[0] = queue[0][num:]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionError):
            self._is_ending = True
            return
        self._want_output(bool(queue))

    def _want_output(self, is_wanted: bool) -> None:
        if self._in == self._out:
            events = select.EPOLLIN | (select.EPOLLOUT if is_wanted else 0)
            self._callbacks[self._in] = self._both if is_wanted else self._receive
            self._poll.modify(self._in, events)
        elif not is_wanted:
            self.mute(self._out)
        elif self._out not in self._callbacks:
            self.watch(self._out, self._flush, is_output=True)

    def _both(self) -> None:
        self._flush()
        self._receive()

    def _start(self, request: dict[str, Any], payload: bytes) -> None:
        body = None
        if request["op"] == "call":
            if not self._may_call:
                raise OSError(errno.ENOSYS, "calls are not served here")
            body = guardian.call_body(request["function"], payload)
            payload = b""
        command = guardian.Command(request, self.workdir, body)
        running = Running(self, request, command, payload, self._null)
        self.running[running.pid] = running

    def end_all(self) -> None:
        """End every command and everything that escaped from one."""
        for running in list(self.running.values()):
            running.end(None)

    def _ping(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        return {"pid": os.getpid(), "python": sys.version.split()[0]}, b""

    def _read(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        path = guardian.encode(request["path"])
        return {}, files.read_file(self.folders, path, request["max_bytes"])

    def _write(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        path = guardian.encode(request["path"])
        files.write_file(self.folders, path, payload, request["mode"])
        return {}, b""

    def _wipe(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        self.end_all()
        for folder in self._wiped:
            files.empty(folder)
        return {}, b""

    def _stop(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        self.end_all()
        return {}, b""

    def _cancel(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        for running in list(self.running.values()):
            if running.id == request["target"]:
                running.end(None)
        return {}, b""


def handle_ignored_signals() -> None:
    """Have this process handle what it ignores, for commands inherit what is ignored.

    Python ignores some signals, nohup and shells others. A handler that does nothing is as good,
    and goes with `execve`. To be called once, before `Supervisor.serve` or its fork.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal."""


def _problem(kind: str, error: OSError) -> dict[str, Any]:
    name = f"{error.filename}: " if isinstance(error.filename, str) else ""
    text = name + (error.strerror or str(error))
    return {"kind": kind, "errno": error.errno or errno.EIO, "text": text}


def take_over_stdio() -> tuple[int, int]:
    """Return stdin and stdout as the control stream, and put /dev/null in their places."""
    control = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (0, 1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    return control[0], control[1]
