"""Plays a recorded episode again: its env from its seed, the recorded answers, the same loop.

What env and loop give is compared with the record: every observation, tool result, the reward with
its components, how it ended. Beside it the run's policy may be asked for its answers
(`recorded_policy.py`). Not here: which rollouts (`verify.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import msgspec

from katgym.environment.env import Env
from katgym.environment.failure import FailureKind
from katgym.environment.messages import Message
from katgym.environment.reward import Reward
from katgym.environment.scheduler import ToolErrorKind
from katgym.environment.task import Task
from katgym.errors import KatgymError
from katgym.evaluation.verification.folder import BY_CLOCK
from katgym.evaluation.verification.recorded_policy import BY_POLICY, RecordedPolicy
from katgym.evaluation.verification.report import Verdict
from katgym.play.agent_loop import run_rollout
from katgym.play.limits import Limits
from katgym.play.match import run_match
from katgym.play.rollout import Rollout, Turn
from katgym.policies.base import Policy
from katgym.policies.token_policy import TokenPolicy

_SLOWER = 20.0
"""Times as long as it took there an episode may take here, and a minute."""
_TIMEOUTS = (ToolErrorKind.TIMEOUT, ToolErrorKind.TURN_TIMEOUT)


@runtime_checkable
class RegradingEnv(Protocol):
    """An env that is not deterministic and can grade what an episode left."""

    async def regrade(
        self, task: Task, messages: Sequence[Message], artifacts: Mapping[str, Any]
    ) -> float | None:
        """Return a recorded episode's reward, graded anew without playing it.

        None: the record does not tell it. Called on a fresh instance.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Restep:
    """What playing one rollout again showed."""

    verdict: Verdict
    reason: str = ""
    """Of what is not verified."""
    num_asked: int = 0
    """Answers that the run's policy was asked for."""
    otherwise: Sequence[str] = ()
    """Where it answered otherwise than the record."""
    has_gone_on: bool = False
    """Whether it answered where the record says that it failed."""


async def restep(
    env: Env, rollout: Rollout, *, limits: Limits, policy: Policy | None = None
) -> Restep:
    """Play a recorded rollout again in a fresh env and compare.

    limits: the run's. policy: asked for its answers, which are compared and not played.
    """
    recorded = RecordedPolicy(rollout, policy)
    replayed = await run_rollout(
        env,
        recorded,
        seed=rollout.seed,
        task_id=rollout.task_id,
        split=rollout.split,
        attempt=rollout.attempt,
        limits=replace(limits, timeout_s=60.0 + _SLOWER * rollout.wall_s),
        sampling=rollout.sampling,
    )
    verdict, reason = _compare(env, rollout, replayed, is_cut=recorded.is_used_up)
    is_full = rollout.failure_kind is FailureKind.CONTEXT_LENGTH
    if is_full and verdict is Verdict.VERIFIED and not isinstance(policy, TokenPolicy):
        verdict, reason = Verdict.INCOMPLETE, "its policy said that its context was full"
    if verdict is not Verdict.VERIFIED and not env.is_deterministic and rollout.reward.is_valid:
        verdict, reason = await _regrade(env.clone(), rollout, reason)
    return Restep(
        verdict=verdict,
        reason=reason,
        num_asked=recorded.num_asked,
        otherwise=tuple(recorded.otherwise),
        has_gone_on=recorded.has_gone_on,
    )


async def restep_match(env: Env, rollouts: Mapping[str, Rollout]) -> dict[str, Restep]:
    """Play the recorded rollouts of all seats of one episode again; returns seat -> what it showed.

    env: made as it was then.
    """
    policies = {seat: RecordedPolicy(rollout) for seat, rollout in rollouts.items()}
    first = next(iter(rollouts.values()))
    replayed = await run_match(
        env, policies, seed=first.seed, task_id=first.task_id, sampling=first.sampling
    )
    found = {
        seat: _compare(env, rollout, replayed[seat], is_cut=policies[seat].is_used_up)
        for seat, rollout in rollouts.items()
    }
    return {seat: Restep(verdict=verdict, reason=why) for seat, (verdict, why) in found.items()}


def _compare(env: Env, rollout: Rollout, replayed: Rollout, *, is_cut: bool) -> tuple[Verdict, str]:
    """Return what a replay says of a record; is_cut: the replay asked for more than was recorded.

    Where a clock or a fault may be behind a difference, it refutes nothing.
    """
    if rollout.reward.is_valid and not replayed.reward.is_valid:
        # The answers come from the record: what the loop does not take, no loop took.
        is_refused = replayed.failure_kind in BY_POLICY
        verdict = Verdict.REFUTED if is_refused else Verdict.INCOMPLETE
        return verdict, f"it cannot be played: {replayed.reason}"
    if rollout.failure_kind in BY_CLOCK:
        return Verdict.INCOMPLETE, f"a clock ended it ({rollout.failure_kind})"
    if not rollout.reward.is_valid:
        return _compare_invalid(env, rollout, replayed, is_cut=is_cut)
    differences = list(_differences(env, rollout, replayed))
    if not differences:
        return Verdict.VERIFIED, ""
    reason = "; ".join(differences[:3])
    has_timeout = any(r.error in _TIMEOUTS for r in (*rollout.tool_results, *replayed.tool_results))
    if has_timeout or replayed.failure_kind in BY_CLOCK:
        return Verdict.INCOMPLETE, f"a timeout is in it: {reason}"
    if not env.is_deterministic:
        return Verdict.INCOMPLETE, f"it went otherwise here: {reason}"
    if env.plugin_version != rollout.plugin_version:
        return Verdict.INCOMPLETE, f"the plugin is {env.plugin_version} here: {reason}"
    return Verdict.REFUTED, reason


def _compare_invalid(
    env: Env, rollout: Rollout, replayed: Rollout, *, is_cut: bool
) -> tuple[Verdict, str]:
    """Compare a rollout that a fault ended: as far as it got."""
    num_whole = max(0, len(rollout.turns) - 1)  # the fault may have been in the last one's step
    pairs = list(zip(rollout.turns[:num_whole], replayed.turns, strict=False))
    if env.is_deterministic and env.plugin_version == rollout.plugin_version:
        for index, (turn, other) in enumerate(pairs):
            for what in _turn_differences(turn, other):
                return Verdict.REFUTED, f"turn {index} {what}"
    kind = rollout.failure_kind
    if kind in BY_POLICY:
        if replayed.reward.is_valid and not is_cut:
            return Verdict.REFUTED, f"{kind}, although it had ended without a fault"
    elif replayed.failure_kind is not kind and (env.is_deterministic or not is_cut):
        how = "it goes on" if is_cut else f"its reward is {replayed.reward.value}"
        return Verdict.INCOMPLETE, f"{kind} there, here {how}"
    return Verdict.VERIFIED, ""


async def _regrade(env: Env, rollout: Rollout, reason: str) -> tuple[Verdict, str]:
    """Grade what a rollout left, whose actions did not lead there again."""
    if not isinstance(env, RegradingEnv):
        return Verdict.INCOMPLETE, reason
    try:
        task = env.tasks(rollout.split).get(rollout.task_id)
        value = await env.regrade(task, rollout.messages, rollout.artifacts)
    except KatgymError as e:
        return Verdict.INCOMPLETE, f"{reason}; it cannot be graded here: {e}"
    if value is None or rollout.reward.value is None:
        return Verdict.INCOMPLETE, reason
    if value != rollout.reward.value:
        return Verdict.REFUTED, f"the reward is {rollout.reward.value}, graded anew it is {value}"
    return Verdict.INCOMPLETE, f"graded anew the reward is the same, but {reason}"


def _differences(env: Env, rollout: Rollout, replayed: Rollout) -> Iterable[str]:
    """Yield what differs; of an env that is not deterministic, what its reward stands on."""
    if not _is_same_reward(env, rollout.reward, replayed.reward):
        yield f"the reward is {_reward(rollout)}, played again it is {_reward(replayed)}"
    for name in ("task_sha256", "env_kwargs", "seat", "success", "artifacts"):
        if not _is_same(getattr(rollout, name), getattr(replayed, name)):
            yield f"{name} is {getattr(rollout, name)!r:.200}, not {getattr(replayed, name)!r:.200}"
    if not env.is_deterministic:
        return
    for name in ("status", "failure_kind", "reason", "num_turns"):
        if getattr(rollout, name) != getattr(replayed, name):
            yield f"{name} is {getattr(rollout, name)!s}, not {getattr(replayed, name)!s}"
    for index, (turn, other) in enumerate(zip(rollout.turns, replayed.turns, strict=False)):
        yield from (f"turn {index} {what}" for what in _turn_differences(turn, other))
    if not _is_same(rollout.final_messages, replayed.final_messages):
        yield "the env's last messages differ"


def _turn_differences(turn: Turn, other: Turn) -> Iterable[str]:
    for name in ("messages", "num_shared_messages", "answer", "tools"):
        if not _is_same(getattr(turn, name), getattr(other, name)):
            yield f"has other {name}"
    told, own = (
        [(r.call_id, r.name, r.content, r.error, r.stage, r.num_bytes_omitted)
         for r in each.tool_results] for each in (turn, other)
    )  # fmt: skip
    if told != own:
        yield "has other tool results"


def _is_same_reward(env: Env, one: Reward, other: Reward) -> bool:
    """Compare values and what they are made of; metrics only where the env is deterministic."""
    if (one.value, one.is_valid) != (other.value, other.is_valid):
        return False
    if env.is_deterministic and one.reason != other.reason:
        return False
    sides = [
        {n: c for n, c in reward.components.items() if env.is_deterministic or c.weight}
        for reward in (one, other)
    ]
    return sides[0] == sides[1]


def _reward(rollout: Rollout) -> str:
    parts = {name: component.score for name, component in rollout.reward.components.items()}
    return f"{rollout.reward.value} {parts}"


def _is_same(one: Any, other: Any) -> bool:
    """Compare values of which one came from a file."""
    if one == other:
        return True
    plain = [json.loads(json.dumps(msgspec.to_builtins(v), sort_keys=True)) for v in (one, other)]
    return bool(plain[0] == plain[1])
