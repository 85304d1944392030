"""One episode: how it may end, what is recorded, and that everything is closed.

Not here: many episodes (`test_engine.py`), several seats (`test_match.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest

import katgym
from katgym.agent_loop import run_rollout
from katgym.concurrency import DaemonThreads
from katgym.env import Env
from katgym.errors import (
    ContextLengthError,
    InfrastructureError,
    MissingDependencyError,
    PolicyError,
    UnknownNameError,
    UsageError,
)
from katgym.failure import FAILURE_TABLE, FailureKind, RolloutStatus
from katgym.limits import Limits
from katgym.messages import Message, assistant, normalize_action, user
from katgym.policies.base import (
    Completion,
    EpisodeContext,
    Policy,
    Sampling,
    Session,
    TokenRecord,
)
from katgym.rollout import Rollout
from katgym.task import Task
from katgym.testing import EchoEnv, ScriptedPolicy
from katgym.tool import Tool, tool


async def forever() -> None:
    await asyncio.Event().wait()


class Site(Env):
    """An env in which the hook named `trouble` raises, or hangs on `"hang:HOOK"`."""

    default_max_turns = 4

    def __init__(
        self, trouble: str = "", error: BaseException | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.trouble = trouble
        self.error = error or RuntimeError("env is broken")
        self.num_teardowns = 0

    def load_tasks(self, split: str) -> Sequence[Task]:
        return [Task(task_id=f"{split}-{i}", prompt="go", answer=str(i)) for i in range(20)]

    async def _do(self, hook: str) -> None:
        if self.trouble == f"hang:{hook}":
            await forever()
        if self.trouble == hook:
            raise self.error

    async def setup(self) -> None:
        await self._do("setup")

    async def reply(self, message: Message) -> str | None:
        await self._do("reply")
        return None if message["content"] == "end" else "more"

    async def teardown(self) -> None:
        self.num_teardowns += 1
        await self._do("teardown")

    @tool
    async def work(self) -> str:
        await self._do("work")
        return "worked"

    @katgym.scorer()
    async def score(self) -> float:
        await self._do("score")
        return 0.25


class TokenPolicy(Policy):
    """Says `texts` with `num_tokens` tokens each; notes what it was asked and its closing."""

    records_tokens = True

    def __init__(self, texts: Sequence[Any] = (), *, num_tokens: int = 3) -> None:
        self.name = "tokens"
        self.texts = list(texts)
        self.num_tokens = num_tokens
        self.contexts: list[EpisodeContext] = []
        self.budgets: list[int] = []
        self.seen: list[int] = []
        self.num_closed = 0

    def start(self, context: EpisodeContext) -> Session:
        self.contexts.append(context)
        return TokenSession(self)


class TokenSession(Session):
    def __init__(self, policy: TokenPolicy) -> None:
        self.policy = policy
        self.length = 0
        self.turn = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        policy = self.policy
        policy.budgets.append(max_tokens)
        policy.seen.append(len(messages))
        said = policy.texts[self.turn] if self.turn < len(policy.texts) else "x"
        if said == "hang":
            await forever()
        if isinstance(said, BaseException):
            raise said
        count = min(policy.num_tokens, max_tokens)
        record = TokenRecord(
            parent=None if self.turn == 0 else self.turn - 1,
            num_shared=self.length,
            prompt_ids=[self.turn],
            completion_ids=[9] * count,
            policy_logprobs=[-0.5] * count,
        )
        num_prompt = self.length + 1
        self.length += 1 + count
        self.turn += 1
        return Completion(
            message=normalize_action(said),
            tokens=record,
            num_prompt_tokens=num_prompt,
            num_completion_tokens=count,
        )

    async def aclose(self) -> None:
        self.policy.num_closed += 1


def play(env: Any, policy: Policy, **options: Any) -> Rollout:
    return asyncio.run(run_rollout(env, policy, **{"seed": 0, **options}))


def check_closed(env: Site, policy: TokenPolicy) -> None:
    assert env.num_teardowns == 1
    assert policy.num_closed == len(policy.contexts) <= 1
    assert not env.is_running


# ---- the three good endings


def test_terminated() -> None:
    env, policy = Site(), TokenPolicy(["hello", assistant("", [("work", {})] * 2), "end"])
    rollout = play(env, policy)
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.TERMINATED, None)
    assert (rollout.reward.value, rollout.reward.is_valid) == (0.25, True)
    assert [m["role"] for m in rollout.messages] == [
        *("user", "assistant", "user"),
        *("assistant", "tool", "tool"),
        "assistant",
    ]
    assert list(rollout.messages) == env.messages
    assert [t.num_messages for t in rollout.turns] == [1, 3, 6] == policy.seen
    assert [len(t.tool_results) for t in rollout.turns] == [0, 2, 0]
    (trajectory,) = rollout.trajectories()
    assert trajectory.token_ids == [0, 9, 9, 9, 1, 9, 9, 9, 2, 9, 9, 9]
    assert (rollout.env_id, rollout.policy, rollout.seed) == ("Site", "tokens", 0)
    assert [t["function"]["name"] for t in rollout.tools] == ["work"]
    check_closed(env, policy)


def test_times_go_forward() -> None:
    rollout = play(Site(), ScriptedPolicy(["a", "b", "end"], latency_s=0.01))
    times = [t for turn in rollout.turns for t in (turn.started_s, turn.completed_s, turn.ended_s)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= rollout.wall_s
    assert all(t.completed_s - t.started_s >= 0.009 for t in rollout.turns)


def test_truncated_by_the_envs_own_turns() -> None:
    env, policy = Site(), TokenPolicy()
    rollout = play(env, policy)
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.TRUNCATED,
        FailureKind.MAX_TURNS,
    )
    assert (rollout.num_turns, rollout.reward.value) == (4, 0.25)
    check_closed(env, policy)


def test_truncated_by_the_limits_turns() -> None:
    rollout = play(Site(), TokenPolicy(), limits=Limits(max_turns=2))
    assert (rollout.num_turns, rollout.failure_kind) == (2, FailureKind.MAX_TURNS)


def test_a_limit_never_raises_the_turns_of_the_env() -> None:
    rollout = play(Site(), TokenPolicy(), limits=Limits(max_turns=9))
    assert (rollout.num_turns, rollout.failure_kind) == (4, FailureKind.MAX_TURNS)


def test_truncated_by_tokens_with_a_shrinking_budget() -> None:
    env, policy = Site(), TokenPolicy(num_tokens=3)
    rollout = play(env, policy, limits=Limits(max_tokens=7), sampling=Sampling(max_tokens=5))
    assert policy.budgets == [5, 4, 1]
    assert rollout.num_completion_tokens == 7
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.TRUNCATED,
        FailureKind.MAX_TOKENS,
    )
    assert (rollout.reward.value, rollout.reward.is_valid) == (0.25, True)
    check_closed(env, policy)


def test_ending_with_the_last_token_is_terminated() -> None:
    rollout = play(Site(), TokenPolicy(["a", "end"]), limits=Limits(max_tokens=6))
    assert (rollout.status, rollout.num_completion_tokens) == (RolloutStatus.TERMINATED, 6)


def test_truncated_by_the_context() -> None:
    env, policy = Site(), TokenPolicy(["a", ContextLengthError("full")])
    rollout = play(env, policy, limits=Limits(max_context_tokens=99))
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.TRUNCATED,
        FailureKind.CONTEXT_LENGTH,
    )
    assert (rollout.num_turns, rollout.reward.value) == (1, 0.25)
    assert policy.contexts[0].max_context_tokens == 99
    check_closed(env, policy)


# ---- time


def test_time_that_ends_with_the_policy_truncates() -> None:
    env, policy = Site(), TokenPolicy(["a", "hang"])
    rollout = play(env, policy, limits=Limits(timeout_s=1.0))
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.TRUNCATED,
        FailureKind.EPISODE_TIMEOUT,
    )
    assert (rollout.reward.value, rollout.num_turns) == (0.25, 1)
    check_closed(env, policy)


def test_a_long_game_is_truncated() -> None:
    env = Site(max_turns=1000)
    rollout = play(env, ScriptedPolicy([], latency_s=0.2), limits=Limits(timeout_s=1.0))
    assert rollout.failure_kind is FailureKind.EPISODE_TIMEOUT
    assert rollout.reward.value == 0.25
    assert 0 < rollout.num_turns < 1000


@pytest.mark.parametrize(
    ("hook", "texts", "call"),
    [
        ("setup", [], "reset"),
        ("work", [assistant("", [("work", {})])], "step"),
        ("reply", ["a"], "step"),
        ("score", ["end"], "step"),
        ("score", ["hang"], "grading"),
        ("score", [ContextLengthError("full")], "grading"),
    ],
)
def test_time_that_ends_with_the_env_is_its_fault_and_no_score(
    hook: str, texts: list[Any], call: str
) -> None:
    env, policy = Site(f"hang:{hook}"), TokenPolicy(texts)
    rollout = play(env, policy, limits=Limits(timeout_s=0.5))
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, FailureKind.ENV_TIMEOUT)
    assert (rollout.reward.is_valid, rollout.reward.value) == (False, None)
    assert rollout.reason == f"the env hung: its {call} had not ended when 0.5 s were up"
    check_closed(env, policy)


class Sticky(Site):
    """Hangs in closing too."""

    async def teardown(self) -> None:
        self.num_teardowns += 1
        await forever()


@pytest.mark.parametrize("texts", [["end"], [PolicyError("down")]])
def test_closing_that_hangs_is_bounded(texts: list[Any]) -> None:
    env, policy = Sticky(), TokenPolicy(texts)
    rollout = play(env, policy, limits=Limits(timeout_s=0.5, close_timeout_s=0.2))
    kind = FailureKind.ENV_TIMEOUT if texts == ["end"] else FailureKind.POLICY_UNAVAILABLE
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind)
    check_closed(env, policy)


def test_an_env_that_hangs_and_then_hangs_in_closing_too_is_left_to_itself() -> None:
    env, policy = Sticky("hang:setup"), TokenPolicy()
    rollout = play(env, policy, limits=Limits(timeout_s=0.5, close_timeout_s=0.2))
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

    rollout = asyncio.run(go())
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

    rollout = asyncio.run(go())
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

    rollout = asyncio.run(go())
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

    rollout = asyncio.run(go())
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
    rollout = play(Site(), TokenPolicy([TimeoutError("own")]), limits=Limits(timeout_s=5))
    assert rollout.failure_kind is FailureKind.POLICY_BUG


# ---- failures


@pytest.mark.parametrize(
    "kind", [k for k in FailureKind if not FAILURE_TABLE[k].is_counted and k.startswith("policy_")]
)
def test_policy_errors_keep_their_kind(kind: FailureKind) -> None:
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


@pytest.mark.parametrize("hook", ["setup", "reply", "teardown"])
def test_an_unknown_exception_in_the_env_is_its_error(hook: str) -> None:
    env, policy = Site(hook), TokenPolicy(["end"])
    rollout = play(env, policy)
    assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, FailureKind.ENV_ERROR)
    assert rollout.reason == "RuntimeError('env is broken')"
    assert rollout.reward.is_valid is False
    check_closed(env, policy)


@pytest.mark.parametrize("hook", ["setup", "reply", "work", "score", "teardown"])
def test_an_infrastructure_error_in_the_env_keeps_its_kind(hook: str) -> None:
    env = Site(hook, InfrastructureError("sandbox gone", kind="sandbox_error"))
    policy = TokenPolicy([assistant("", [("work", {})]), "end"])
    rollout = play(env, policy)
    assert (rollout.status, rollout.failure_kind) == (
        RolloutStatus.FAILED,
        FailureKind.SANDBOX_ERROR,
    )
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


# ---- mistakes of the caller, cancellation


@pytest.mark.parametrize(
    "error",
    [UsageError("wrong"), MissingDependencyError("pip install x"), NotImplementedError("no")],
)
@pytest.mark.parametrize("where", ["policy", "setup", "reply"])
def test_mistakes_of_the_caller_are_raised(error: Exception, where: str) -> None:
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


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        (Site(), ["a", "hang"]),
        (Site("hang:work"), [assistant("", [("work", {})])]),
        (Site("hang:score"), ["end"]),
        (Site("hang:setup"), []),
        (Site("hang:score"), [ContextLengthError("full")]),
    ],
    ids=["policy", "tool", "scorer", "setup", "grading"],
)
def test_cancellation_closes_everything_once_and_is_passed_on(env: Site, texts: list[Any]) -> None:
    policy = TokenPolicy(texts)

    async def go() -> None:
        task = asyncio.create_task(run_rollout(env, policy, seed=0))
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    check_closed(env, policy)


# ---- what it takes


def test_wrapped_envs_are_accepted() -> None:
    spec = gymnasium.envs.registration.EnvSpec("Site-v0", entry_point=Site)
    rollout = play(gymnasium.make(spec), TokenPolicy(["end"]))
    assert (rollout.env_id, rollout.reward.value) == ("Site-v0", 0.25)


@pytest.mark.parametrize(
    ("env", "policy", "text"),
    [
        (3, ScriptedPolicy([]), "env is a katgym.Env or the id of one, got 3"),
        (Site(), 3, "policy is a katgym Policy or its URI, got 3"),
    ],
)
def test_wrong_kinds_are_refused(env: Any, policy: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        play(env, policy)
    assert str(caught.value) == text


def test_an_env_with_several_seats_is_refused() -> None:
    env = Site()
    env.seats = ("a", "b")
    with pytest.raises(UsageError) as caught:
        play(env, ScriptedPolicy([]))
    assert str(caught.value) == (
        "this env has 2 seats (a, b); play it with run_match, a policy per seat"
    )


def test_task_id_and_split_choose_the_task() -> None:
    rollout = play(Site(), TokenPolicy(["end"]), task_id="test-7", split="test")
    assert (rollout.task_id, rollout.split) == ("test-7", "test")
    assert rollout.task_sha256 == Task(task_id="", prompt="go", answer="7").sha256
    with pytest.raises(UnknownNameError, match="unknown task id 'test-77'"):
        play(Site(), TokenPolicy(), task_id="test-77", split="test")


def test_an_env_may_be_played_again() -> None:
    env = EchoEnv()
    for seed in range(3):
        expected = EchoEnv()
        expected.reset(seed=seed)
        rollout = play(env, ScriptedPolicy([str(expected.task.answer)]), seed=seed)
        assert (rollout.reward.value, len(rollout.messages)) == (1.0, 2)


def test_tools_of_the_episode_reach_policy_and_record() -> None:
    class Changing(Site):
        async def setup(self) -> None:
            def extra(x: int) -> int:
                return x

            self.tools = {"extra": Tool.from_function(extra)}

    policy = TokenPolicy(["end"])
    rollout = play(Changing(), policy)
    assert list(policy.contexts[0].tools) == ["extra"]
    assert [t["function"]["name"] for t in rollout.tools] == ["extra"]


def sampling_seeds(**options: Any) -> tuple[int | None, int | None]:
    policy = TokenPolicy(["end"])
    rollout = play(Site(), policy, **options)
    return policy.contexts[0].seed, rollout.sampling_seed


def test_the_sampling_seed_depends_on_seed_and_attempt() -> None:
    seeds = {
        (seed, attempt): sampling_seeds(seed=seed, attempt=attempt)
        for seed in range(3)
        for attempt in range(3)
    }
    assert len({given for given, _ in seeds.values()}) == 9
    assert all(given == recorded for given, recorded in seeds.values())
    assert sampling_seeds(seed=1, attempt=2) == seeds[1, 2]
    assert sampling_seeds(seed=None) == (None, None)


def test_attempts_meet_the_same_episode() -> None:
    rollouts = [play(EchoEnv(), ScriptedPolicy([]), seed=5, attempt=a) for a in range(3)]
    assert len({r.task_id for r in rollouts}) == 1
    assert [r.attempt for r in rollouts] == [0, 1, 2]
    assert len({r.episode_id for r in rollouts}) == 3


ENDINGS: list[tuple[Callable[[], Site], list[Any], RolloutStatus]] = [
    (Site, ["end"], RolloutStatus.TERMINATED),
    (Site, [], RolloutStatus.TRUNCATED),
    (Site, [ValueError("x")], RolloutStatus.FAILED),
]


@pytest.mark.parametrize(("make", "texts", "status"), ENDINGS)
def test_a_rollout_has_a_value_exactly_when_it_did_not_fail(
    make: Callable[[], Site], texts: list[Any], status: RolloutStatus
) -> None:
    rollout = play(make(), TokenPolicy(texts))
    assert rollout.status is status
    assert (rollout.reward.value is None) == (status is RolloutStatus.FAILED)
    assert rollout.messages[0] == user("go")
