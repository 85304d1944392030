"""One command under way: its pipes, its limits, its end; runs inside sandboxes, Python >= 3.8.

Not here: the process that starts it (`guardian.py`).
"""

from __future__ import annotations

import os
import time
from functools import partial
from signal import SIGKILL

from katgym.sandbox.supervisor import guardian, processes
from katgym.sandbox.supervisor.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Send = Callable[[dict[str, Any], bytes], None]

_CHUNK = 1 << 16
_CPU_CHECK_S = 0.1
_MAX_LAST_READS = 64
"""Reads of an output after the end: more than a pipe holds means that a writer escaped."""


class Collector:
    """Keeps the first and the last half of a stream within a fixed size, and counts the rest."""

    def __init__(self, max_bytes: int) -> None:
        self._head_size = max_bytes // 2
        self._tail_size = max_bytes - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Take in more of the stream."""
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_size + _CHUNK:  # seldom, so that it costs little
            del self._tail[: -self._tail_size]

    def result(self) -> tuple[bytes, int, int]:
        """Return what was kept, how much was not, and the index where that was."""
        tail = self._tail[-self._tail_size :]
        kept = bytes(self._head + tail)
        return kept, self._total - len(kept), len(self._head)


class RunningCommands:
    """The commands of one supervisor that are under way.

    send: queues a reply, its payload beside it.
    """

    def __init__(self, loop: Loop, confinement: guardian.Confinement, send: Send) -> None:
        self.loop = loop
        self.confinement = confinement
        self.send = send
        self.null = os.open("/dev/null", os.O_RDWR)
        self.by_pid: dict[int, Running] = {}
        """By pid of the guardian."""
        self.unreaped: set[int] = set()
        """Guardians that are about to exit."""

    def start(
        self, request: Mapping[str, Any], command: guardian.GuardedCommand, stdin: bytes
    ) -> None:
        """Start a command; its reply is sent when it has ended."""
        running = Running(self, request, command, stdin)
        self.by_pid[running.pid] = running

    def reap(self) -> None:
        """Reap the guardians that have exited."""
        for pid in list(self.unreaped):
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            except ChildProcessError:
                pass  # reaped with what it had left behind
            self.unreaped.discard(pid)

    def end_all(self) -> None:
        """End every command and everything that escaped from one."""
        for running in list(self.by_pid.values()):
            running.end(None)


class Running:
    """A command from its start to its reply."""

    def __init__(
        self,
        commands: RunningCommands,
        request: Mapping[str, Any],
        command: guardian.GuardedCommand,
        stdin: bytes,
    ) -> None:
        self.id = request["id"]
        self._commands = commands
        self._loop = commands.loop
        self._limit_hit: str | None = None
        self._report = b""
        limits = command.limits
        self._cpu_s: float | None = limits.get("cpu_s")
        self._memory_bytes: int | None = limits.get("memory_bytes")
        self._collectors: dict[int, Collector] = {}
        self._stdin = memoryview(stdin)
        self._stdin_fd = -1
        self._oom_before = commands.confinement.oom_kills()
        self._started = time.monotonic()
        self._wall_end = self._started + limits["wall_s"] if limits.get("wall_s") else None
        self.next_check: float | None = None
        self.pid = self._fork(command, limits["output_bytes"], commands.null)
        self._plan_check(self._started)

    def _fork(self, command: guardian.GuardedCommand, max_bytes: int, null: int) -> int:
        """Make the pipes and the guardian; return its pid."""
        theirs, ours = [], []
        stdin_fd = null
        try:
            if self._stdin:
                stdin_fd, self._stdin_fd = os.pipe()
                theirs.append(stdin_fd)
                ours.append(self._stdin_fd)
            for _ in range(4 if command.body is not None else 3):
                read_fd, write_fd = os.pipe()
                ours.append(read_fd)
                theirs.append(write_fd)
            stdout, stderr, status = theirs[-3:] if command.body is None else theirs[-4:-1]
            report = -1 if command.body is None else theirs[-1]
            pid = self._commands.confinement.fork_guardian()
        except OSError:
            for fd in theirs + ours:
                os.close(fd)
            raise
        if pid == 0:
            guardian.run_guardian(
                self._commands.confinement, command, (stdin_fd, stdout, stderr, status, report)
            )
        for fd in theirs:
            os.close(fd)
        if self._stdin_fd >= 0:
            os.set_blocking(self._stdin_fd, False)
            self._loop.watch(self._stdin_fd, self._feed, is_output=True)
            del ours[0]
        self._status_fd = ours.pop(2)
        os.set_blocking(self._status_fd, False)
        for fd in ours:
            os.set_blocking(fd, False)
            self._collectors[fd] = Collector(max_bytes)
            self._loop.watch(fd, partial(self._collect, fd))
        self._loop.watch(self._status_fd, self._on_report)
        return pid

    def _feed(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._stdin_fd, self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not want the rest
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._loop.unwatch(self._stdin_fd)
            self._stdin_fd = -1

    def _collect(self, fd: int) -> bool:
        """Take in one read; return whether there may be more."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        self._collectors[fd].add(data)
        if not data:
            self._loop.mute(fd)
        return bool(data)

    def _plan_check(self, now: float) -> None:
        times = [] if self._wall_end is None else [self._wall_end]
        if self._cpu_s is not None or self._memory_bytes is not None:
            times.append(now + _CPU_CHECK_S)
        self.next_check = min(times) if times else None

    def check_limits(self, now: float) -> None:
        """End the command if it is past a limit of time."""
        if self._wall_end is not None and now >= self._wall_end:
            self.end("wall_s")
        elif self._cpu_s is not None and processes.cpu_seconds(self.pid) >= self._cpu_s:
            self.end("cpu_s")
        elif self._memory_bytes is not None and processes.uses_more(self.pid, self._memory_bytes):
            self.end("memory_bytes")
        else:
            self._plan_check(now)

    def end(self, limit_hit: str | None) -> None:
        """End the command and everything it started, for a limit or because the host says so."""
        self._limit_hit = limit_hit
        self._finish(is_clean=False)

    def _on_report(self) -> None:
        """The guardian said how it ended, or is gone."""
        try:
            self._report = os.read(self._status_fd, guardian.STATUS.size)
        except BlockingIOError:
            return
        self._finish(is_clean=len(self._report) > 0 and bool(self._report[-1]))

    def _finish(self, *, is_clean: bool) -> None:
        """Leave nothing running, take in the rest of the output, reply."""
        del self._commands.by_pid[self.pid]
        usage = processes.Usage()
        if is_clean:
            self._commands.unreaped.add(self.pid)  # it is about to exit; nobody need wait for that
        else:
            self._end_everything(usage)
        wall_s = time.monotonic() - self._started
        for fd in self._collectors:
            for _ in range(_MAX_LAST_READS):
                if not self._collect(fd):
                    break
            self._loop.unwatch(fd)
        self._loop.unwatch(self._status_fd)
        if self._stdin_fd >= 0:
            self._loop.unwatch(self._stdin_fd)
        status, cpu_s, peak_bytes = int(SIGKILL), 0.0, 0
        if len(self._report) == guardian.STATUS.size:
            status, cpu_s, peak_bytes, _ = guardian.STATUS.unpack(self._report)
        oom_kills = self._commands.confinement.oom_kills()
        results = [collector.result() for collector in self._collectors.values()]
        reply = {
            "id": self.id,
            "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "limit_hit": self._limit_hit,
            "is_out_of_memory": oom_kills is not None and oom_kills != self._oom_before,
            "lengths": [len(kept) for kept, _, _ in results],
            "omitted": [omitted for _, omitted, _ in results],
            "splits": [split for _, _, split in results],
            "wall_s": wall_s,
            "cpu_s": max(cpu_s, usage.cpu_s),
            "peak_bytes": max(peak_bytes, usage.peak_bytes),
        }
        self._commands.send(reply, b"".join(kept for kept, _, _ in results))

    def _end_everything(self, usage: processes.Usage) -> None:
        """End the guardian and all that was below it, wherever it went."""
        commands = self._commands
        if commands.confinement.is_nested:
            # What dies with its namespace is nobody's child that was waited for: ask beforehand.
            usage.cpu_s = processes.cpu_seconds(self.pid)
            os.kill(self.pid, SIGKILL)
            usage.reap(self.pid)
            return
        commands.reap()
        is_pid_1 = os.getpid() == 1
        if not (is_pid_1 and not commands.by_pid):
            os.kill(self.pid, SIGKILL)
            usage.reap(self.pid)
            if processes.end_descendants(usage, frozenset(commands.by_pid)):
                return
        if is_pid_1:  # what others run goes with it where nothing else helped
            processes.end_namespace(usage)
