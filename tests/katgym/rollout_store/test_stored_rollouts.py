"""Stored sessions become rollouts: turns, branches, rewards, messages, token by token."""

from __future__ import annotations

import pytest
from made_sessions import CALLING, RESULT, TOOLS, TWO_ANSWERS, add, turn

from katgym import FailureKind, Reward, RolloutStatus, ToolResult, UsageError, assistant, user
from katgym.environment.reward import Component
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import (
    RolloutStore,
    SessionStatus,
    rollout_groups,
    rollouts,
)


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


@pytest.mark.parametrize(
    ("status", "reward", "meta", "expected"),
    [
        (SessionStatus.FINISHED, None, {},
         (RolloutStatus.FAILED, FailureKind.VERIFIER_UNAVAILABLE, "without a reward")),
        (SessionStatus.FAILED, 1.0, {},
         (RolloutStatus.FAILED, FailureKind.INFRASTRUCTURE_ERROR, "session failed")),
        (SessionStatus.FAILED, None, {"failure_kind": "sandbox_error", "reason": "no disk"},
         (RolloutStatus.FAILED, FailureKind.SANDBOX_ERROR, "no disk")),
        (SessionStatus.EXPIRED, 1.0, {},
         (RolloutStatus.CANCELLED, FailureKind.CANCELLED, "deadline")),
        (SessionStatus.OPEN, 1.0, {},
         (RolloutStatus.CANCELLED, FailureKind.CANCELLED, "still open")),
    ],
)  # fmt: skip
def test_a_reward_is_valid_only_when_the_session_finished_with_one(
    store: RolloutStore, status: SessionStatus, reward: float | None, meta: dict, expected: tuple
) -> None:
    add(store, "s", status=SessionStatus.OPEN, metadata=meta)
    given = None if reward is None else Reward(value=reward)
    store.update_session("s", status=status, reward=given)
    rollout = rollouts(store, "s")
    assert rollout.reward.value is None
    assert not rollout.reward.is_valid
    assert (rollout.status, rollout.reward.failure_kind) == expected[:2]
    assert expected[2] in rollout.reason


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
