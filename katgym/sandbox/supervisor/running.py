"""One command under way: its pipes, its limits, its end; runs inside sandboxes, Python >= 3.8.

Not here: the process that starts it (`guardian.py`).
"""

from __future__ import annotations

import os
import time
from signal import SIGKILL

from katgym.sandbox.supervisor import guardian, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from katgym.sandbox.supervisor.program import Supervisor

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


class Running:
    """A command from its start to its reply."""

    def __init__(
        self,
        supervisor: Supervisor,
        request: Mapping[str, Any],
        command: guardian.Command,
        stdin: bytes,
        null: int,
    ) -> None:
        self.id = request["id"]
        self._supervisor = supervisor
        self._limit_hit: str | None = None
        self._report = b""
        limits = command.limits
        self._cpu_s: float | None = limits.get("cpu_s")
        self._memory_bytes: int | None = limits.get("memory_bytes")
        self._collectors: dict[int, Collector] = {}
        self._stdin = memoryview(stdin)
        self._stdin_fd = -1
        self._oom_before = supervisor.confinement.oom_kills()
        self._started = time.monotonic()
        self._wall_end = self._started + limits["wall_s"] if limits.get("wall_s") else None
        self.next_check: float | None = None
        self.pid = self._fork(command, limits["output_bytes"], null)
        self._plan_check(self._started)

    def _fork(self, command: guardian.Command, max_bytes: int, null: int) -> int:
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
            pid = self._supervisor.confinement.fork_guardian()
        except OSError:
            for fd in theirs + ours:
                os.close(fd)
            raise
        if pid == 0:
            guardian.run_guardian(
                self._supervisor.confinement, command, (stdin_fd, stdout, stderr, status, report)
            )
        for fd in theirs:
            os.close(fd)
        if self._stdin_fd >= 0:
            os.set_blocking(self._stdin_fd, False)
            self._supervisor.watch(self._stdin_fd, self._feed, is_output=True)
            del ours[0]
        self._status_fd = ours.pop(2)
        os.set_blocking(self._status_fd, False)
        for fd in ours:
            os.set_blocking(fd, False)
            self._collectors[fd] = Collector(max_bytes)
            self._supervisor.watch(fd, self._collector(fd))
        self._supervisor.watch(self._status_fd, self._end_reported)
        return pid

    def _feed(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._stdin_fd, self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not want the rest
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._supervisor.unwatch(self._stdin_fd)
            self._stdin_fd = -1

    def _collector(self, fd: int) -> Callable[[], None]:
        def collect() -> None:
            self._collect(fd)

        return collect

    def _collect(self, fd: int) -> bool:
        """Take in one read; return whether there may be more."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        self._collectors[fd].add(data)
        if not data:
            self._supervisor.mute(fd)
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

    def _end_reported(self) -> None:
        """The guardian said how it ended, or is gone."""
        try:
            self._report = os.read(self._status_fd, guardian.STATUS.size)
        except BlockingIOError:
            return
        self._finish(is_clean=len(self._report) > 0 and bool(self._report[-1]))

    def _finish(self, *, is_clean: bool) -> None:
        """Leave nothing running, take in the rest of the output, reply."""
        supervisor = self._supervisor
        del supervisor.running[self.pid]
        usage = processes.Usage()
        if is_clean:
            supervisor.unreaped.add(self.pid)  # it is about to exit; nobody need wait for that
        else:
            self._end_everything(usage)
        wall_s = time.monotonic() - self._started
        for fd in self._collectors:
            for _ in range(_MAX_LAST_READS):
                if not self._collect(fd):
                    break
            supervisor.unwatch(fd)
        supervisor.unwatch(self._status_fd)
        if self._stdin_fd >= 0:
            supervisor.unwatch(self._stdin_fd)
        self._reply(wall_s, usage)

    def _end_everything(self, usage: processes.Usage) -> None:
        """End the guardian and all that was below it, wherever it went."""
        supervisor = self._supervisor
        if supervisor.confinement.is_nested:
            # What dies with its namespace is nobody's child that was waited for: ask beforehand.
            usage.cpu_s = processes.cpu_seconds(self.pid)
            os.kill(self.pid, SIGKILL)
            usage.reap(self.pid)
            return
        supervisor.reap()
        is_pid_1 = os.getpid() == 1
        if not (is_pid_1 and not supervisor.running):
            os.kill(self.pid, SIGKILL)
            usage.reap(self.pid)
            if processes.end_descendants(usage, frozenset(supervisor.running)):
                return
        if is_pid_1:  # what others run goes with it where nothing else helped
            processes.end_namespace(usage)

    def _reply(self, wall_s: float, usage: processes.Usage) -> None:
        status, cpu_s, peak_bytes = int(SIGKILL), 0.0, 0
        if len(self._report) == guardian.STATUS.size:
            status, cpu_s, peak_bytes, _ = guardian.STATUS.unpack(self._report)
        oom_kills = self._supervisor.confinement.oom_kills()
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
        self._supervisor.send(reply, b"".join(kept for kept, _, _ in results))
