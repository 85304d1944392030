"""Stored sessions become rollouts, token by token; which groups are complete, in which order."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from made_sessions import CALLING, RESULT, TOOLS, TWO_ANSWERS, add, turn
from plain_rollout import plain_rollout

from katgym import (
    FailureKind,
    Reward,
    Rollout,
    RolloutStatus,
    TokenRecord,
    ToolResult,
    Turn,
    UsageError,
    assistant,
    user,
)
from katgym.environment.reward import Component
from katgym.policies.base import BranchReason
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import (
    RolloutStore,
    SessionStatus,
    rollout_groups,
    rollouts,
    stored_groups,
    stored_rollouts,
)
from katgym.rollout_store.groups import (
    GRADING_S,
    IncompleteGroup,
    held_out_rollouts,
    incomplete_groups,
)
from katgym.rollout_store.rollouts import as_session


def test_a_finished_session_is_a_rollout_with_all_branches(store: RolloutStore) -> None:
    meta = {
        "env_id": "katgym/Swe-v0", "task_id": "t1", "seed": 4, "attempt": 2, "split": "train",
        "env_kwargs": {"a": 1},
    }  # fmt: skip
    add(store, "s1", metadata=meta)
    given = Reward(value=0.5, components={"tests": Component(score=1.0, weight=0.0)})
    store.update_session("s1", reward=given)
    live = rollouts(store, "s1")
    store.seal()
    rollout = rollouts(store, "s1")
    assert rollout == live
    assert (rollout.env_id, rollout.task_id, rollout.seed, rollout.attempt) == (
        "katgym/Swe-v0", "t1", 4, 2,
    )  # fmt: skip
    assert (rollout.episode_id, rollout.seat, rollout.policy) == ("s1", "agent", "tiny")
    assert rollout.env_kwargs == {"a": 1}
    assert (rollout.status, rollout.reward.value) == (RolloutStatus.TERMINATED, 0.5)
    assert rollout.reward.components == {"tests": Component(score=1.0, weight=0.0)}
    assert (rollout.sampling, rollout.sampling_seed) == (None, None)  # each call has its own
    assert rollout.turns[0].sampling == {"temperature": 0.5, "max_tokens": 16, "seed": 3}
    assert (rollout.wall_s, rollout.tools) == (10.0, TOOLS)
    assert [turn.tokens for turn in rollout.turns] == [
        TokenRecord(prompt_ids=[1, 2], completion_ids=[3, 4], policy_logprobs=[-0.375, -0.5],
                    version_spans=one_span(7, 2)),
        TokenRecord(parent=0, num_shared=4, prompt_ids=[5], completion_ids=[6, 7],
                    policy_logprobs=[-0.75, -0.875],
                    version_spans=(VersionSpan(version=7, start=0, end=1),
                                   VersionSpan(version=8, start=1, end=2))),
        TokenRecord(parent=1, num_shared=2, prompt_ids=[8], completion_ids=[9],
                    policy_logprobs=[-1.125], version_spans=one_span(7, 1),
                    branch=BranchReason.COMPACTION),
    ]  # fmt: skip
    assert rollout.prompt_ids(2) == [1, 2, 8]
    assert [(p.token_ids, p.turns) for p in rollout.trajectories()] == [
        ([1, 2, 3, 4, 5, 6, 7], (0, 1)),
        ([1, 2, 8, 9], (2,)),
    ]
    first = rollout.turns[0]
    assert first.tool_results == [ToolResult(call_id="call_0", name="f", content="2")]
    assert (first.started_s, first.completed_s, first.ended_s) == (1.0, 1.5, 2.0)
    assert [turn.num_prompt_tokens for turn in rollout.turns] == [2, 5, 3]
    assert rollout.messages == [user("how much?"), user("so far: 2"), assistant("done")]


def test_the_oldest_version_counts_and_none_is_0(store: RolloutStore) -> None:
    spans = [VersionSpan(version=9, start=0, end=1), VersionSpan(version=8, start=1, end=2)]
    turns = [
        turn(0, None, 0, [1], [2, 3], version_spans=spans),
        turn(1, None, 0, [1], [2], version_spans=()),
    ]
    add(store, "s", turns)
    tokens = [turn.tokens for turn in rollouts(store, "s").turns if turn.tokens]
    assert [record.policy_version for record in tokens] == [8, 0]
    assert [record.version_spans for record in tokens] == [tuple(spans), ()]


def test_a_reward_is_valid_only_when_the_session_finished_with_one(store: RolloutStore) -> None:
    lost = {"failure_kind": "sandbox_error", "reason": "no disk"}
    failed, cancelled = RolloutStatus.FAILED, RolloutStatus.CANCELLED
    for number, (status, reward, meta, expected, reason) in enumerate(
        (
            (SessionStatus.FINISHED, None, {},
             (failed, FailureKind.VERIFIER_UNAVAILABLE), "without a reward"),
            (SessionStatus.FAILED, 1.0, {},
             (failed, FailureKind.INFRASTRUCTURE_ERROR), "session failed"),
            (SessionStatus.FAILED, None, lost, (failed, FailureKind.SANDBOX_ERROR), "no disk"),
            (SessionStatus.EXPIRED, 1.0, {}, (cancelled, FailureKind.CANCELLED), "deadline"),
            (SessionStatus.OPEN, 1.0, {}, (cancelled, FailureKind.CANCELLED), "still open"),
        )
    ):  # fmt: skip
        name = f"s{number}"
        add(store, name, status=SessionStatus.OPEN, metadata=meta)
        given = None if reward is None else Reward(value=reward)
        store.update_session(name, status=status, reward=given)
        rollout = rollouts(store, name)
        assert (rollout.reward.value, rollout.reward.is_valid) == (None, False), reason
        assert (rollout.status, rollout.reward.failure_kind) == expected, reason
        assert reason in rollout.reason


def test_a_conversation_is_what_the_model_saw(store: RolloutStore) -> None:
    add(store, "s")
    add(store, "two", TWO_ANSWERS)
    rollout, asked = rollouts(store, "s"), user("how much?")
    assert rollout.conversation(1) == [asked, CALLING, RESULT, assistant("two")]
    assert rollout.conversation(2) == [asked, user("so far: 2"), assistant("done")]
    two = rollouts(store, "two")
    assert [two.conversation(place) for place in (0, 1)] == [
        [user("pick"), assistant("a")],
        [user("pick"), assistant("b")],
    ]


def test_what_a_session_does_not_say_is_empty(store: RolloutStore) -> None:
    add(store, "empty", [], group_id="", metadata={})
    rollout = rollouts(store, "empty")
    assert (rollout.turns, rollout.messages, rollout.tools) == ([], [], ())
    assert (rollout.env_id, rollout.policy, rollout.seed, rollout.attempt) == ("", "", None, 0)
    assert rollout.task_id == "empty"
    add(store, "grouped", [turn(0, None, 0, [1], [2])], group_id="g")
    rollout = rollouts(store, "grouped")
    assert (rollout.task_id, rollout.messages) == ("g", [])
    add(store, "two models", [turn(0, None, 0, [1], [2]), turn(1, None, 0, [1], [2], model="big")])
    assert rollouts(store, "two models").policy == "tiny, big"


def test_metadata_of_another_type_is_an_error_not_a_default(store: RolloutStore) -> None:
    for name, value in {"seed": True, "attempt": "2", "env_kwargs": [], "split": None}.items():
        with pytest.raises(UsageError, match=rf"metadata of session 'odd': .*\$\.{name}"):
            add(store, "odd", metadata={name: value})


def test_siblings_are_a_group(store: RolloutStore) -> None:
    for name, group in (("a", "g"), ("b", ""), ("c", "g"), ("d", "")):
        add(store, name, group_id=group)
    add(store, "e", status=SessionStatus.FAILED)
    groups = rollout_groups(store, [SessionStatus.FINISHED])
    assert [[r.episode_id for r in g.rollouts] for g in groups] == [["a", "c"], ["b"], ["d"]]


def rollout(
    name: str, attempt: int, reward: float | None, version: int = 0, *, has_tokens: bool = True
) -> Rollout:
    tokens = TokenRecord(completion_ids=[1, 2], version_spans=one_span(version, 2))
    turn = Turn(messages=[user("?")], answer=assistant("!"), num_completion_tokens=2,
                tokens=tokens if has_tokens else None)  # fmt: skip
    kind = FailureKind.SANDBOX_ERROR
    return plain_rollout(
        attempt=attempt,
        episode_id=name,
        turns=[turn],
        reward=Reward.invalid(kind, "died") if reward is None else Reward(value=reward),
        sampling_seed=None,
    )


def put(
    store: RolloutStore, group: str, name: str, *args: Any, ended_s: float = 0.0, **more: Any
) -> None:
    size = more.pop("size", 2)
    session = as_session(
        rollout(name, *args, **more), group_id=group, metadata={"group_size": size}, ended_s=ended_s
    )
    store.add_sessions([session])


def found(store: RolloutStore, **more: Any) -> list[tuple[str, list[str]]]:
    return [
        (group_id, [r.episode_id for r in group.rollouts])
        for group_id, group in stored_groups(store, **more)
    ]


def test_complete_groups_come_in_the_order_in_which_they_were_complete(
    store: RolloutStore,
) -> None:
    put(store, "late", "a0", 0, 1.0, ended_s=1)
    put(store, "half", "b0", 0, 1.0, ended_s=2)
    put(store, "early", "c1", 1, 1.0, ended_s=3)
    put(store, "early", "c0", 0, 0.0, ended_s=4)
    put(store, "late", "a1", 1, 1.0, ended_s=5)
    put(store, "three", "d0", 0, 1.0, ended_s=0, size=3)
    put(store, "three", "d1", 1, 1.0, ended_s=0, size=3)
    expected = [("early", ["c0", "c1"]), ("late", ["a0", "a1"])]
    assert found(store) == expected
    store.seal()
    assert found(store) == expected
    assert found(store, without={"early"}) == expected[1:]
    put(store, "three", "d2", 2, 1.0, ended_s=9)
    assert found(store) == [*expected, ("three", ["d0", "d1", "d2"])]


def test_a_group_with_a_failure_is_complete_and_a_later_success_takes_its_place(
    store: RolloutStore,
) -> None:
    put(store, "g", "a0", 0, None, ended_s=1)
    put(store, "g", "a1", 1, 1.0, ended_s=2)
    ((_, group),) = stored_groups(store)
    assert group.rewards == [1.0]
    assert len(group.rollouts) == 2
    put(store, "g", "a0 again", 0, None, ended_s=3)
    assert found(store) == [("g", ["a0", "a1"])]
    put(store, "g", "a0 at last", 0, 0.5, ended_s=4)
    put(store, "g", "a1 of another collector", 1, 0.0, ended_s=5)
    assert found(store) == [("g", ["a0 at last", "a1"])]


def test_old_weights_leave_a_group_out(store: RolloutStore) -> None:
    for group, versions in {"old": (3, 4), "new": (4, 5)}.items():
        for attempt, version in enumerate(versions):
            put(store, group, f"{group}{attempt}", attempt, 1.0, version)
    put(store, "broken", "x0", 0, None, 1)
    put(store, "broken", "x1", 1, 1.0, 9)
    put(store, "words", "w0", 0, 1.0, 9, has_tokens=False)
    put(store, "words", "w1", 1, 1.0, 9)
    assert {name for name, _ in found(store)} == {"old", "new", "broken", "words"}
    # A rollout that failed is in no loss, so its weights do not matter; no tokens: not known.
    assert [name for name, _ in found(store, min_version=4)] == ["broken", "new"]
    assert {name for name, _ in found(store, min_version=0)} == {"old", "new", "broken", "words"}


def test_sessions_of_a_gateway_are_grouped_as_they_say_or_as_is_asked(store: RolloutStore) -> None:
    sized = {"env_id": "e", "group_size": 2}
    for name in ("a", "b"):
        add(store, name, group_id="told", metadata=sized, reward=1.0, created_s=1.0)
    for name in ("c", "d", "e"):
        add(store, name, group_id="silent", reward=1.0, created_s=2.0)
    add(store, "f", group_id="silent", status=SessionStatus.OPEN)
    add(store, "g", group_id="", metadata=sized)
    assert found(store) == [("told", ["a", "b"])]
    assert found(store, group_size=3) == [("silent", ["c", "d", "e"]), ("told", ["a", "b"])]
    assert found(store, group_size=4) == [("told", ["a", "b"])]
    with pytest.raises(UsageError, match="group_size is >= 1 or None, got 0"):
        next(stored_groups(store, group_size=0))


def test_what_is_not_complete_is_told_with_what_is_open(store: RolloutStore) -> None:
    put(store, "done", "a0", 0, 1.0)
    put(store, "done", "a1", 1, 1.0)
    for name, created_s in (("late", 20.0), ("early", 10.0)):
        add(store, name, group_id="half", status=SessionStatus.OPEN, created_s=created_s)
    add(store, "ended", group_id="half", created_s=15.0)
    add(store, "alone", group_id="")
    assert incomplete_groups(store, group_size=4) == [
        IncompleteGroup(
            group_id="half", num_ended=1, group_size=4, open_sessions=["early", "late"], began_s=10
        )
    ]
    assert incomplete_groups(store)[0].group_size is None
    assert incomplete_groups(store, group_size=1) == []
    assert incomplete_groups(store, group_size=4, without={"half"}) == []


def test_a_session_counts_as_ended_some_time_after_its_deadline(store: RolloutStore) -> None:
    add(store, "a", group_id="g", reward=1.0, ended_s=5.0)
    now_s = time.time()
    late = {"status": SessionStatus.OPEN, "reward": 1.0}
    add(store, "b", group_id="g", deadline_s=now_s - GRADING_S + 3600, **late)
    assert found(store, group_size=2) == []
    add(store, "c", group_id="g", deadline_s=now_s - GRADING_S - 3600, **late)
    ((_, group),) = stored_groups(store, group_size=2)
    assert group.rewards == [1.0]  # nobody ended it: its reward does not count
    assert [r.failure_kind for r in group.rollouts] == [None, FailureKind.CANCELLED]


def test_held_out_sessions_are_no_groups(store: RolloutStore) -> None:
    add(store, "a", group_id="g", metadata={"is_held_out": True}, reward=1.0)
    add(store, "b", group_id="g", reward=0.0)
    add(store, "c", group_id="", metadata={"is_held_out": True}, reward=0.5)
    add(store, "d", metadata={"is_held_out": True}, status=SessionStatus.OPEN)
    assert found(store, group_size=1) == [("g", ["b"])]
    assert [name for name, _ in held_out_rollouts(store)] == ["a", "c"]
    ((_, rollout),) = held_out_rollouts(store, without={"a"})
    assert rollout.reward.value == 0.5


def test_a_size_that_is_none_is_not_told(store: RolloutStore) -> None:
    sizes = {"a": 0, "b": -1, "c": True, "d": "2", "e": None, "f": 2.0}
    for name, told in sizes.items():
        add(store, name, group_id=f"group {name}", metadata={"group_size": told})
    assert found(store) == []
    assert sorted(found(store, group_size=1)) == [(f"group {name}", [name]) for name in sizes]


def test_all_rollouts_come_by_group_sealed_or_not(store: RolloutStore) -> None:
    put(store, "g", "a1", 1, 1.0, ended_s=1)
    add(store, "alone", group_id="", created_s=2.0)
    put(store, "h", "b0", 0, 1.0, ended_s=3)
    store.seal()
    put(store, "g", "a0", 0, None, ended_s=4)
    add(store, "open", status=SessionStatus.OPEN)
    names = [r.episode_id for r in stored_rollouts(store)]
    assert names == ["alone", "a0", "a1", "b0"]  # by the ids "alone", "g" and "h", not by time
    store.seal()
    assert [r.episode_id for r in stored_rollouts(store)] == names


def test_a_group_is_read_when_it_is_asked_for(store: RolloutStore) -> None:
    put(store, "g", "a", 0, 1.0, size=1)
    put(store, "h", "b", 0, 1.0, size=1, ended_s=1)
    groups = stored_groups(store)
    assert next(groups)[0] == "g"
    store.update_session("b", reward=Reward(value=7.0))
    _, group = next(groups)
    assert group.rewards == [7.0]
    assert msgspec.to_builtins(group.rollouts[0].turns[0])["finish_reason"] == "stop"
