"""Episodes whose time is up: whose fault it is, and that closing is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from episode_play import Site, TokenPolicy, TokenSession, check_closed, forever, play, play_idle
from idle_loop import run_idle

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import Message, assistant
from katgym.environment.tool import tool
from katgym.errors import ContextLengthError, PolicyError
from katgym.play.agent_loop import run_rollout
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.policies.base import Completion, EpisodeContext, Session
from katgym.system.concurrency import DaemonThreads
from katgym.testing import ScriptedPolicy


def test_time_that_ends_with_the_policy_truncates() -> None:
    env, policy = Site(), TokenPolicy(["a", "hang"])
    rollout = play_idle(env, policy, limits=Limits(timeout_s=1.0))
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.TRUNCATED,
        FailureKind.EPISODE_TIMEOUT,
    )
    assert (rollout.reward.value, rollout.num_turns) == (0.25, 1)
    check_closed(env, policy)


def test_a_long_game_is_truncated() -> None:
    env = Site(max_turns=1000)
    rollout = play_idle(env, ScriptedPolicy([], latency_s=0.2), limits=Limits(timeout_s=1.0))
    assert rollout.failure_kind is FailureKind.EPISODE_TIMEOUT
    assert rollout.reward.value == 0.25
    assert 0 < rollout.num_turns < 1000


def test_time_that_ends_with_the_env_is_its_fault_and_no_score(subtests: pytest.Subtests) -> None:
    hangs: list[tuple[str, list[Any], str]] = [
        ("setup", [], "reset"),
        ("work", [assistant("", [("work", {})])], "step"),
        ("reply", ["a"], "step"),
        ("score", ["end"], "step"),
        ("score", ["a", "hang"], "grading"),
        ("score", [ContextLengthError("full")], "grading"),
    ]
    for hook, texts, call in hangs:
        with subtests.test(hook, texts=texts):
            env, policy = Site(f"hang:{hook}"), TokenPolicy(texts)
            rollout = play_idle(env, policy, limits=Limits(timeout_s=0.5))
            kind = FailureKind.ENV_TIMEOUT
            assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind)
            assert (rollout.reward.is_valid, rollout.reward.value) == (False, None)
            assert rollout.reason == f"the env hung: its {call} had not ended when 0.5 s were up"
            check_closed(env, policy)


class Sticky(Site):
    """Hangs in closing too."""

    async def teardown(self) -> None:
        self.num_teardowns += 1
        await forever()


def test_closing_that_hangs_is_bounded() -> None:
    for text, kind in (
        ("end", FailureKind.ENV_TIMEOUT),
        (PolicyError("down"), FailureKind.POLICY_UNAVAILABLE),
    ):
        env, policy = Sticky(), TokenPolicy([text])
        rollout = play_idle(env, policy, limits=Limits(timeout_s=0.5, close_timeout_s=0.2))
        assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind)
        check_closed(env, policy)


def test_an_env_that_hangs_and_then_hangs_in_closing_too_is_left_to_itself() -> None:
    env, policy = Sticky("hang:setup"), TokenPolicy()
    rollout = play_idle(env, policy, limits=Limits(timeout_s=0.5, close_timeout_s=0.2))
    assert rollout.failure_kind is FailureKind.ENV_TIMEOUT
    assert rollout.reason == (
        "the env hung: its reset took no notice of the end of the episode's 0.5 s and was left to"
        " itself"
    )
    check_closed(env, policy)


class Deaf(Site):
    """Swallows cancellations in `setup` until it is told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.num_swallowed = 0

    async def setup(self) -> None:
        while not self.is_stopped:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.num_swallowed += 1


def test_an_env_that_swallows_its_cancellation_is_closed_and_left_to_itself() -> None:
    env, policy = Deaf(), TokenPolicy()

    async def go() -> Rollout:
        limits = Limits(timeout_s=0.5, close_timeout_s=0.2)
        rollout = await run_rollout(env, policy, seed=0, limits=limits)
        assert env.num_swallowed == 2
        env.is_stopped = True
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
        return rollout

    rollout = run_idle(go())
    assert (rollout.failure_kind, rollout.messages) == (FailureKind.ENV_TIMEOUT, [])
    assert policy.contexts == []  # what came to its senses too late plays on with nobody
    check_closed(env, policy)


def test_an_env_whose_close_swallows_its_cancellation_is_its_fault() -> None:
    stop = asyncio.Event()

    class DeafClose(Site):
        async def aclose(self) -> None:
            while not stop.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            await super().aclose()

    async def go() -> Rollout:
        limits = Limits(timeout_s=0.5, close_timeout_s=0.2)
        rollout = await run_rollout(DeafClose(), TokenPolicy(["end"]), seed=0, limits=limits)
        stop.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
        return rollout

    rollout = run_idle(go())
    assert rollout.failure_kind is FailureKind.ENV_TIMEOUT
    assert rollout.reason.startswith("the env hung: its close took no notice of the end")


def test_a_policy_that_swallows_its_cancellation_is_its_fault() -> None:
    stop = asyncio.Event()

    class DeafSession(TokenSession):
        async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
            while not stop.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            return await super().complete(messages, max_tokens=max_tokens)

    class DeafPolicy(TokenPolicy):
        def start(self, context: EpisodeContext) -> Session:
            self.contexts.append(context)
            return DeafSession(self)

    env, policy = Site(), DeafPolicy()

    async def go() -> Rollout:
        limits = Limits(timeout_s=0.5, close_timeout_s=0.2)
        rollout = await run_rollout(env, policy, seed=0, limits=limits)
        stop.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
        return rollout

    rollout = run_idle(go())
    assert (rollout.failure_kind, rollout.num_turns) == (FailureKind.POLICY_TIMEOUT, 0)
    check_closed(env, policy)


@pytest.mark.parametrize("hook", ["setup", "tool"])
def test_an_env_whose_thread_blocks_is_given_up(hook: str) -> None:
    is_released = threading.Event()

    class Blocking(Site):
        async def setup(self) -> None:
            if hook == "setup":
                await asyncio.to_thread(is_released.wait)

        @tool
        def block(self) -> str:
            is_released.wait()
            return "late"

    env, policy = Blocking(), TokenPolicy([assistant("", [("block", {})])])

    async def go() -> Rollout:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        return await run_rollout(env, policy, seed=0, limits=Limits(timeout_s=0.5))

    rollout = run_idle(go())
    assert not is_released.is_set()
    is_released.set()
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, FailureKind.ENV_TIMEOUT)
    check_closed(env, policy)


def test_an_env_that_blocks_the_event_loop_over_its_time_held_the_clock() -> None:
    class Slow(Site):
        def opening(self) -> str:
            time.sleep(0.6)
            return "late"

    env, policy = Slow(), TokenPolicy()
    rollout = play(env, policy, limits=Limits(timeout_s=0.5))
    assert rollout.failure_kind is FailureKind.ENV_TIMEOUT
    assert policy.contexts == []
    check_closed(env, policy)


def test_a_timeout_error_of_the_policys_own_is_its_bug() -> None:
    rollout = play_idle(Site(), TokenPolicy([TimeoutError("own")]), limits=Limits(timeout_s=5))
    assert rollout.failure_kind is FailureKind.POLICY_BUG
