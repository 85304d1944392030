"""Continuous batching over a transformers causal LM, in a thread of its own.

Each round prefills waiting requests together, each from the longest known prefix on (siblings of a
group compute their prompt once), then decodes one token for every running row. A row's random
stream is its own.

Not here: text and messages (`rendering/`); loading models (`hf_policy.py`); the forward passes
(`row_batch.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from katgym.errors import PolicyError, UsageError
from katgym.policies.hf.cpu_attention import can_be_invariant
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.prefill_plan import PrefillPlan
from katgym.policies.hf.row_batch import RowBatch
from katgym.policies.token_policy import Generated
from katgym.policies.waiting import waiting

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GAP_S = 0.001
"""Requests that follow each other faster begin together, with one prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfEngineConfig:
    """Limits of the engine."""

    max_batch_size: int = 128
    """Requests decoded together; more wait."""
    max_batch_tokens: int = 65_536
    """Requests decoded together, times prompt plus `max_tokens` of the longest: the memory for keys
    and values. A request that is larger alone runs alone."""
    max_prefill_tokens: int = 2048
    """Prompt tokens computed in one forward, and between two decoded tokens of running requests."""
    max_cached_tokens: int = 8192
    """Tokens of finished requests whose keys and values are kept for reuse; 0 keeps none."""
    is_batch_invariant: bool = False
    """Whether what a request is answered does not depend, bit for bit, on those beside it and on
    what was known of its prompt: in float32 on a CPU."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_batch_tokens", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is >= 1, got {getattr(self, name)!r}")
        if self.max_cached_tokens < 0:
            raise UsageError(f"max_cached_tokens is >= 0, got {self.max_cached_tokens!r}")


@dataclass(frozen=True, slots=True)
class _Update:
    """A change of the model: when no request is running, or between two rounds."""

    fn: Callable[[], None]
    version: int
    is_immediate: bool
    future: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)


class BatchEngine:
    """Answers requests with one model; the first begins the thread, `close` ends it."""

    def __init__(self, model: Any, config: HfEngineConfig | None = None) -> None:
        self.config = config or HfEngineConfig()
        if self.config.is_batch_invariant and not can_be_invariant(model):
            raise UsageError(
                "is_batch_invariant is of models that attend by 'sdpa' in float32 on a CPU; this"
                f" one attends by {model.config._attn_implementation!r} in {model.dtype} on"
                f" {model.device}"
            )
        self.version = 0
        self.batch = RowBatch(
            model,
            max_cached_tokens=self.config.max_cached_tokens,
            max_prefill_tokens=self.config.max_prefill_tokens,
            is_batch_invariant=self.config.is_batch_invariant,
        )
        self._waiting: deque[Request] = deque()
        self._paused: deque[Request] = deque()
        """Requests in the middle of their answer, whose keys and values an update made void."""
        self._updates: deque[_Update] = deque()
        self._released: deque[str] = deque()
        self._cancelled: deque[Request] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # ---- called from any thread

    async def generate(self, request: Request) -> Generated:
        """Queue a request and wait for it; a cancelled caller drops it."""

        def end(future: concurrent.futures.Future[Generated]) -> None:
            request.leave_queue()
            if future.cancelled():
                self._cancelled.append(request)

        request.future.add_done_callback(end)
        self._put(self._waiting, request)
        try:
            with waiting():
                await asyncio.wrap_future(request.begun)
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.future.cancel()
            raise

    async def update(
        self, fn: Callable[[], None], version: int, *, is_immediate: bool = False
    ) -> None:
        """Call `fn`, forget all keys and values, then go on as `version`.

        It is called when no request runs; requests that wait are held back until then.
        is_immediate: it is called before the next token. Requests that run go on: what they have
        so far is computed again, and their answers' `version_spans` tell the weights apart.
        Updates are made in the order in which they are asked for.
        """
        update = _Update(fn, version, is_immediate)
        self._put(self._updates, update)
        await asyncio.wrap_future(update.future)

    def release(self, session_id: str) -> None:
        """Forget the keys and values kept for a session."""
        self._released.append(session_id)

    def close(self) -> None:
        """End the thread; requests in flight fail with `PolicyError`. May be called twice."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, queue: deque[T], item: T) -> None:
        """Queue something for the thread, which the first starts."""
        with self._wake:
            if self._is_closing:
                raise PolicyError("the policy is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="katgym-hf", daemon=True)
                self._thread.start()
            queue.append(item)
            self._wake.notify()

    # ---- the thread

    @property
    def _is_busy(self) -> bool:
        """Whether requests are in the middle of their answers."""
        return bool(self.batch.rows or self._paused)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._is_closing or self._waiting or self._updates or self._is_busy
                )
                while not self._is_busy and 0 < len(self._waiting) < self.config.max_batch_size:
                    if not self._wake.wait(_GAP_S):
                        break
                if self._is_closing:
                    break
            try:
                with torch.inference_mode():
                    self._round()
            except Exception as e:  # the thread's boundary: callers get it, the engine goes on
                num_running = len(self.batch.rows)
                logger.exception("the model failed with %d requests running", num_running)
                self._fail(_as_policy_error(e, num_running))
        self._fail(PolicyError("the policy was closed while the request was running"))

    def _round(self) -> None:
        while self._released:
            self.batch.release(self._released.popleft())
        self.batch.drop([self._cancelled.popleft() for _ in range(len(self._cancelled))])
        while self._updates and (self._updates[0].is_immediate or not self._is_busy):
            self._apply(self._updates.popleft())
        # Admit what waits and fits; while others run, up to `max_prefill_tokens` or one more.
        plan = self.batch.plan()
        num_new = 0
        is_bounded = bool(self.batch.rows)
        while (request := self._next_request(plan)) is not None:
            request.begin(self.version)
            num_new += plan.add(request).num_new
            if is_bounded and num_new >= self.config.max_prefill_tokens:
                break
        if plan.entries:
            self.batch.prefill(plan)
            self._answer()
        if self.batch.rows:
            self.batch.decode()
            self._answer()

    def _apply(self, update: _Update) -> None:
        self._paused.extend(self.batch.rows)
        self.batch.forget()
        try:
            with torch.inference_mode(mode=False):
                update.fn()
        except Exception as e:
            update.future.set_exception(e)
            return
        self.version = update.version
        update.future.set_result(None)

    def _next_request(self, plan: PrefillPlan) -> Request | None:
        """Return the first waiting request if there is room beside the rows and the plan."""
        while True:
            # Paused requests are not held back by an update: it waits for them.
            queue = self._paused or (self._waiting if not self._updates else None)
            if not queue or not self._has_room(queue[0], plan):
                return None
            request = queue.popleft()
            if not request.future.cancelled():
                return request

    def _has_room(self, request: Request, plan: PrefillPlan) -> bool:
        num_rows = len(self.batch.rows) + len(plan.entries) + 1
        longest = max(request.max_length, plan.max_length, self.batch.max_length)
        return num_rows == 1 or (
            num_rows <= self.config.max_batch_size
            and num_rows * longest <= self.config.max_batch_tokens
        )

    def _answer(self) -> None:
        for request in self.batch.take_finished():
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled just before
                request.future.set_result(request.to_generated())

    def _fail(self, error: PolicyError) -> None:
        """Fail all requests, queued ones included, and start from empty slots."""
        with self._wake:
            futures: list[concurrent.futures.Future[Any]] = [
                request.future for request in (*self.batch.rows, *self._paused, *self._waiting)
            ]
            if self._is_closing:
                futures += [update.future for update in self._updates]
            self._paused.clear()
            self._waiting.clear()
        self.batch.forget()
        for future in futures:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                future.set_exception(error)


def _as_policy_error(error: Exception, num_running: int) -> PolicyError:
    text = f"{type(error).__name__}: {error}"
    is_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
    if is_memory:
        return PolicyError(
            f"out of memory with {num_running} requests running ({text}). Lower max_batch_size,"
            " max_batch_tokens, max_prefill_tokens or max_cached_tokens."
        )
    made = PolicyError(f"the model failed: {text}")
    made.__cause__ = error
    return made
