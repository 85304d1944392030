"""Rubrics combine scores by the formula; an unknown reward is never a 0; the failure table."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import katgym
from katgym.environment.failure import FAILURE_TABLE, FailureKind, RolloutStatus, failure_kind
from katgym.environment.reward import (
    Component,
    Reward,
    Rubric,
    Scorer,
    ScoringFailure,
    Trust,
    scorer,
)
from katgym.errors import InfrastructureError, UnknownNameError, UsageError
from katgym.testing import EchoEnv, ScriptedPolicy

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


def test_a_closed_gate_voids_and_what_has_no_score_is_worth_0() -> None:
    reward = scored(constant("gate", 0, is_gate=True), constant("a", 3.0))
    assert (reward.value, reward.components["a"].score) == (0.0, 3.0)
    assert scored(constant("gate", 1.0, is_gate=True)).value == 0.0
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


def test_a_scorers_bug_makes_the_reward_invalid() -> None:
    cases = [
        (raising(ValueError("bad")), "broken: ValueError: bad"),
        (raising(TimeoutError()), "broken: TimeoutError: "),
        (constant("s", math.nan), "s: returned nan, not a finite number"),
        (constant("s", math.inf), "s: returned inf, not a finite number"),
        (constant("s", "high"), "s: ValueError: could not convert string to float: 'high'"),
        (constant("s", None), "s: TypeError: float() argument must be a string or a real number,"
                              " not 'NoneType'"),
        (constant("s", 10**400), "s: OverflowError: int too large to convert to float"),
        (constant("s", 1e308, weight=10.0), "the scores add up to inf, not a finite number"),
    ]  # fmt: skip
    found = [scored(constant("before", 1.0), item) for item, _ in cases]
    assert found == [Reward.invalid(FailureKind.SCORER_ERROR, reason) for _, reason in cases]
    assert found[0].value is None and math.isnan(found[0].value_or_nan())


def test_scoring_failures_follow_the_table() -> None:
    rewards = {
        kind: scored(constant("before", 1.0), raising(ScoringFailure("why", kind=str(kind))))
        for kind in FailureKind
    }
    for kind, reward in rewards.items():
        value = 0.0 if FAILURE_TABLE[kind].is_counted else None
        found = (reward.failure_kind, reward.reason, reward.value, reward.is_valid)
        assert found == (kind, "broken: why", value, value is not None)
    gone = scored(raising(InfrastructureError("gone", kind="made_up")))
    assert gone == Reward.invalid(FailureKind.INFRASTRUCTURE_ERROR, "broken: gone")


def test_stopping_the_program_is_no_scorer_error() -> None:
    for error in (KeyboardInterrupt(), asyncio.CancelledError()):
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


def test_what_makes_no_rubric_and_no_reward_is_refused(subtests: pytest.Subtests) -> None:
    with pytest.raises(UsageError, match=r"^scorer 'a' occurs twice in one rubric$"):
        Rubric([constant("a", 1), constant("b", 1), constant("a", 1)])
    with pytest.raises(UsageError, match=r"^a gate has no weight, got weight=0\.5$"):
        scorer(gate=True, weight=0.5)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "a valid reward has a finite value, got None"),
        ({"value": math.nan}, "a valid reward has a finite value, got nan"),
        ({"value": math.inf}, "a valid reward has a finite value, got inf"),
        ({"value": 0.0, "is_valid": False}, "an invalid reward has value None, got 0.0"),
    ]
    for fields, text in cases:
        with subtests.test(fields=fields), pytest.raises(UsageError, match=f"^{text}$"):
            Reward(**fields)


def test_rewards_are_read_back_with_plain_numbers() -> None:
    component = Component(score=np.float64(0.5), weight=np.float32(2.0))
    reward = Reward(value=np.float64(1.0), components={"a": component})
    numbers = (reward.value, component.score, component.weight)
    assert [type(number) for number in numbers] == [float, float, float]
    invalid = Reward.invalid(FailureKind.SANDBOX_ERROR, "gone")
    for one in (reward, Reward(value=0.0, failure_kind=FailureKind.MAX_TURNS), invalid):
        assert msgspec.convert(json.loads(json.dumps(one.to_json())), Reward) == one
    assert invalid.to_json() == {
        "value": None,
        "components": {},
        "is_valid": False,
        "failure_kind": "sandbox_error",
        "reason": "gone",
        "trust": None,
        "trust_reason": "",
    }
    withheld = Reward(value=1.0, trust=Trust.WITHHELD, trust_reason="it opened tests/")
    assert msgspec.convert(json.loads(json.dumps(withheld.to_json())), Reward) == withheld
    old = {name: v for name, v in reward.to_json().items() if not name.startswith("trust")}
    assert msgspec.convert(old, Reward).trust is None


def test_a_score_out_of_its_range_is_an_error_of_its_scorer() -> None:
    class Measured(EchoEnv):
        score: Any = 1

        @scorer()
        def said_it(self) -> bool:
            return True

        @scorer(weight=0)
        def is_short(self) -> bool | None:
            return self.score  # type: ignore[no-any-return]

        @scorer(weight=0, low=0)
        def words(self) -> int:
            return 0 if self.score is None else self.score  # type: ignore[no-any-return]

        @scorer(weight=0, low=-1, high=1)
        def balance(self) -> float:
            return -1.0

    ranges = {s.name: (s.low, s.high) for s in Measured.class_rubric.scorers}
    assert ranges == {
        "said_it": (0, 1), "is_short": (0, 1), "words": (0, math.inf), "balance": (-1, 1),
    }  # fmt: skip

    def score(value: Any) -> Reward:
        env = Measured()
        env.score = value
        return asyncio.run(env.rubric.score(env))

    assert (score(1).value, score(None).value) == (1.0, 1.0)
    assert score(2).reason == "is_short: returned 2.0, not in 0 to 1"
    assert score(-1).failure_kind is FailureKind.SCORER_ERROR
    with pytest.raises(UsageError, match=r"^no score is between low=1 and high=0$"):
        scorer(low=1, high=0)(lambda env: 0.0)


def test_a_valid_reward_has_the_trust_of_its_task_unless_the_env_says_otherwise() -> None:
    class Trusted(EchoEnv):
        told: tuple[Trust, str] | None = None

        def load_tasks(self, split: str) -> list[katgym.Task]:
            return [katgym.Task(task_id="a", answer="x", trust=Trust.PARTIAL)]

        def reward_trust(self) -> tuple[Trust, str] | None:
            return self.told or super().reward_trust()

    def play(env: katgym.Env) -> Reward:
        return asyncio.run(katgym.run_rollout(env, ScriptedPolicy(["x"]), seed=0)).reward

    reward = play(Trusted())
    assert (reward.trust, reward.trust_reason) == (Trust.PARTIAL, "")
    env = Trusted()
    env.told = (Trust.WITHHELD, "it opened tests/")
    reward = play(env)
    assert (reward.trust, reward.trust_reason) == (Trust.WITHHELD, "it opened tests/")
    assert play(EchoEnv()).trust is None
    broken = Trusted()
    broken.rubric = Rubric([constant("nan", math.nan)])
    assert play(broken).trust is None
    task = katgym.Task(task_id="a")
    assert replace(task, trust=Trust.PARTIAL).sha256 == task.sha256


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


# ---- failures


# kind -> cause, is_retried, is_graded, is_counted
EXPECTED = {
    "max_turns": ("policy", False, True, True),
    "max_tokens": ("policy", False, True, True),
    "context_length": ("policy", False, True, True),
    "episode_timeout": ("policy", False, True, True),
    "verifier_timeout": ("policy", False, False, True),
    "policy_unavailable": ("infrastructure", True, False, False),
    "policy_timeout": ("infrastructure", True, False, False),
    "policy_bad_response": ("infrastructure", True, False, False),
    "policy_no_logprobs": ("infrastructure", False, False, False),
    "policy_rejected": ("infrastructure", False, False, False),
    "env_timeout": ("infrastructure", True, False, False),
    "sandbox_error": ("infrastructure", True, False, False),
    "verifier_unavailable": ("infrastructure", True, False, False),
    "infrastructure_error": ("infrastructure", True, False, False),
    "env_error": ("bug", False, False, False),
    "scorer_error": ("bug", False, False, False),
    "policy_bug": ("bug", False, False, False),
    "cancelled": ("user", False, False, False),
}


def test_table_holds_every_kind_and_what_was_decided() -> None:
    table = {
        str(kind): (rule.cause, rule.is_retried, rule.is_graded, rule.is_counted)
        for kind, rule in FAILURE_TABLE.items()
    }
    assert table == EXPECTED
    assert set(FAILURE_TABLE) == set(FailureKind)


def test_only_what_the_policy_did_counts() -> None:
    for kind, rule in FAILURE_TABLE.items():
        assert rule.is_counted == (rule.cause == "policy"), kind
        assert not (rule.is_counted and rule.is_retried), kind
        assert not rule.is_graded or rule.is_counted, kind
    assert failure_kind("sandbox_error") is FailureKind.SANDBOX_ERROR
    assert failure_kind("my_plugins_own") is FailureKind.INFRASTRUCTURE_ERROR
    assert [str(s) for s in RolloutStatus] == ["terminated", "truncated", "failed", "cancelled"]
