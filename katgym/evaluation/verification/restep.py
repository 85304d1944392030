"""Plays a recorded episode again: its env from its seed, the recorded answers, the same loop.

What env and loop give is compared with the record: every observation, tool result, the reward with
its components, how it ended. Of an env that is not deterministic what a program printed may differ
(observations after the first answer, tool results, metrics), and is then named, not refuted. Beside
it the run's policy may be asked for its answers (`recorded_policy.py`). Not here: which rollouts
(`verify.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import msgspec

from katgym.environment.env import Env
from katgym.environment.failure import FailureKind
from katgym.environment.messages import Message
from katgym.environment.reward import Reward, Trust
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
_PRINTED = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|(?<![\w.])\d++(?:\.\d++)?+ ?(?:ns|us|µs|ms|s|secs?|seconds?|minutes?)\b"
    r"|(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?"
)
"""Addresses, durations and times of day: two runs of one program print others."""


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
    unverified_metrics: frozenset[str] = frozenset()
    """Components of weight 0 that the replay does not give."""
    is_trust_verified: bool = True
    """Whether the replay's verdict can be trusted as far as the record says, for its reason."""
    num_equal_turns: int = 0
    """Turns whose tool results, and what the env said next, are the record's, addresses and times
    aside; 0 for deterministic envs, where any difference refutes."""


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
    is_open = verdict is Verdict.INCOMPLETE and rollout.reward.is_valid
    if is_open and not env.is_deterministic and env.plugin_version == rollout.plugin_version:
        verdict, reason = await _regrade(env.clone(), rollout, reason)
    told, own = rollout.reward, replayed.reward
    return Restep(
        verdict=verdict,
        reason=reason,
        num_asked=recorded.num_asked,
        otherwise=tuple(recorded.otherwise),
        has_gone_on=recorded.has_gone_on,
        unverified_metrics=_unverified_metrics(told, own, is_verified=verdict is Verdict.VERIFIED),
        is_trust_verified=not told.is_valid
        or (told.trust, told.trust_reason) == (own.trust, own.trust_reason),
        num_equal_turns=0
        if env.is_deterministic
        else sum(
            _reply(rollout, index) == _reply(replayed, index)
            for index in range(min(rollout.num_turns, replayed.num_turns))
        ),
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

    Where a clock, a fault or a program may be behind a difference, it refutes nothing.
    """
    if env.plugin_version == rollout.plugin_version:
        forged = list(_forgeries(env, rollout, replayed))
        if forged:
            return Verdict.REFUTED, "; ".join(forged[:3])
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


def _forgeries(env: Env, rollout: Rollout, replayed: Rollout) -> Iterable[str]:
    """Yield what of a record no clock, fault or program can be behind."""
    reward, scorers = rollout.reward, {scorer.name: scorer for scorer in env.rubric.scorers}
    for name, component in reward.components.items():
        if name in scorers and (problem := scorers[name].problem(component.score)):
            yield f"{name} is {problem}"
    if rollout.reason != reward.reason:
        yield f"reason is {rollout.reason!r:.200}, of its reward {reward.reason!r:.200}"
    if replayed.reward.is_valid:
        is_plain = reward.is_valid and rollout.failure_kind is None
        if is_plain and reward.reason and not replayed.reward.reason:
            yield f"reason is {reward.reason!r:.200} of a reward that needs none"
        own = replayed.reward.trust
        own = env.task.trust if own is Trust.WITHHELD else own
        if reward.trust not in (None, Trust.WITHHELD, own):
            yield f"trust is {reward.trust!s}, not {own!s}"
        for name in ("task_sha256", "env_kwargs", "seat", "success"):
            yield from _difference(name, rollout, replayed)
    if not (env.is_deterministic or env.has_fixed_opening):
        return
    for index, (turn, other) in enumerate(zip(rollout.turns, replayed.turns, strict=False)):
        names = ("messages", "num_shared_messages", "tools") if index == 0 else ("tools",)
        for name in names:
            if not _is_same(getattr(turn, name), getattr(other, name)):
                yield f"turn {index} has other {name}"
    has_opened = reward.is_valid or bool(rollout.final_messages)
    if not rollout.turns and has_opened and replayed.reward.is_valid:
        yield from _difference("final_messages", rollout, replayed)


def _differences(env: Env, rollout: Rollout, replayed: Rollout) -> Iterable[str]:
    """Yield what differs; of an env that is not deterministic, what its reward stands on."""
    if not _is_same_reward(env, rollout.reward, replayed.reward):
        yield f"the reward is {_reward(rollout)}, played again it is {_reward(replayed)}"
    for name in ("task_sha256", "env_kwargs", "seat", "success", "artifacts"):
        yield from _difference(name, rollout, replayed)
    for name in ("status", "failure_kind", "reason", "num_turns"):
        if getattr(rollout, name) != getattr(replayed, name):
            yield f"{name} is {getattr(rollout, name)!s}, not {getattr(replayed, name)!s}"
    if not env.is_deterministic:
        return
    for index, (turn, other) in enumerate(zip(rollout.turns, replayed.turns, strict=False)):
        yield from (f"turn {index} {what}" for what in _turn_differences(turn, other))
    if not _is_same(rollout.final_messages, replayed.final_messages):
        yield "the env's last messages differ"


def _difference(name: str, rollout: Rollout, replayed: Rollout) -> Iterable[str]:
    told, own = getattr(rollout, name), getattr(replayed, name)
    if not _is_same(told, own):
        yield f"{name} is {told!r:.200}, not {own!r:.200}"


def _turn_differences(turn: Turn, other: Turn) -> Iterable[str]:
    for name in ("messages", "num_shared_messages", "answer", "tools"):
        if not _is_same(getattr(turn, name), getattr(other, name)):
            yield f"has other {name}"
    if _results(turn) != _results(other):
        yield "has other tool results"


def _results(turn: Turn) -> list[Any]:
    return [
        (r.call_id, r.name, r.content, r.error, r.stage, r.num_bytes_omitted)
        for r in turn.tool_results
    ]


def _reply(rollout: Rollout, index: int) -> Any:
    """Return what the env answered to a turn, without addresses and times."""
    later = rollout.turns[index + 1 : index + 2]
    said = (later[0].messages, later[0].num_shared_messages) if later else rollout.final_messages
    return _without_printed(msgspec.to_builtins((_results(rollout.turns[index]), said)))


def _without_printed(value: Any) -> Any:
    if isinstance(value, str):
        return _PRINTED.sub("#", value)
    if isinstance(value, (list, tuple)):
        return [_without_printed(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_printed(item) for name, item in value.items()}
    return value


def _unverified_metrics(told: Reward, own: Reward, *, is_verified: bool) -> frozenset[str]:
    """Return the metrics of a record that a replay does not give; all where it shows nothing."""
    if not told.is_valid:
        return frozenset()
    metrics = {n for c in (told, own) for n, part in c.components.items() if not part.weight}
    if is_verified:
        metrics = {n for n in metrics if told.components.get(n) != own.components.get(n)}
    return frozenset(metrics)


def _is_same_reward(env: Env, one: Reward, other: Reward) -> bool:
    """Compare values and what they are made of; metrics only where the env is deterministic.

    A metric that success stands on is compared, too.
    """
    if (one.value, one.is_valid) != (other.value, other.is_valid):
        return False
    if env.is_deterministic and one.reason != other.reason:
        return False
    sides = [
        {
            n: c
            for n, c in reward.components.items()
            if env.is_deterministic or c.weight or n == env.success.component
        }
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
