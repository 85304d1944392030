"""Calls to workers and their answers, as bytes.

A call is requests that are played together; its answer their rollouts, or the error that they
raised. Where some have ended and others take long, the answer is what there is and a name by which
the rest is called for, so that a worker that dies takes nothing with it that had ended some time
ago. A call may be an engine instead, as which the worker's is to go on. All are pickles: workers
are processes of one user, started by this one. Not here: how the bytes get there
(`worker_process.py`, `katgym.cluster`), who is asked (`player_pool.py`).
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from katgym.environment.env import Env
from katgym.errors import UsageError
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Policy, Sampling
from katgym.policies.uri import policy as make_policy


@dataclass(frozen=True, kw_only=True)
class EngineRef:
    """A `RolloutEngine` as plain data: each worker makes one of it.

    Example:
        EngineRef(policy="vllm:http://10.0.0.7:8000#tiny", config=EngineConfig(max_concurrency=16))
    """

    policy: str
    """URI; the worker makes and closes the policy."""
    limits: Limits
    sampling: Sampling
    config: EngineConfig

    def make(self) -> RolloutEngine:
        """Make the engine, with its policy; raises what `katgym.policy` does."""
        policy = make_policy(self.policy)
        return RolloutEngine(policy, limits=self.limits, sampling=self.sampling, config=self.config)

    async def renew(self, engine: RolloutEngine) -> None:
        """Have an engine that an earlier reference made go on as this one's."""
        raise NotImplementedError(f"{type(self).__name__} does not change while it plays")


def check_policy(policy: Policy, num_workers: int) -> None:
    """Raise `UsageError` for a policy of which every worker would load the model."""
    if policy.holds_model:
        raise UsageError(
            f"policy {policy.name!r} loads its model into the process that plays, and"
            f" {num_workers} workers would hold {num_workers} of them: serve the model (katgym vllm"
            " serve MODEL) and play vllm:URL#MODEL, or play without workers"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCall:
    """Requests that are played side by side."""

    requests: list[RolloutRequest]
    max_wait_s: float
    """Wall seconds after which an answer tells what has ended, if anything has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCall:
    """What an answer has left out."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """Rollouts by their requests' places in the call."""

    rollouts: dict[int, Rollout] = field(default_factory=dict)
    rest: bytes = b""
    """The call for what is missing; empty when nothing is."""


def pack_call(requests: Sequence[RolloutRequest], max_wait_s: float) -> bytes:
    """Return requests as bytes; `UsageError` for an env that cannot be made elsewhere."""
    refs = {id(r.env): EnvRef.of(r.env) for r in requests if isinstance(r.env, Env)}
    sent = [replace(request, env=refs.get(id(request.env), request.env)) for request in requests]
    return pickle.dumps(GroupCall(requests=sent, max_wait_s=max_wait_s), pickle.HIGHEST_PROTOCOL)


class Answerer:
    """A worker's answers to calls."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self._unfinished: dict[str, _Group] = {}

    async def answer(self, call: bytes) -> bytes:
        """Play what a call asks for, and return its answer."""
        try:
            asked = pickle.loads(call)
            if isinstance(asked, EngineRef):
                await asked.renew(self.engine)
                return pack_answer()
            if isinstance(asked, RestCall):
                group = self._unfinished.pop(asked.name, None)
                if group is None:  # asked of another worker: this one has none of it
                    return pack_answer()
            else:
                group = _Group(self.engine, asked)
            rollouts = await group.wait()
            if not group.playing:
                return pack_answer(rollouts)
            name = secrets.token_hex(8)
            self._unfinished[name] = group
            return pack_answer(rollouts, pickle.dumps(RestCall(name=name)))
        except Exception as e:  # it is raised where the call came from
            return pack_error(e)

    async def aclose(self) -> None:
        """Give up what nobody has called for, and close the policy."""
        for group in self._unfinished.values():
            await group.cancel()
        await self.engine.policy.aclose()


class _Group:
    """A call's requests, played."""

    def __init__(self, engine: RolloutEngine, call: GroupCall) -> None:
        self._max_wait_s = call.max_wait_s
        self.playing = {
            asyncio.create_task(engine.play_group([request])): place
            for place, request in enumerate(call.requests)
        }

    async def wait(self) -> dict[int, Rollout]:
        """Return what has ended since the last time: all, or some after `max_wait_s`.

        Whoever is cancelled here, or finds an error, ends the others.
        """
        found: dict[int, Rollout] = {}
        until = asyncio.get_running_loop().time() + self._max_wait_s
        try:
            while self.playing:
                left_s = until - asyncio.get_running_loop().time()
                if found and left_s <= 0:
                    break
                ended, _ = await asyncio.wait(
                    self.playing,
                    timeout=max(0.0, left_s) if found else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended:
                    place = self.playing.pop(task)
                    (found[place],) = task.result()
        except BaseException:
            await self.cancel()
            raise
        return found

    async def cancel(self) -> None:
        """End what is played."""
        for task in self.playing:
            task.cancel()
        await asyncio.gather(*self.playing, return_exceptions=True)


def pack_answer(rollouts: dict[int, Rollout] | None = None, rest: bytes = b"") -> bytes:
    """Return an answer as bytes."""
    return pickle.dumps(GroupAnswer(rollouts=rollouts or {}, rest=rest), pickle.HIGHEST_PROTOCOL)


def pack_error(error: Exception) -> bytes:
    """Return an error as bytes; one that cannot be sent, as its words."""
    try:
        found = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(found)
    except Exception:  # whatever an exception's own constructor raises
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps(RuntimeError(text), pickle.HIGHEST_PROTOCOL)
    return found


def unpack_answer(answer: bytes) -> GroupAnswer:
    """Return an answer, or raise the error that it is."""
    found = pickle.loads(answer)
    if isinstance(found, Exception):
        raise found
    told: GroupAnswer = found
    return told
