"""Keeps a few processes that run one function on JSON jobs and can be killed at any moment.

No signals, timers or forks in the calling process: a worker is a fresh interpreter on two pipes, so
the pool works from any thread and beside any event loop.

Not here: the worker's side (`worker_main.py`), what is asked (`judge.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katgym_envs.math.verifier import worker_main
from katgym_envs.math.verifier.verdict import VerifierUnavailable

logger = logging.getLogger(__name__)

MAX_STARTS = 3
"""Attempts to start one worker before the pool is reported as unavailable."""
_OUT_OF_CPU = -getattr(signal, "SIGXCPU", 0) or None
"""Return code of a worker that the system ended for its CPU time; None where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker runs and may use."""

    handler: str
    """`module:function`, called with each job; returns a dict that JSON can hold."""
    load: str = ""
    """`module:function` that runs once at the start; empty for none."""
    timeout_s: float = 2.0
    """Wall time of one job; the worker is killed after it. Where a job computes and does not wait,
    make it long: how long that takes is a matter of what else the machine does."""
    max_cpu_s: float = 1.2
    """CPU time of one job; it is interrupted after it, and the worker goes on. One long call into C
    is not interrupted; the system ends the worker one or two seconds of CPU later."""
    max_memory_mib: int = 1024
    """Address space of a worker."""
    start_timeout_s: float = 300.0
    """Wall time for imports and `load`; not part of any job's time."""


class _Worker:
    """One process; used by one thread at a time."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        paths = [path for path in sys.path if path]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
        }
        if root := os.environ.get("SYSTEMROOT"):  # no Python starts without it on Windows
            environment["SYSTEMROOT"] = root
        program = f"from {worker_main.__name__} import run; run()"
        command = [sys.executable, "-P", "-c", program, config.handler, config.load]
        self.process = subprocess.Popen(
            [
                *command,
                str(config.max_memory_mib),
                str(config.timeout_s),
                str(config.max_cpu_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        message = self.receive(self.config.start_timeout_s)
        if message is None or message.get("status") != "ready":
            raise EOFError("the worker did not start")
        if not message["is_memory_limited"]:
            logger.warning("this system has no limit on address space: workers run without one")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, None after `timeout_s`; `EOFError` when the worker is gone."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(max(0, int(timeout_s * 1000))):
                return None
            message = worker_main.receive(fd)
        else:  # Windows cannot wait for a pipe; killing the worker ends the thread
            found: list[dict[str, Any] | None] = []
            reader = threading.Thread(
                target=lambda: found.append(worker_main.receive(fd)), daemon=True
            )
            reader.start()
            reader.join(timeout_s)
            if not found:
                return None
            message = found[0]
        if message is None:
            raise EOFError("the worker ended")
        return message

    def send(self, job: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        worker_main.send(self.process.stdin.fileno(), job)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class WorkerPool:
    """A fixed number of workers, started when first needed and reused.

    Closing it, dropping it or the end of the process kills them.
    """

    def __init__(self, config: WorkerConfig, *, num_workers: int = 1) -> None:
        self.config = config
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._slots.put(None)
        self.is_closed = False
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, self._pid)

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Run one job and return the worker's message.

        Its `status` is `done` (with the handler's items), `error` (with `reason`), `memory`,
        `timeout` (after `max_cpu_s` or `timeout_s`) or `crashed` (ended twice in the middle of the
        job).
        Raises `VerifierUnavailable` when workers cannot be started, or the pool is closed.
        """
        for _ in range(2):
            worker = self._acquire()
            kept: _Worker | None = None
            try:
                kept, message = self._run_once(worker, job)
            finally:
                if kept is None:
                    self._discard(worker)
                self._slots.put(kept)
            if message is not None:
                return message
        return {"status": "crashed"}

    def process_ids(self) -> list[int]:
        """Return the ids of the live workers."""
        with self._lock:
            return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Kill all workers; a call that is waiting for one raises `VerifierUnavailable`.

        A worker in use is reaped by the thread that uses it.
        """
        with self._lock:
            self.is_closed = True
            for worker in self._workers:
                worker.process.kill()
        idle = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._slots.get_nowait())
        for slot in idle:
            if slot is not None:
                self._discard(slot)
            self._slots.put(None)

    def _run_once(
        self, worker: _Worker, job: Mapping[str, Any]
    ) -> tuple[_Worker | None, dict[str, Any] | None]:
        """Return the worker, or None where it died, and its message, or None where it crashed."""
        started_s = time.monotonic()
        try:
            worker.send(job)
            message = worker.receive(self.config.timeout_s)
        except (OSError, EOFError) as e:
            if self.is_closed:
                raise VerifierUnavailable("the verifier was closed") from e
            worker.process.kill()
            if worker.process.wait() == _OUT_OF_CPU:
                return None, {"status": "timeout", "reason": "killed by its limit of CPU"}
            logger.warning("a verifier worker ended in the middle of a job (%s)", e)
            return None, None
        if message is None:
            elapsed_s = time.monotonic() - started_s
            return None, {"status": "timeout", "reason": f"killed after {elapsed_s:.1f} s"}
        if message["status"] == "memory":
            return None, message
        return worker, message

    def _acquire(self) -> _Worker:
        """Take a free worker, waiting for one, and start it where it is not running."""
        if os.getpid() != self._pid:
            raise VerifierUnavailable("a verifier does not survive a fork: make one per process")
        slot = self._slots.get()
        try:
            if self.is_closed:
                raise VerifierUnavailable("the verifier is closed")
            if slot is not None and slot.process.poll() is None:
                return slot
            if slot is not None:
                self._discard(slot)
            return self._start()
        except BaseException:
            self._slots.put(None)
            raise

    def _start(self) -> _Worker:
        problem = ""
        for _ in range(MAX_STARTS):
            worker = None
            try:
                worker = _Worker(self.config)
                with self._lock:
                    self._workers.add(worker)
                worker.wait_until_ready()
            except (OSError, EOFError) as e:
                problem = str(e)
                if worker is not None:
                    self._discard(worker)
            except BaseException:
                if worker is not None:
                    self._discard(worker)
                raise
            else:
                if not self.is_closed:
                    return worker
                self._discard(worker)
            if self.is_closed:
                raise VerifierUnavailable("the verifier was closed")
        raise VerifierUnavailable(f"no worker could be started in {MAX_STARTS} attempts: {problem}")

    def _discard(self, worker: _Worker) -> None:
        with self._lock:
            if worker not in self._workers:
                return
            self._workers.discard(worker)
        worker.kill()


def _kill_all(workers: set[_Worker], pid: int) -> None:
    if os.getpid() != pid:
        return
    while workers:
        workers.pop().kill()
