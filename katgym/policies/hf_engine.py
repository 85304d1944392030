"""Continuous batching over a transformers causal LM, in a thread of its own.

Each round admits waiting requests (prefill one by one, reusing keys and values of the longest
prefix that an earlier or a running request left), then decodes one token for every running row.
A row's random stream is its own. Its numbers depend on its neighbours only by the rounding of
matrix products of another batch size (about 1e-6 in fp32, more in bf16).

Not here: text and messages (`rendering.py`); loading models (`hf.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from katgym.errors import PolicyError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.kv_slots import SlotCache, Stored
from katgym.policies.sampler import sample_token
from katgym.policies.token_policy import Generated
from katgym.rendering import num_common

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of the engine."""

    max_batch_size: int = 16
    """Requests decoded together; more wait."""
    max_cached_tokens: int = 8192
    """Tokens of finished requests whose keys and values are kept for reuse; 0 keeps none."""

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise UsageError(f"max_batch_size is >= 1, got {self.max_batch_size!r}")
        if self.max_cached_tokens < 0:
            raise UsageError(f"max_cached_tokens is >= 0, got {self.max_cached_tokens!r}")


@dataclass(eq=False)
class Request:
    """One completion in the making; `ids` is the prompt followed by what was sampled."""

    ids: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling
    generator: torch.Generator
    session_id: str
    num_prompt: int = 0
    num_cached: int = 0
    """Tokens whose keys and values are in the row's slot."""
    logprobs: list[float] = field(default_factory=list)
    version: int = 0
    future: concurrent.futures.Future[Generated] = field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.ids)

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length`, or None while there is more to sample."""
        if not self.logprobs:
            return None
        if self.ids[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.logprobs) >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class _Update:
    """A change of the model, made when no request is running."""

    fn: Callable[[], None]
    version: int
    future: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)


class BatchEngine:
    """Answers requests with one model; `start` begins the thread, `close` ends it."""

    def __init__(self, model: Any, config: EngineConfig | None = None) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self.version = 0
        self.num_prefilled = 0
        """Prompt tokens computed; those reused from a prefix are not in it."""
        self.num_reused = 0
        self.num_decoded = 0
        self._num_layers = model.config.get_text_config().num_hidden_layers
        self._slots = SlotCache(self._num_layers)
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._updates: deque[_Update] = deque()
        self._prefixes: OrderedDict[str, tuple[list[int], Stored]] = OrderedDict()
        self._released: deque[str] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # ---- called from any thread

    async def generate(self, request: Request) -> Generated:
        """Queue a request and wait for it; a cancelled caller drops it."""
        with self._wake:
            if self._is_closing:
                raise PolicyError("the policy is closed")
            self._start()
            self._waiting.append(request)
            self._wake.notify()
        return await asyncio.wrap_future(request.future)

    async def update(self, fn: Callable[[], None], version: int) -> None:
        """Call `fn` when no request runs, forget all keys and values, then go on as `version`.

        Requests that wait are held back until then.
        """
        update = _Update(fn, version)
        with self._wake:
            if self._is_closing:
                raise PolicyError("the policy is closed")
            self._start()
            self._updates.append(update)
            self._wake.notify()
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

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="katgym-hf", daemon=True)
            self._thread.start()

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._is_closing or self._waiting or self._updates or self._running
                )
                if self._is_closing:
                    break
            try:
                with torch.inference_mode():
                    self._round()
            except Exception as e:  # the thread's boundary: callers get it, the engine goes on
                logger.exception("the model failed with %d requests running", len(self._running))
                self._fail(_as_policy_error(e, len(self._running)))
        self._fail(PolicyError("the policy was closed while the request was running"))

    def _round(self) -> None:
        while self._released:
            self._prefixes.pop(self._released.popleft(), None)
        for row in reversed(range(len(self._running))):
            if self._running[row].future.cancelled():
                self._leave(row)
        if self._updates and not self._running:
            self._apply(self._updates.popleft())
        while not self._updates and self._waiting:
            if len(self._running) >= self.config.max_batch_size:
                break
            request = self._waiting.popleft()
            if not request.future.cancelled():
                self._admit(request)
        if self._running:
            self._decode()

    def _apply(self, update: _Update) -> None:
        self._prefixes.clear()
        self._slots = SlotCache(self._num_layers)
        try:
            with torch.inference_mode(mode=False):
                update.fn()
        except Exception as e:
            update.future.set_exception(e)
            return
        self.version = update.version
        update.future.set_result(None)

    def _admit(self, request: Request) -> None:
        """Give the request the next slot and compute its prompt and first token."""
        slot = len(self._running)
        request.version = self.version
        self._running.append(request)
        request.num_cached = self._reuse_prefix(request, slot)
        self.num_reused += request.num_cached
        self.num_prefilled += len(request.ids) - request.num_cached
        self._forward(slot, [request])

    def _decode(self) -> None:
        self.num_decoded += len(self._running)
        self._forward(0, list(self._running))

    def _forward(self, start: int, rows: list[Request]) -> None:
        """Feed every row's tokens that are not in its slot yet, and sample one for each."""
        starts = [row.num_cached for row in rows]
        new_BQ = torch.tensor([row.ids[row.num_cached :] for row in rows])
        device = self.model.device
        mask = self._slots.aim(start, starts, new_BQ.shape[1], device)
        position_BQ = torch.tensor(starts)[:, None] + torch.arange(new_BQ.shape[1])
        output = self.model(
            input_ids=new_BQ.to(device),
            attention_mask=mask,
            position_ids=position_BQ.to(device),
            past_key_values=self._slots.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        for row, logits_V in zip(rows, output.logits[:, -1], strict=True):
            row.num_cached = len(row.ids)
            token, logprob = sample_token(logits_V, row.sampling, row.generator)
            row.ids.append(token)
            row.logprobs.append(logprob)
        for index in reversed(range(start, start + len(rows))):
            if self._running[index].finish_reason is not None:
                self._finish(index)

    def _finish(self, row: int) -> None:
        request = self._running[row]
        self._keep_prefix(request, row)
        self._leave(row)
        result = Generated(
            token_ids=request.ids[request.num_prompt :],
            policy_logprobs=request.logprobs,
            finish_reason=request.finish_reason or "length",
            policy_version=request.version,
        )
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled just before
            request.future.set_result(result)

    def _leave(self, row: int) -> None:
        """Free a slot; the last row moves into it, so that running rows stay side by side."""
        last = len(self._running) - 1
        if row != last:
            self._slots.copy_row(last, row, self._running[last].num_cached)
            self._running[row] = self._running[last]
        self._running.pop()

    def _reuse_prefix(self, request: Request, slot: int) -> int:
        """Copy the longest known prefix of the prompt into the slot; return its length.

        The last prompt token is always computed, as its logits are needed.
        """
        limit = len(request.ids) - 1
        best, source = 0, -1
        for index, row in enumerate(self._running[:slot]):
            length = min(num_common(row.ids, request.ids), row.num_cached, limit)
            if length > best:
                best, source = length, index
        stored: Stored | None = None
        for ids, kept in self._prefixes.values():
            length = min(num_common(ids, request.ids), limit)
            if length > best:
                best, stored = length, kept
        if stored is not None:
            self._slots.put(slot, stored, best)
        elif best:
            self._slots.copy_row(source, slot, best)
        return best

    def _keep_prefix(self, request: Request, slot: int) -> None:
        self._prefixes.pop(request.session_id, None)
        length = request.num_cached
        if length > self.config.max_cached_tokens:
            return
        self._prefixes[request.session_id] = (
            request.ids[:length],
            self._slots.take(slot, length),
        )
        while sum(len(ids) for ids, _ in self._prefixes.values()) > self.config.max_cached_tokens:
            self._prefixes.popitem(last=False)

    def _fail(self, error: PolicyError) -> None:
        """Fail all requests, queued ones included, and start from empty slots."""
        with self._wake:
            futures: list[concurrent.futures.Future[Any]] = [
                *(request.future for request in self._running),
                *(request.future for request in self._waiting),
            ]
            if self._is_closing:
                futures += [update.future for update in self._updates]
            self._running.clear()
            self._waiting.clear()
        self._prefixes.clear()
        self._slots = SlotCache(self._num_layers)
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
            " max_context_tokens or max_cached_tokens."
        )
    made = PolicyError(f"the model failed: {text}")
    made.__cause__ = error
    return made
