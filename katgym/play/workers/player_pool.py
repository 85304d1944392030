"""Groups played by several workers; what a worker takes with it is played again by another.

    async with PlayerPool([WorkerProcess(ref) for _ in range(4)]) as pool:
        rollouts = await pool.play_group(requests)

A group is asked of one worker at a time and answered once. When that worker ends before it has
answered, what is missing of its groups goes to others, whether or not it had finished it; what
ended is fetched every `max_wait_s`. Not here: starting workers, and noticing their end
(`worker_process.py`, `katgym.cluster`).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from katgym.errors import InfrastructureError
from katgym.play.engine import RolloutRequest
from katgym.play.rollout import Rollout
from katgym.play.workers.worker_calls import EngineRef, pack_call, unpack_answer
from katgym.system.concurrency import run_all

logger = logging.getLogger(__name__)

MAX_LOSSES = 8
"""Workers that may end under one group before it is taken to be what ends them."""
_MAX_STARTS = 3
"""Times in a row that a worker may fail to start again."""


class WorkerLostError(InfrastructureError):
    """A worker ended before it had answered."""


class Worker(Protocol):
    """A process that plays, here or on another machine."""

    name: str
    """For logs: which process it is, and where."""
    engine: EngineRef
    """What it makes when it starts."""

    async def start(self) -> None:
        """Have it ready to play, at first and after it was lost; raises why it cannot be."""

    async def play(self, call: bytes) -> bytes:
        """Return the answer to a call; `WorkerLostError` when the worker ends before that."""

    async def aclose(self) -> None:
        """End it, with what it plays."""


@dataclass(slots=True)
class WorkerState:
    """A worker, and how it is doing."""

    worker: Worker
    is_up: bool = False
    num_running: int = 0
    """Rollouts that it was asked for and has not returned."""
    num_calls: int = 0
    """Groups that it has returned."""
    num_restarts: int = 0
    error: Exception | None = None
    """Why it is not started again."""

    def to_json(self) -> dict[str, Any]:
        """Return what there is to say about it, as JSON values."""
        names = ("is_up", "num_running", "num_calls", "num_restarts")
        told = {name: getattr(self, name) for name in names}
        return {"name": self.worker.name, **told, "error": str(self.error or "")}


class PlayerPool:
    """A `GroupPlayer` of several workers; an async context manager."""

    def __init__(self, workers: Sequence[Worker], *, max_wait_s: float = 10.0) -> None:
        """max_wait_s: wall seconds that a rollout which has ended waits at most for its group."""
        self.states = [WorkerState(worker) for worker in workers]
        self._max_wait_s = max_wait_s
        self._changed = asyncio.Condition()
        self._starting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        try:
            await run_all(state.worker.start() for state in self.states)
        except BaseException:
            await self.__aexit__()
            raise
        for state in self.states:
            state.is_up = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await run_all(state.worker.aclose() for state in self.states)

    async def play(self, request: RolloutRequest) -> Rollout:
        """Play one request, which travels alone: what has ended is here."""
        (rollout,) = await self.play_group([request])
        return rollout

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Have a worker play requests, and another one what is missing where that one ends."""
        found: dict[int, Rollout] = {}
        num_losses = 0
        while num_losses < MAX_LOSSES:
            missing = [place for place in range(len(requests)) if place not in found]
            if not missing:
                return [found[place] for place in range(len(requests))]
            call = pack_call([requests[place] for place in missing], self._max_wait_s)
            state = await self._least_busy()
            num_restarts = state.num_restarts
            num_running = len(missing)
            state.num_running += num_running
            try:
                while call:
                    answer = unpack_answer(await state.worker.play(call))
                    found |= {missing[place]: answer.rollouts[place] for place in answer.rollouts}
                    state.num_running -= len(answer.rollouts)
                    num_running -= len(answer.rollouts)
                    call = answer.rest
            except WorkerLostError as e:
                if self._is_closed:
                    raise
                if state.num_restarts == num_restarts:  # else another has taken its place
                    self._went_down(state, e)
                num_losses = num_losses + 1 if num_running == len(missing) else 0
            else:
                state.num_calls += 1
            finally:
                state.num_running -= num_running
        first = requests[0]
        raise InfrastructureError(
            f"{MAX_LOSSES} workers ended, one after the other, while they played task"
            f" {first.task_id!r} with seed {first.seed!r}: it may be what ends them (too much"
            " memory, a crash of a library). Play it alone, without workers, to see"
        )

    async def renew(self, engine: EngineRef) -> None:
        """Have all workers go on with another engine; returns when those that are up do."""
        for state in self.states:
            state.worker.engine = engine
        await run_all(self._renew_one(state) for state in self.states if state.is_up)

    async def _renew_one(self, state: WorkerState) -> None:
        num_restarts = state.num_restarts
        try:
            unpack_answer(await state.worker.play(pickle.dumps(state.worker.engine)))
        except WorkerLostError as e:
            if state.num_restarts == num_restarts:
                self._went_down(state, e)

    async def _least_busy(self) -> WorkerState:
        """Wait for a worker that is up; raise why none will be."""
        async with self._changed:
            while True:
                ready = [state for state in self.states if state.is_up]
                if ready:
                    return min(ready, key=lambda state: state.num_running)
                if all(state.error for state in self.states):
                    error = self.states[0].error
                    assert error is not None
                    raise error
                await self._changed.wait()

    def _went_down(self, state: WorkerState, error: WorkerLostError) -> None:
        """Have a worker started again, once however many calls were lost with it."""
        if not state.is_up:
            return
        state.is_up = False
        logger.warning("%s; what it played is played again", error)
        task = asyncio.create_task(self._start_again(state))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_again(self, state: WorkerState) -> None:
        error: Exception | None = None
        for attempt in range(_MAX_STARTS):
            await asyncio.sleep(attempt)
            try:
                engine = None
                while engine is not state.worker.engine:  # it may be renewed meanwhile
                    engine = state.worker.engine
                    await state.worker.start()
            except Exception as e:  # whatever it is, nobody is to wait for the worker
                error = e
                continue
            state.is_up = True
            state.num_restarts += 1
            break
        else:
            logger.error("%s is not started again: %s", state.worker.name, error)
            state.error = error
        async with self._changed:
            self._changed.notify_all()
