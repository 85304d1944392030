"""Several policies in one episode: whose turn it is, who sees what, what everyone gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from idle_loop import run_idle
from waiting import wait_until_async

import katgym
from katgym.environment.env import Env
from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import Message, assistant, normalize_action, user
from katgym.environment.reward import Reward
from katgym.environment.task import Task
from katgym.environment.tool import tool
from katgym.errors import (
    ContextLengthError,
    InfrastructureError,
    PolicyError,
    UnknownNameError,
    UsageError,
)
from katgym.play.limits import Limits
from katgym.play.match import run_match
from katgym.play.rollout import Rollout, prompt_messages
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.testing import EchoEnv, ScriptedPolicy


class Nim(Env):
    """A heap of seven; take one or two in turn; who takes the last one wins."""

    seats = ("first", "second")
    default_max_turns = 20

    def __init__(self, trouble: str = "") -> None:
        super().__init__()
        self.trouble = trouble
        self.num_teardowns = 0

    def load_tasks(self, split: str) -> Sequence[Task]:
        return [Task(task_id="seven", data={"heap": 7})]

    async def setup(self) -> None:
        self.heap = int(self.task.data["heap"])
        self.winner = ""
        if self.trouble == "setup":
            raise RuntimeError("broken")

    def opening(self) -> str:
        return f"{self.seat}: heap {self.heap}"

    async def teardown(self) -> None:
        self.num_teardowns += 1

    def _take(self, count: int) -> None:
        self.heap -= count
        if self.heap <= 0:
            self.winner = self.seat
            self.finish("taken")
        self.seat = "second" if self.seat == "first" else "first"

    def reply(self, message: Message) -> str:
        self._take(int(message["content"]))
        return f"{self.seat}: heap {self.heap}"

    @tool
    async def peek(self) -> str:
        if self.trouble == "hang":
            await asyncio.Event().wait()
        return str(self.heap)

    @katgym.scorer()
    async def first_won(self) -> float:
        if self.trouble == "score":
            await asyncio.Event().wait()
        return {"first": 1.0, "second": -1.0, "": 0.0}[self.winner]

    def seat_rewards(self) -> Mapping[str, Reward]:
        if self.trouble == "seat_rewards":
            raise InfrastructureError("lost", kind="verifier_unavailable")
        assert self.last_reward is not None
        if self.last_reward.value is None:
            return dict.fromkeys(self.seats, self.last_reward)
        value = self.last_reward.value
        return {"first": Reward(value=value), "second": Reward(value=-value)}


class Watcher(Policy):
    """Plays `moves`; notes what it saw, its context, and when it was closed."""

    def __init__(self, moves: Sequence[Any], name: str = "watcher") -> None:
        self.name = name
        self.moves = list(moves)
        self.seen: list[list[str]] = []
        self.contexts: list[EpisodeContext] = []
        self.num_closed = 0

    def start(self, context: EpisodeContext) -> Session:
        self.contexts.append(context)
        return WatcherSession(self)


class WatcherSession(Session):
    def __init__(self, policy: Watcher) -> None:
        self.policy = policy
        self.turn = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        self.policy.seen.append([m["content"] for m in messages])
        move = self.policy.moves[self.turn]
        self.turn += 1
        if isinstance(move, Exception):
            raise move
        if move == "hang":
            await asyncio.Event().wait()
        message = normalize_action(move)
        return Completion(message=message, num_completion_tokens=2)

    async def aclose(self) -> None:
        self.policy.num_closed += 1


def play(env: Env, policies: Mapping[str, Policy | str], **options: Any) -> dict[str, Rollout]:
    return run_idle(run_match(env, policies, **{"seed": 0, **options}))


def pair(first: Sequence[Any], second: Sequence[Any]) -> dict[str, Watcher]:
    return {"first": Watcher(first, "F"), "second": Watcher(second, "S")}


def test_seats_take_turns_and_see_their_own_messages_only() -> None:
    env, policies = Nim(), pair(["1", "1", "2"], ["2", "1"])
    rollouts = play(env, policies)
    assert policies["first"].seen == [
        ["first: heap 7"],
        ["first: heap 7", "1", "first: heap 4"],
        ["first: heap 7", "1", "first: heap 4", "1", "first: heap 2"],
    ]
    assert policies["second"].seen == [
        ["second: heap 6"],
        ["second: heap 6", "2", "second: heap 3"],
    ]
    first, second = rollouts["first"], rollouts["second"]
    assert (first.reward.value, second.reward.value) == (1.0, -1.0)
    assert {r.status for r in rollouts.values()} == {RolloutStatus.TERMINATED}
    assert (first.num_turns, second.num_turns) == (3, 2)
    assert (first.policy, second.policy, first.seat, second.seat) == ("F", "S", "first", "second")
    assert first.episode_id == second.episode_id
    assert [len(prompt_messages(second.turns, i)) for i in range(2)] == [1, 3]
    assert [m["role"] for m in first.messages] == ["user", "assistant"] * 3
    assert [p.num_closed for p in policies.values()] == [1, 1]
    assert env.num_teardowns == 1


def test_tool_results_go_to_the_seat_that_called() -> None:
    policies = pair([assistant("", [("peek", {})]), "2", "2"], ["1", "2"])
    rollouts = play(Nim(), policies)
    assert [m["role"] for m in rollouts["first"].messages][:4] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (rollouts["first"].num_tool_calls, rollouts["second"].num_tool_calls) == (1, 0)
    assert [t["function"]["name"] for t in rollouts["second"].tools] == ["peek"]


def test_sampling_seeds_differ_by_seat_and_repeat() -> None:
    def seeds() -> list[int | None]:
        rollouts = play(Nim(), pair(["2"] * 4, ["2"] * 4), seed=3)
        return [r.sampling_seed for r in rollouts.values()]

    assert seeds() == seeds()
    assert len(set(seeds())) == 2
    unseeded = play(Nim(), pair(["2"] * 4, ["2"] * 4), seed=None)
    assert [r.sampling_seed for r in unseeded.values()] == [None, None]


def test_shuffled_seats_depend_on_the_seed_only() -> None:
    def seating(seed: int) -> str:
        players = {name: Watcher(["2"] * 4, name) for name in ("ann", "bob")}
        rollouts = play(Nim(), players, seed=seed, shuffle_seats=True)
        assert list(rollouts) == ["first", "second"]
        return "".join(r.policy for r in rollouts.values())

    orders = [seating(seed) for seed in range(12)]
    assert orders == [seating(seed) for seed in range(12)]
    assert set(orders) == {"annbob", "bobann"}


def test_wrong_seats_and_tasks_are_refused() -> None:
    for seats, text in {
        ("first",): "this env has 2 seats (first, second), got 1 policies: 'first'",
        ("a", "b", "c"): "this env has 2 seats (first, second), got 3 policies: 'a', 'b', 'c'",
        ("first", "secnd"): "unknown seat 'secnd'. Did you mean 'second'?",
    }.items():
        with pytest.raises(UsageError) as caught:
            play(Nim(), {seat: ScriptedPolicy([]) for seat in seats})
        assert str(caught.value) == text
        assert isinstance(caught.value, UnknownNameError) == text.startswith("unknown")
    with pytest.raises(UnknownNameError, match="unknown task id 'eight'"):
        play(Nim(), pair([], []), task_id="eight")


def test_a_failure_of_one_policy_makes_every_reward_invalid() -> None:
    for error, kind in (
        (PolicyError("down", kind="policy_timeout"), FailureKind.POLICY_TIMEOUT),
        (KeyError("oops"), FailureKind.POLICY_BUG),
    ):
        env, policies = Nim(), pair(["1", "1"], ["1", error])
        rollouts = play(env, policies)
        for rollout in rollouts.values():
            assert (rollout.status, rollout.failure_kind) == (RolloutStatus.FAILED, kind)
            assert (rollout.reward.is_valid, rollout.reward.value) == (False, None)
        assert (rollouts["first"].num_turns, rollouts["second"].num_turns) == (2, 1)
        assert [p.num_closed for p in policies.values()] == [1, 1]
        assert env.num_teardowns == 1


def test_a_failure_of_the_env_is_every_seats() -> None:
    for trouble, kind in (
        ("setup", FailureKind.ENV_ERROR),
        ("seat_rewards", FailureKind.VERIFIER_UNAVAILABLE),
    ):
        env = Nim(trouble)
        rollouts = play(env, pair(["2"] * 4, ["2"] * 4))
        assert [r.failure_kind for r in rollouts.values()] == [kind] * 2
        assert not any(r.reward.is_valid for r in rollouts.values())
        assert env.num_teardowns == 1


def test_a_budget_of_one_seat_truncates_all(subtests: pytest.Subtests) -> None:
    ones = ["1"] * 5
    budgets: list[tuple[FailureKind, Limits, list[Any]]] = [
        (FailureKind.MAX_TURNS, Limits(max_turns=3), ["1", "1"]),
        (FailureKind.MAX_TOKENS, Limits(max_tokens=3), ones),
        (FailureKind.CONTEXT_LENGTH, Limits(), ["1", ContextLengthError("full")]),
        (FailureKind.EPISODE_TIMEOUT, Limits(timeout_s=0.5), ["1", "hang"]),
    ]
    for kind, limits, moves in budgets:
        with subtests.test(kind=kind):
            env, policies = Nim(), pair(moves, ones)
            rollouts = play(env, policies, limits=limits)
            for rollout in rollouts.values():
                assert (rollout.status, rollout.failure_kind) == (RolloutStatus.TRUNCATED, kind)
                assert (rollout.reward.is_valid, rollout.reward.value) == (True, 0.0)
            assert env.num_teardowns == 1
            assert all(p.num_closed == 1 for p in policies.values())


def test_a_seat_that_never_answered_is_not_judged() -> None:
    rollouts = play(Nim(), pair(["1"], ["hang"]), limits=Limits(timeout_s=0.5))
    kind = FailureKind.POLICY_TIMEOUT
    assert [(r.failure_kind, r.reward.value) for r in rollouts.values()] == [(kind, None)] * 2


def test_grading_that_hangs_is_bounded() -> None:
    for moves in (["1", "hang"], [ContextLengthError("full")]):
        env = Nim("score")
        rollouts = play(env, pair(moves, ["1"]), limits=Limits(timeout_s=0.5))
        assert [r.failure_kind for r in rollouts.values()] == [FailureKind.ENV_TIMEOUT] * 2
        assert {r.reason for r in rollouts.values()} == {
            "the env hung: its grading had not ended when 0.5 s were up"
        }
        assert env.num_teardowns == 1


def test_cancellation_closes_sessions_and_env_once() -> None:
    env, policies = Nim(), pair(["1", "hang"], ["1"])

    async def go() -> None:
        task = asyncio.create_task(run_match(env, policies, seed=0))
        seen = policies["first"].seen
        await wait_until_async(lambda: len(seen) == 2, "the first seat to hang")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert [p.num_closed for p in policies.values()] == [1, 1]
    assert env.num_teardowns == 1


def test_one_policy_may_play_both_seats() -> None:
    policy = Watcher(["2"] * 4)
    rollouts = play(Nim(), {"first": policy, "second": policy})
    assert [c.seat for c in policy.contexts] == ["first", "second"]
    assert rollouts["first"].reward.value == -rollouts["second"].reward.value  # type: ignore[operator]  # both are valid


def test_an_env_of_one_seat_is_a_match_of_one() -> None:
    rollouts = play(EchoEnv(), {"player": ScriptedPolicy(["a"])}, limits=Limits(max_turns=2))
    assert rollouts["player"].failure_kind is FailureKind.MAX_TURNS
    assert rollouts["player"].messages[1:3] == [assistant("a"), user("a")]
