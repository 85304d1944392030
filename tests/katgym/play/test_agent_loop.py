"""One episode: how it may end, what is recorded, what it takes; limits and seeds.

Not here: time that runs out (`test_agent_loop_hanging.py`), failures and mistakes
(`test_agent_loop_failures.py`), many episodes (`test_engine.py`), several seats (`test_match.py`).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium
import pytest
from episode_play import Site, TokenPolicy, check_closed, play
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import assistant
from katgym.environment.task import Task
from katgym.environment.tool import Tool
from katgym.errors import ContextLengthError, UnknownNameError, UsageError
from katgym.play.limits import Limits
from katgym.play.rollout import prompt_messages
from katgym.play.seeding import derive_seed
from katgym.policies.base import Sampling
from katgym.testing import EchoEnv, ScriptedPolicy


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
    assert [len(prompt_messages(rollout.turns, i)) for i in range(3)] == [1, 3, 6] == policy.seen
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


def test_truncated_by_the_envs_own_turns_which_a_limit_only_lowers() -> None:
    for limit, expected in ((None, 4), (2, 2), (9, 4)):
        env, policy = Site(), TokenPolicy()
        rollout = play(env, policy, limits=Limits(max_turns=limit))
        assert rollout.status is RolloutStatus.TRUNCATED
        assert rollout.failure_kind is FailureKind.MAX_TURNS
        assert (rollout.num_turns, rollout.reward.value) == (expected, 0.25)
        check_closed(env, policy)


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


def test_wrapped_envs_are_accepted() -> None:
    spec = gymnasium.envs.registration.EnvSpec("Site-v0", entry_point=Site)
    rollout = play(gymnasium.make(spec), TokenPolicy(["end"]))
    assert (rollout.env_id, rollout.reward.value) == ("Site-v0", 0.25)


def test_wrong_kinds_and_several_seats_are_refused() -> None:
    two_seats = Site()
    two_seats.seats = ("a", "b")
    with pytest.raises(UsageError, match=r"env is a katgym.Env or the id of one, got 3"):
        play(3, ScriptedPolicy([]))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match=r"policy is a katgym Policy or its URI, got 3"):
        play(Site(), 3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match=r"this env has 2 seats \(a, b\); play it with run_match"):
        play(two_seats, ScriptedPolicy([]))


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


def test_limits_are_positive_or_none(subtests: pytest.Subtests) -> None:
    names = ("max_turns", "max_tokens", "max_context_tokens", "timeout_s")
    for name, value in itertools.product((*names, "close_timeout_s"), (0, -1, math.nan)):
        text = f"{name} is > 0, got" if name == "close_timeout_s" else f"{name} is > 0 or None, got"
        with subtests.test(name, value=value), pytest.raises(UsageError, match=f"{text} {value!r}"):
            Limits(**{name: value})  # type: ignore[arg-type]  # one of them
    assert [getattr(Limits(), name) for name in names] == [None] * 4
    assert Limits(max_turns=1, timeout_s=0.5).timeout_s == 0.5


PARTS = st.lists(st.integers() | st.text(max_size=5) | st.booleans() | st.none(), max_size=4)


@given(PARTS)
def test_derived_seeds_are_in_range_and_repeat(parts: list[object]) -> None:
    assert 0 <= derive_seed(*parts) == derive_seed(*parts) < 2**31


def test_derived_seeds_never_change_and_tell_their_parts_apart() -> None:
    assert derive_seed() == 0x42C4B0E3  # the first bytes of sha256(b"")
    assert derive_seed("sampling", 0, 0) == 666030629
    assert derive_seed("sampling", 0, 1) == 1266716393
    different = [("a", "bc"), ("ab", "c"), ("abc",), ("c", "ab"), (1,), ("1",), (True,), (1.0,), ()]
    assert len({derive_seed(*parts) for parts in different}) == len(different)
    seeds = [derive_seed("sampling", seed, attempt) for seed in range(100) for attempt in range(20)]
    assert len(set(seeds)) == 2000
    assert abs(sum(seeds) / 2000 / 2**30 - 1) < 0.1
