"""Workers that play, as Ray's actors: Ray places them and starts them again, elsewhere if need be.

A call is at most one group and at most played once by Ray (`max_task_retries=0`): what is lost is
asked for again by the `PlayerPool`, which alone knows whether it has the answer. Calls and answers
are bytes that Ray does not look into. Not here: the calls (`katgym.play.workers`), the connection
(`ray_cluster.py`).
"""

from __future__ import annotations

import asyncio
import os
import pickle
from typing import Any

from katgym.cluster.cluster_config import ClusterConfig
from katgym.cluster.ray_cluster import place, ray
from katgym.play.workers.player_pool import WorkerLostError
from katgym.play.workers.worker_calls import (
    Answerer,
    EngineRef,
    pack_answer,
    pack_error,
    unpack_answer,
)

_AGAIN_S = 0.5
"""Between two looks whether Ray has found a place."""
_NOT_BEGUN = b""
"""Answered by an actor that has started again and was not told what to play."""


class RolloutActor:
    """What Ray runs: an engine that answers calls."""

    def __init__(self) -> None:
        self._answerer: Answerer | None = None

    async def begin(self, ref: bytes) -> bytes:
        """Make the engine; return an answer whose error says why it cannot be made."""
        try:
            if self._answerer is not None:  # whoever asked it gave it up
                await self._answerer.aclose()
            made: EngineRef = pickle.loads(ref)
            self._answerer = Answerer(made.make())
        except Exception as e:  # raised where the engine was asked for
            return pack_error(e)
        return pack_answer()

    async def play(self, call: bytes) -> bytes:
        """Answer a call."""
        return _NOT_BEGUN if self._answerer is None else await self._answerer.answer(call)

    async def where(self) -> str:
        """Return the process and its node."""
        node: str = ray.get_runtime_context().get_node_id()
        return f"process {os.getpid()} on node {node[:8]}"


class RayWorker:
    """A `Worker` that is an actor."""

    def __init__(self, engine: EngineRef, number: int, config: ClusterConfig) -> None:
        self.name = f"rollout worker {number}"
        self.engine = engine
        self._number, self._config = number, config
        self._actor: Any = None

    async def start(self) -> None:
        asked = f"{self.name} waits for {self._config.cpus_per_worker:g} CPU"
        await place(self._start(), asked)

    async def _start(self) -> None:
        """Ask until there is an actor that can play: Ray may be looking for its place."""
        while True:
            if self._actor is None:
                self._actor = ray.remote(
                    num_cpus=self._config.cpus_per_worker,
                    max_restarts=-1,
                    max_task_retries=0,
                    scheduling_strategy="SPREAD",
                )(RolloutActor).remote()
            try:
                unpack_answer(await self._ask("begin", pickle.dumps(self.engine)))
                self.name = f"rollout worker {self._number} ({await self._ask('where')})"
            except WorkerLostError as e:
                if isinstance(e.__cause__, ray.exceptions.ActorDiedError):
                    self._actor = None  # somebody has ended it for good
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def play(self, call: bytes) -> bytes:
        answer: bytes = await self._ask("play", call)
        if answer == _NOT_BEGUN:
            raise WorkerLostError(f"{self.name} was started again")
        return answer

    async def aclose(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None

    async def _ask(self, method: str, *arguments: bytes) -> Any:
        """Call the actor; `WorkerLostError` where Ray has lost it, or what it had answered."""
        if self._actor is None:
            raise WorkerLostError(f"{self.name} has ended")
        called = getattr(self._actor, method).remote(*arguments)
        try:
            return await called
        except asyncio.CancelledError:
            if self._actor is not None:
                ray.cancel(called)
            raise
        except ray.exceptions.RayTaskError:
            raise  # the actor's own: it answers with errors, so this is a fault of ours
        except ray.exceptions.RayError as e:
            raise WorkerLostError(f"{self.name} has ended ({type(e).__name__})") from e
