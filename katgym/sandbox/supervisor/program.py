"""The supervisor: PID 1 of a sandbox, which runs commands and touches files for the host.

Runs inside sandboxes, Python >= 3.8, with nothing but the standard library. It serves one stream:
frames of 4 bytes header length, 4 bytes payload length (big-endian), a JSON header, a payload. A
request has "id" and "op", its reply the same id; any number may be under way. Not here: what
confines a command (`guardian.Confinement` and its heirs), comparing trees
(`baseline.py`).
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import signal
import struct
import sys
import time

from katgym.sandbox.supervisor import files, guardian, syscalls
from katgym.sandbox.supervisor.loop import Loop
from katgym.sandbox.supervisor.running import RunningCommands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Request = dict[str, Any]
    Reply = tuple[dict[str, Any], bytes]
    Handler = Callable[[Request, bytes], Reply]

LENGTHS = struct.Struct("!II")
_CHUNK = 1 << 18


class Supervisor:
    """Serves one stream until it ends, then ends everything.

    ops: further operations by name: `handler(request, payload) -> (reply fields, payload)`;
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
        self.workdir = workdir
        roots = (guardian.encode(workdir), guardian.encode(tmpdir))
        self.folders = files.Folders(roots, confinement.owner)
        self.deadline = deadline
        self._wiped = [guardian.encode(path) for path in wiped]
        self._may_call = may_call
        self._in, self._out = control
        self._incoming = bytearray()
        self._outgoing: list[memoryview] = []
        self._loop = Loop()
        self._commands = RunningCommands(self._loop, confinement, self.send)
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
        self._loop.watch(self._in, self._receive)
        gc.collect()
        gc.freeze()  # what lives now stays shared with every fork
        gc.disable()
        commands = self._commands
        while not self._is_ending:
            commands.reap()
            # Wait until there is something to read, or the next limit of time may be reached.
            times = [r.next_check for r in commands.by_pid.values() if r.next_check is not None]
            if self.deadline is not None:
                times.append(self.deadline)
            now = time.monotonic()
            self._loop.wait(max(0.0, min(times) - now) + 0.001 if times else -1)
            if not times:
                continue
            now = time.monotonic()
            for running in list(commands.by_pid.values()):
                if running.next_check is not None and running.next_check <= now:
                    running.check_limits(now)
            if self.deadline is not None and now >= self.deadline:
                # Ended without a word: a killed command is not the command's result.
                self._is_ending = self._is_mute = True
        self.end_all()

    def add_fd_socket(self, sock: Any) -> None:
        """Serve a SEQPACKET socket too: one JSON request a packet, descriptors beside it.

        The descriptors are "fds" of the request, and the handler's to close.
        """
        import socket

        def receive() -> None:
            data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 16)
            if not data:
                self._loop.unwatch(sock.detach())
                return
            reply, _ = self._answer({**json.loads(data), "fds": fds}, b"")
            sock.send(json.dumps(reply).encode())

        self._loop.watch(sock.fileno(), receive)

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
            if request["op"] not in ("exec", "call"):
                self.send(*self._answer(request, payload))
                continue
            try:
                self._start(request, payload)
            except OSError as error:
                self.send({"id": request["id"], "error": _problem("start", error)})

    def _answer(self, request: Request, payload: bytes) -> Reply:
        handler = self.ops.get(request["op"])
        reply: dict[str, Any] = {}
        data = b""
        try:
            if handler is None:
                raise ValueError(f"unknown op {request['op']!r}")
            reply, data = handler(request, payload)
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
        # What is left of it goes as soon as the host takes more.
        if self._in == self._out:
            callback = self._both if queue else self._receive
            self._loop.change(self._in, callback, is_output=bool(queue))
        elif not queue:
            self._loop.mute(self._out)
        elif not self._loop.is_watched(self._out):
            self._loop.watch(self._out, self._flush, is_output=True)

    def _both(self) -> None:
        self._flush()
        self._receive()

    def _start(self, request: Request, payload: bytes) -> None:
        body = None
        if request["op"] == "call":
            if not self._may_call:
                raise OSError(errno.ENOSYS, "calls are not served here")
            body = guardian.call_body(request["function"], payload)
            payload = b""
        command = guardian.GuardedCommand(request, self.workdir, body)
        self._commands.start(request, command, payload)

    def end_all(self) -> None:
        """End every command and everything that escaped from one."""
        self._commands.end_all()

    def _ping(self, request: Request, payload: bytes) -> Reply:
        return {"pid": os.getpid(), "python": sys.version.split()[0]}, b""

    def _read(self, request: Request, payload: bytes) -> Reply:
        path = guardian.encode(request["path"])
        return {}, files.read_file(self.folders, path, request["max_bytes"])

    def _write(self, request: Request, payload: bytes) -> Reply:
        path = guardian.encode(request["path"])
        files.write_file(self.folders, path, payload, request["mode"])
        return {}, b""

    def _wipe(self, request: Request, payload: bytes) -> Reply:
        self.end_all()
        for folder in self._wiped:
            files.empty(folder)
        return {}, b""

    def _stop(self, request: Request, payload: bytes) -> Reply:
        self.end_all()
        return {}, b""

    def _cancel(self, request: Request, payload: bytes) -> Reply:
        for running in list(self._commands.by_pid.values()):
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
            signal.signal(number, lambda number, frame: None)


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
