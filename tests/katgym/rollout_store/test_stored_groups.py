"""Which groups of a store are complete, in which order they come, and what is in them."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from made_sessions import add
from plain_rollout import plain_rollout

from katgym import FailureKind, Reward, Rollout, TokenRecord, Turn, UsageError, assistant, user
from katgym.policies.version_span import one_span
from katgym.rollout_store import RolloutStore, SessionStatus, stored_groups, stored_rollouts
from katgym.rollout_store.groups import (
    GRADING_S,
    IncompleteGroup,
    held_out_rollouts,
    incomplete_groups,
)
from katgym.rollout_store.rollouts import as_session


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


@pytest.mark.parametrize("told", [0, -1, True, "2", None, 2.0])
def test_a_size_that_is_none_is_not_told(store: RolloutStore, told: Any) -> None:
    add(store, "a", group_id="g", metadata={"group_size": told})
    assert found(store) == []
    assert found(store, group_size=1) == [("g", ["a"])]


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
