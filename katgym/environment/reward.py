"""Rewards with named components, the rubric that computes them, and what counts as success.

value = gate_1 * ... * gate_m * (weight_1 * score_1 + ... + weight_n * score_n)

Not here: what a scorer checks (each env's); aggregation over rollouts (`evaluation/`).
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from katgym.environment.failure import FAILURE_TABLE, FailureKind, failure_kind
from katgym.errors import InfrastructureError, UnknownNameError, UsageError, unknown_name

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__katgym_scorer__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One named part of a reward: the scorer's result and how it entered the value."""

    score: float
    weight: float = 1.0
    is_gate: bool = False

    def __post_init__(self) -> None:
        # A number of numpy, as scorers return, is no JSON.
        object.__setattr__(self, "score", float(self.score))
        object.__setattr__(self, "weight", float(self.weight))


class Trust(StrEnum):
    """How far a verdict can be trusted where programs decide and a policy's code runs among them.

    The first three are levels of a task, the last is of a single verdict.
    """

    COMPLETE = "complete"
    """Everything that the hidden tests demand was computed where nothing showed it."""
    PARTIAL = "partial"
    """Some of it could be seen, or guessed by what the bug does."""
    UPSTREAM = "upstream"
    """Another project's tests and parser decided."""
    WITHHELD = "withheld"
    """The verdict's run did something that gets at the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What an episode earned.

    `value` is None exactly when `is_valid` is False: a reward that could not be established is
    not a reward of 0. `failure_kind` and `reason` say why it is invalid, or which budget ended
    the episode.

    Example:
        Reward(value=0.5, components={"correct": Component(score=1.0, weight=0.5)})
    """

    value: float | None = None
    components: Mapping[str, Component] = field(default_factory=dict)
    is_valid: bool = True
    failure_kind: FailureKind | None = None
    reason: str = ""
    trust: Trust | None = None
    """None: no programs decide, the reward is invalid, or nobody said."""
    trust_reason: str = ""
    """One line for people; "" where the level says all."""

    def __post_init__(self) -> None:
        if self.is_valid and (self.value is None or not math.isfinite(self.value)):
            raise UsageError(f"a valid reward has a finite value, got {self.value!r}")
        if not self.is_valid and self.value is not None:
            raise UsageError(f"an invalid reward has value None, got {self.value!r}")
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))

    @classmethod
    def invalid(cls, kind: FailureKind, reason: str) -> Reward:
        """Return the reward of a rollout whose outcome is unknown."""
        return cls(value=None, is_valid=False, failure_kind=kind, reason=reason)

    def value_or_nan(self) -> float:
        """Return `value`, or NaN for an invalid reward, as Gymnasium's `step` wants a float."""
        return math.nan if self.value is None else self.value

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, which `msgspec.convert` reads."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class Headline(StrEnum):
    """The figure that heads an env's results."""

    SUCCESS_RATE = "success_rate"
    MEAN_REWARD = "mean_reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """What an env calls a success, and whether its rate or the mean reward heads the results.

    Where a reward below the best says how well the task was done, as in a game that nobody can
    always win, that is the mean reward.

    Example:
        Success(component="win", headline=Headline.MEAN_REWARD)
    """

    threshold: float = 1.0
    """Least value that is a success."""
    component: str = ""
    """Of which component; "" for the reward itself."""
    headline: Headline = Headline.SUCCESS_RATE

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise UsageError(f"the threshold of success is a finite number, got {self.threshold!r}")
        if self.headline not in list(Headline):
            raise UnknownNameError(unknown_name("headline", str(self.headline), list(Headline)))
        object.__setattr__(self, "headline", Headline(self.headline))

    def __str__(self) -> str:
        return f"{self.component or 'reward'} at least {self.threshold:g}"

    def is_met(self, reward: Reward) -> bool:
        """Return whether a reward is a success; without a value, or the component, it is none."""
        if reward.value is None:
            return False
        if not self.component:
            return reward.value >= self.threshold
        found = reward.components.get(self.component)
        return found is not None and found.score >= self.threshold


class ScoringFailure(InfrastructureError):
    """Raise it in a scorer: the reward becomes what the failure table says for `kind`."""


Score = float | bool | None
ScorerFn = Callable[[Any], Score | Awaitable[Score]]
"""Takes the env whose episode has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A named function of the finished env; a gate multiplies, the others add up by weight."""

    name: str
    fn: ScorerFn
    weight: float = 1.0
    is_gate: bool = False
    low: float = -math.inf
    """Least score there is."""
    high: float = math.inf
    """Greatest score there is."""

    def problem(self, score: float) -> str:
        """Return why this scorer cannot have given a score, or "".

        Example:
            "8.0, not in 0 to 1"
        """
        if not math.isfinite(score):
            return f"{score!r}, not a finite number"
        if self.low <= score <= self.high:
            return ""
        return f"{score!r}, not in {self.low:g} to {self.high:g}"


def scorer(
    *, weight: float = 1.0, gate: bool = False, low: float | None = None, high: float | None = None
) -> Callable[[F], F]:
    """Mark an env's method as a scorer: `self` at the episode's end -> a number, often 0 to 1.

    With `gate=True` the whole value is multiplied by it (1 passes, 0 voids), and `weight` has to
    stay 1. With `weight=0` it is a metric: measured, summarised, not rewarded; a metric that does
    not apply to an episode returns None and is left out of its means. The method may be async; it
    is called once an episode.

    low, high: the range of its scores; None is no bound, and 0 and 1 of a method that is annotated
    to return `bool`. A score outside of it is a scorer's error, in a record of others a forgery.
    """
    if gate and weight != 1.0:
        raise UsageError(f"a gate has no weight, got weight={weight!r}")

    def mark(fn: F) -> F:
        returned = getattr(fn, "__annotations__", {}).get("return")
        is_bool = returned in (bool, bool | None, "bool", "bool | None")
        least = (0.0 if is_bool else -math.inf) if low is None else low
        most = (1.0 if is_bool else math.inf) if high is None else high
        if not least <= most:
            raise UsageError(f"no score is between low={least!r} and high={most!r}")
        setattr(fn, _MARK, {"weight": weight, "is_gate": gate, "low": least, "high": most})
        return fn

    return mark


class Rubric:
    """A weighted set of scorers and gates over a finished episode."""

    def __init__(self, scorers: Iterable[Scorer] = ()) -> None:
        self.scorers = tuple(scorers)
        names = [s.name for s in self.scorers]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"scorer {name!r} occurs twice in one rubric")

    @classmethod
    def of(cls, env_class: type) -> Rubric:
        """Collect the methods marked with `@katgym.scorer`, base classes first."""
        found: dict[str, Scorer] = {}
        for base in reversed(env_class.__mro__):
            for name, member in vars(base).items():
                mark = getattr(member, _MARK, None)
                if mark is not None:
                    found[name] = Scorer(name=name, fn=member, **mark)
                else:
                    found.pop(name, None)
        return cls(found.values())

    async def score(self, env: object) -> Reward:
        """Run every scorer on a finished env and combine; never raises for what a scorer does.

        A scorer that raises makes the reward invalid (`scorer_error`), or what its
        `ScoringFailure` / `InfrastructureError` says. A score that is not finite, or not in the
        scorer's range, is a scorer error.
        """
        if not self.scorers:
            return Reward(value=0.0)
        components: dict[str, Component] = {}
        gates, total = 1.0, 0.0
        for item in self.scorers:
            try:
                result = item.fn(env)
                found = await result if inspect.isawaitable(result) else result
                if found is None and item.weight == 0 and not item.is_gate:
                    continue  # the metric does not apply
                score = float(found)  # type: ignore[arg-type]  # None in a reward is a scorer's bug
            except InfrastructureError as e:
                kind = failure_kind(e.kind)
                if FAILURE_TABLE[kind].is_counted:
                    return Reward(value=0.0, failure_kind=kind, reason=f"{item.name}: {e}")
                return Reward.invalid(kind, f"{item.name}: {e}")
            except Exception as e:  # a scorer's bug must not cost the run, nor count as 0
                logger.warning("scorer %r failed", item.name, exc_info=True)
                reason = f"{item.name}: {type(e).__name__}: {e}"
                return Reward.invalid(FailureKind.SCORER_ERROR, reason)
            if problem := item.problem(score):
                reason = f"{item.name}: returned {problem}"
                return Reward.invalid(FailureKind.SCORER_ERROR, reason)
            components[item.name] = Component(score=score, weight=item.weight, is_gate=item.is_gate)
            if item.is_gate:
                gates *= score
            else:
                total += item.weight * score
        if not math.isfinite(gates * total):
            reason = f"the scores add up to {gates * total!r}, not a finite number"
            return Reward.invalid(FailureKind.SCORER_ERROR, reason)
        return Reward(value=gates * total, components=components)
