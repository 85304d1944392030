"""The verifier that callers use: exact arithmetic here, computer algebra in killable processes.

It compares values, not form: `17 \\cdot 23` is as good as `391`. A problem whose statement already
holds an expression for its answer needs another grader.

Not here: the stages (`judge.py`), the processes (`workers.py`).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from katgym.system.processes import on_fork
from katgym_envs.math.verifier.judge import judge_exactly
from katgym_envs.math.verifier.verdict import AnswerVerdict, Method, VerifierUnavailable
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool

_JUDGE = "katgym_envs.math.verifier.judge"
_PATIENCE = 30
"""Wall time a comparison may take beyond that of a free processor, as a factor."""


class Verifier:
    """Compares answers with gold answers, from any thread or event loop.

    Workers start with the first comparison that needs one (about a second, not counted against
    its time) and stay until `close`.
    """

    def __init__(
        self, *, num_workers: int = 1, timeout_s: float = 1.8, max_memory_mib: int = 1024
    ) -> None:
        """Prepare a verifier; starts nothing.

        timeout_s: of one comparison in a worker, which may compute for 0.6 of it; the verdict is
            `timeout` after that. Where a busy machine gives it no processor, it may take 30 times
            as long: what else runs decides no verdict. Windows counts wall time alone.
        max_memory_mib: address space of one worker; importing sympy alone takes about 150.
        """
        if num_workers < 1:
            raise ValueError(f"num_workers is at least 1, got {num_workers!r}")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is more than 0, got {timeout_s!r}")
        self.num_workers = num_workers
        config = WorkerConfig(
            handler=f"{_JUDGE}:judge_symbolically",
            load=f"{_JUDGE}:load",
            timeout_s=timeout_s if os.name == "nt" else _PATIENCE * timeout_s,
            max_cpu_s=0.6 * timeout_s,
            max_memory_mib=max_memory_mib,
        )
        self.pool = WorkerPool(config, num_workers=num_workers)
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def verify(self, answer: str, gold: str) -> AnswerVerdict:
        """Compare; blocks while workers are busy.

        Raises `VerifierUnavailable` when no worker can be started: never a wrong answer.
        """
        verdict = judge_exactly(answer, gold)
        return verdict if verdict is not None else self._ask(answer, gold)

    async def averify(self, answer: str, gold: str) -> AnswerVerdict:
        """Compare without blocking the event loop; the exact stage runs in place."""
        verdict = judge_exactly(answer, gold)
        if verdict is not None:
            return verdict
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.num_workers, "katgym-verifier")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._ask, answer, gold)

    def close(self) -> None:
        """Kill the workers; later comparisons that need one raise `VerifierUnavailable`."""
        self.pool.close()
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, answer: str, gold: str) -> AnswerVerdict:
        message = self.pool.run({"answer": answer, "gold": gold})
        match message["status"]:
            case "done":
                method = Method(message["method"])
                return AnswerVerdict(bool(message["is_correct"]), method, str(message["reason"]))
            case "timeout":
                return AnswerVerdict(False, Method.TIMEOUT, message["reason"])
            case "error":
                return AnswerVerdict(False, Method.UNPARSABLE, message["reason"])
            case "memory":
                return AnswerVerdict(False, Method.MEMORY, "over the memory limit")
        # A crash is the answer's fault only when a healthy comparison still works.
        probe = self.pool.run({"answer": r"\sqrt{8}", "gold": r"2\sqrt{2}"})
        if probe["status"] == "done" and probe["is_correct"]:
            return AnswerVerdict(False, Method.MEMORY, "the comparison ended its worker twice")
        raise VerifierUnavailable(f"workers keep dying; a probe ended as {probe['status']!r}")


_shared: Verifier | None = None
_shared_lock = threading.Lock()


def get_shared_verifier() -> Verifier:
    """Return the process-wide verifier, made at the first call and closed at exit.

    It has one worker for every two processors. A forked child gets its own.
    """
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Verifier(num_workers=max(1, (os.cpu_count() or 2) // 2))
            atexit.register(_shared.close)
            on_fork(_forget_shared)
        return _shared


def _forget_shared() -> None:
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()
