"""Calls to workers and their answers, as bytes.

A call is requests that are played together; its answer their rollouts, or the error that they
raised. It may be an engine instead, as which the worker's is to go on. All are pickles: workers are
processes of one user, started by this one. Not here: how the bytes get there (`worker_process.py`,
`katgym.cluster`), who is asked (`player_pool.py`).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def pack_call(requests: Sequence[RolloutRequest]) -> bytes:
    """Return requests as bytes; `UsageError` for an env that cannot be made elsewhere."""
    refs = {id(r.env): EnvRef.of(r.env) for r in requests if isinstance(r.env, Env)}
    sent = [replace(request, env=refs.get(id(request.env), request.env)) for request in requests]
    return pickle.dumps(sent, pickle.HIGHEST_PROTOCOL)


async def answer_call(engine: RolloutEngine, call: bytes) -> bytes:
    """Play what a call asks for, and return its answer."""
    try:
        asked = pickle.loads(call)
        if isinstance(asked, EngineRef):
            await asked.renew(engine)
            return pickle.dumps([])
        return pickle.dumps(await engine.play_group(asked), pickle.HIGHEST_PROTOCOL)
    except Exception as e:  # it is raised where the call came from
        return pack_error(e)


def pack_error(error: Exception) -> bytes:
    """Return an error as bytes; one that cannot be sent, as its words."""
    try:
        found = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(found)
    except Exception:  # whatever an exception's own constructor raises
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps(RuntimeError(text), pickle.HIGHEST_PROTOCOL)
    return found


def unpack_answer(answer: bytes) -> list[Rollout]:
    """Return the rollouts of an answer, or raise the error that it holds."""
    found = pickle.loads(answer)
    if isinstance(found, Exception):
        raise found
    rollouts: list[Rollout] = found
    return rollouts
