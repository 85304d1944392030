"""Rubrics combine scores by the formula, and a reward that is unknown is never a 0."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import katgym
from katgym.environment.failure import FAILURE_TABLE, FailureKind
from katgym.environment.reward import Component, Reward, Rubric, Scorer, ScoringFailure, scorer
from katgym.errors import InfrastructureError, UnknownNameError, UsageError
from katgym.testing import EchoEnv

ENV = EchoEnv()


def scored(*scorers: Scorer) -> Reward:
    return asyncio.run(Rubric(scorers).score(ENV))


def constant(name: str, score: Any, **options: Any) -> Scorer:
    return Scorer(name=name, fn=lambda env: score, **options)


def raising(error: BaseException) -> Scorer:
    def fn(env: katgym.Env) -> float:
        raise error

    return Scorer(name="broken", fn=fn)


def test_value_is_gates_times_the_weighted_sum() -> None:
    reward = scored(
        constant("a", 0.5, weight=2.0),
        constant("b", 1.0, weight=-0.25),
        constant("g", 0.5, is_gate=True),
        constant("h", True, is_gate=True),
    )
    assert reward.value == 0.5 * 1.0 * (2.0 * 0.5 - 0.25 * 1.0) == 0.375
    assert reward.components["a"] == Component(score=0.5, weight=2.0)
    assert reward.components["h"] == Component(score=1.0, is_gate=True)
    assert list(reward.components) == ["a", "b", "g", "h"]
    assert (reward.is_valid, reward.failure_kind, reward.reason) == (True, None, "")


def test_a_closed_gate_voids_and_the_rest_is_still_scored() -> None:
    reward = scored(constant("gate", 0, is_gate=True), constant("a", 3.0))
    assert reward.value == 0.0
    assert reward.components["a"].score == 3.0


def test_gates_alone_leave_nothing_to_multiply() -> None:
    assert scored(constant("gate", 1.0, is_gate=True)).value == 0.0


def test_an_empty_rubric_scores_zero() -> None:
    assert scored() == Reward(value=0.0)


NUMBERS = st.floats(-10, 10)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), st.lists(st.floats(0, 1), max_size=3))
def test_formula_holds(parts: list[tuple[float, float]], gates: list[float]) -> None:
    scorers = [constant(f"s{i}", s, weight=w) for i, (s, w) in enumerate(parts)]
    scorers += [constant(f"g{i}", g, is_gate=True) for i, g in enumerate(gates)]
    expected = math.prod(gates) * math.fsum(s * w for s, w in parts)
    assert scored(*scorers).value == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_async_scorers_are_awaited() -> None:
    async def slow(env: katgym.Env) -> float:
        await asyncio.sleep(0.001)
        return 0.75

    assert scored(Scorer(name="slow", fn=slow)).value == 0.75


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (raising(ValueError("bad")), "broken: ValueError: bad"),
        (raising(TimeoutError()), "broken: TimeoutError: "),
        (constant("s", math.nan), "s: returned nan, not a finite number"),
        (constant("s", math.inf), "s: returned inf, not a finite number"),
        (constant("s", "high"), "s: ValueError: could not convert string to float: 'high'"),
        (
            constant("s", None),
            "s: TypeError: float() argument must be a string or a real number, not 'NoneType'",
        ),
        (constant("s", 10**400), "s: OverflowError: int too large to convert to float"),
        (constant("s", 1e308, weight=10.0), "the scores add up to inf, not a finite number"),
    ],
)
def test_a_scorers_bug_makes_the_reward_invalid(item: Scorer, reason: str) -> None:
    reward = scored(constant("before", 1.0), item)
    assert reward == Reward.invalid(FailureKind.SCORER_ERROR, reason)
    assert reward.value is None
    assert math.isnan(reward.value_or_nan())


@pytest.mark.parametrize("kind", FailureKind)
def test_scoring_failures_follow_the_table(kind: FailureKind) -> None:
    reward = scored(constant("before", 1.0), raising(ScoringFailure("why", kind=str(kind))))
    assert (reward.failure_kind, reward.reason) == (kind, "broken: why")
    if FAILURE_TABLE[kind].is_counted:
        assert (reward.value, reward.is_valid) == (0.0, True)
    else:
        assert (reward.value, reward.is_valid) == (None, False)


def test_infrastructure_errors_in_a_scorer_are_never_a_zero() -> None:
    reward = scored(raising(InfrastructureError("gone", kind="made_up")))
    assert reward == Reward.invalid(FailureKind.INFRASTRUCTURE_ERROR, "broken: gone")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_stopping_the_program_is_no_scorer_error(error: BaseException) -> None:
    with pytest.raises(type(error)):
        asyncio.run(Rubric([raising(error)]).score(ENV))


def test_marked_methods_are_collected_with_overrides() -> None:
    class Base(EchoEnv):
        @scorer(weight=0.5)
        def style(self) -> float:
            return 1.0

        @scorer(gate=True)
        def safe(self) -> bool:
            return True

    class Child(Base):
        @scorer(weight=0.25)
        def style(self) -> float:
            return 0.5

        safe = None  # type: ignore[assignment]  # how a subclass drops a scorer

    assert [(s.name, s.weight, s.is_gate) for s in Base.class_rubric.scorers] == [
        ("said_it", 1.0, False),
        ("style", 0.5, False),
        ("safe", 1.0, True),
    ]
    assert [(s.name, s.weight) for s in Child.class_rubric.scorers] == [
        ("said_it", 1.0),
        ("style", 0.25),
    ]


def test_scorers_called_alike_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^scorer 'a' occurs twice in one rubric$"):
        Rubric([constant("a", 1), constant("b", 1), constant("a", 1)])


def test_a_gate_has_no_weight() -> None:
    with pytest.raises(UsageError, match=r"^a gate has no weight, got weight=0\.5$"):
        scorer(gate=True, weight=0.5)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "a valid reward has a finite value, got None"),
        ({"value": math.nan}, "a valid reward has a finite value, got nan"),
        ({"value": math.inf}, "a valid reward has a finite value, got inf"),
        ({"value": 0.0, "is_valid": False}, "an invalid reward has value None, got 0.0"),
    ],
)
def test_reward_refuses_what_contradicts_itself(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Reward(**fields)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "reward",
    [
        Reward(value=0.5, components={"a": Component(score=0.5, weight=2, is_gate=False)}),
        Reward(value=0.0, failure_kind=FailureKind.MAX_TURNS),
        Reward.invalid(FailureKind.SANDBOX_ERROR, "gone"),
    ],
)
def test_reward_round_trips_through_json(reward: Reward) -> None:
    assert msgspec.convert(json.loads(json.dumps(reward.to_json())), Reward) == reward


def test_numbers_of_numpy_become_plain_ones() -> None:
    component = Component(score=np.float64(0.5), weight=np.float32(2.0))
    reward = Reward(value=np.float64(1.0), components={"a": component})
    numbers = (reward.value, component.score, component.weight)
    assert [type(number) for number in numbers] == [float, float, float]
    assert msgspec.convert(reward.to_json(), Reward) == reward


def test_reward_json_shape() -> None:
    assert Reward.invalid(FailureKind.SANDBOX_ERROR, "gone").to_json() == {
        "value": None,
        "components": {},
        "is_valid": False,
        "failure_kind": "sandbox_error",
        "reason": "gone",
    }


def test_success_is_a_threshold_on_the_reward_or_on_a_component():
    reward = Reward(value=0.6, components={"win": Component(score=1.0, weight=0.0)})
    assert not katgym.Success().is_met(reward)
    assert katgym.Success(threshold=0.6).is_met(reward)
    assert katgym.Success(component="win").is_met(reward)
    assert not katgym.Success(component="win").is_met(Reward(value=1.0))
    assert not katgym.Success(threshold=0.0).is_met(Reward.invalid(FailureKind.SANDBOX_ERROR, ""))
    assert str(katgym.Success(component="win")) == "win at least 1"


def test_success_refuses_what_no_reward_can_reach():
    with pytest.raises(UsageError, match=r"threshold of success is a finite number, got nan"):
        katgym.Success(threshold=float("nan"))
    with pytest.raises(UnknownNameError, match=r"headline 'mean'.*mean_reward"):
        katgym.Success(headline="mean")
