"""What fails in env or policy is the rollout's status; mistakes and cancellation are raised."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from episode_play import Site, TokenPolicy, TokenSession, check_closed, play

import katgym
from katgym.environment.failure import FAILURE_TABLE, FailureKind, RolloutStatus
from katgym.environment.messages import assistant
from katgym.errors import (
    ContextLengthError,
    InfrastructureError,
    MissingDependencyError,
    PolicyError,
    UsageError,
)
from katgym.play.agent_loop import run_rollout
from katgym.policies.base import EpisodeContext, Session


def test_policy_errors_keep_their_kind() -> None:
    kinds = [k for k in FailureKind if not FAILURE_TABLE[k].is_counted and k.startswith("policy_")]
    assert len(kinds) > 3
    for kind in kinds:
        env, policy = Site(), TokenPolicy(["a", PolicyError("server is down", kind=str(kind))])
        rollout = play(env, policy)
        assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind)
        assert (rollout.reward.is_valid, rollout.reward.value) == (False, None)
        assert rollout.reason == rollout.reward.reason == "server is down"
        assert (rollout.num_turns, len(rollout.messages)) == (1, 3)
        check_closed(env, policy)


def test_an_unknown_exception_in_the_policy_is_its_bug() -> None:
    env, policy = Site(), TokenPolicy([ZeroDivisionError("oops")])
    rollout = play(env, policy)
    assert (rollout.failure_kind, rollout.reason) == (
        FailureKind.POLICY_BUG,
        "ZeroDivisionError('oops')",
    )
    check_closed(env, policy)


def test_a_policy_that_cannot_start_is_its_bug() -> None:
    class Unstartable(TokenPolicy):
        def start(self, context: EpisodeContext) -> Session:
            raise RuntimeError("no")

    env, policy = Site(), Unstartable()
    assert play(env, policy).failure_kind is FailureKind.POLICY_BUG
    check_closed(env, policy)


def test_an_unknown_exception_in_the_env_is_its_error() -> None:
    for hook in ("setup", "reply", "teardown"):
        env, policy = Site(hook), TokenPolicy(["end"])
        rollout = play(env, policy)
        kind = FailureKind.ENV_ERROR
        assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind), hook
        assert rollout.reason == "RuntimeError('env is broken')"
        assert rollout.reward.is_valid is False
        check_closed(env, policy)


def test_an_infrastructure_error_in_the_env_keeps_its_kind() -> None:
    for hook in ("setup", "reply", "work", "score", "teardown"):
        env = Site(hook, InfrastructureError("sandbox gone", kind="sandbox_error"))
        policy = TokenPolicy([assistant("", [("work", {})]), "end"])
        rollout = play(env, policy)
        kind = FailureKind.SANDBOX_ERROR
        assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind), hook
        assert rollout.reward.is_valid is False
        assert "sandbox gone" in rollout.reason
        check_closed(env, policy)


def test_a_teardown_that_fails_after_a_failure_hides_nothing() -> None:
    env, policy = Site("teardown"), TokenPolicy([PolicyError("down")])
    rollout = play(env, policy)
    assert (rollout.failure_kind, rollout.reason) == (FailureKind.POLICY_UNAVAILABLE, "down")


def test_a_teardown_that_fails_after_a_budget_is_a_failure() -> None:
    env, policy = Site("teardown"), TokenPolicy([ContextLengthError("full")])
    rollout = play(env, policy)
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, FailureKind.ENV_ERROR)


def test_a_session_that_fails_to_close_changes_no_result() -> None:
    class Sticky(TokenSession):
        async def aclose(self) -> None:
            raise ConnectionError("gone already")

    class StickyPolicy(TokenPolicy):
        def start(self, context: EpisodeContext) -> Session:
            return Sticky(self)

    env = Site()
    rollout = play(env, StickyPolicy(["end"]))
    assert (rollout.status, rollout.reward.value) == (RolloutStatus.TERMINATED, 0.25)
    assert env.num_teardowns == 1


def test_a_broken_scorer_fails_the_rollout() -> None:
    rollout = play(Site("score"), TokenPolicy(["end"]))
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.FAILED,
        FailureKind.SCORER_ERROR,
    )
    assert rollout.reason == "score: RuntimeError: env is broken"


def test_a_verifier_timeout_counts_as_zero() -> None:
    error = katgym.ScoringFailure("too slow", kind="verifier_timeout")
    rollout = play(Site("score", error), TokenPolicy(["end"]))
    assert (rollout.status, rollout.reward.value) == (RolloutStatus.TERMINATED, 0.0)
    assert rollout.failure_kind is FailureKind.VERIFIER_TIMEOUT


def test_mistakes_of_the_caller_are_raised(subtests: pytest.Subtests) -> None:
    errors = (
        UsageError("wrong"),
        MissingDependencyError("pip install x"),
        NotImplementedError("no"),
    )
    for error, where in itertools.product(errors, ("policy", "setup", "reply")):
        with subtests.test(error=error, where=where):
            env = Site() if where == "policy" else Site(where, error)
            policy = TokenPolicy([error] if where == "policy" else ["a"])
            with pytest.raises(type(error)) as caught:
                play(env, policy)
            assert caught.value is error
            check_closed(env, policy)


def test_an_env_without_an_oracle_is_a_mistake_of_the_caller() -> None:
    class Oracle(TokenPolicy):
        def start(self, context: EpisodeContext) -> Session:
            context.env.oracle_action()
            raise AssertionError

    with pytest.raises(NotImplementedError, match="Site cannot play its own solution"):
        play(Site(), Oracle())


def test_cancellation_closes_everything_once_and_is_passed_on(subtests: pytest.Subtests) -> None:
    async def cancel(env: Site, policy: TokenPolicy) -> None:
        task = asyncio.create_task(run_rollout(env, policy, seed=0))
        while not (env.is_hanging or policy.is_hanging):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    hangs: dict[str, tuple[Site, list[Any]]] = {
        "policy": (Site(), ["a", "hang"]),
        "tool": (Site("hang:work"), [assistant("", [("work", {})])]),
        "scorer": (Site("hang:score"), ["end"]),
        "setup": (Site("hang:setup"), []),
        "grading": (Site("hang:score"), [ContextLengthError("full")]),
    }
    for where, (env, texts) in hangs.items():
        with subtests.test(where):
            policy = TokenPolicy(texts)
            asyncio.run(cancel(env, policy))
            check_closed(env, policy)
