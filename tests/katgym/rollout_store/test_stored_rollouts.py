"""Stored sessions become rollouts: turns, branches, rewards, messages, token by token."""

from __future__ import annotations

import pytest
from made_sessions import CALLING, RESULT, TOOLS, TWO_ANSWERS, add, node, text

from katgym import FailureKind, RolloutStatus, Sampling, ToolResult, assistant, user
from katgym.policies.base import BranchReason, TokenRecord
from katgym.reward import Component
from katgym.rollout_store import (
    RolloutStore,
    SessionStatus,
    conversation,
    rollout_groups,
    rollouts,
)
from katgym.version_span import VersionSpan, one_span


def test_a_finished_session_is_a_rollout_with_all_branches(store: RolloutStore) -> None:
    meta = {
        "env_id": "katgym/Swe-v0", "task_id": "t1", "seed": 4, "attempt": 2, "split": "train",
        "env_kwargs": {"a": 1},
    }  # fmt: skip
    add(store, "s1", metadata=meta)
    store.update_session("s1", reward=0.5, reward_components={"tests": 1.0})
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
    assert rollout.sampling == Sampling(temperature=0.5, max_tokens=16)
    assert (rollout.sampling_seed, rollout.wall_s, rollout.tools) == (3, 10.0, TOOLS)
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
    for turn in rollout.turns:
        assert rollout.messages[turn.num_messages]["role"] == "assistant"


def test_the_oldest_version_counts_and_none_is_0(store: RolloutStore) -> None:
    spans = [VersionSpan(version=9, start=0, end=1), VersionSpan(version=8, start=1, end=2)]
    said = text([user("a")], assistant("b"))
    nodes = [
        (node(0, None, 0, [1], [2, 3], versions=spans), said),
        (node(1, None, 0, [1], [2], versions=[]), said),
    ]
    add(store, "s", nodes)
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
    store.update_session("s", status=status, reward=reward)
    rollout = rollouts(store, "s")
    assert rollout.reward.value is None
    assert not rollout.reward.is_valid
    assert (rollout.status, rollout.reward.failure_kind) == expected[:2]
    assert expected[2] in rollout.reason


def test_a_conversation_is_what_the_model_saw(store: RolloutStore) -> None:
    add(store, "s")
    add(store, "two", TWO_ANSWERS)
    stored = store.stored("s")
    asked = user("how much?")
    assert conversation(stored, 1) == [asked, CALLING, RESULT, assistant("two")]
    assert conversation(stored, 2) == [asked, user("so far: 2"), assistant("done")]
    two = store.stored("two")
    assert [conversation(two, place) for place in (0, 1)] == [
        [user("pick"), assistant("a")],
        [user("pick"), assistant("b")],
    ]


def test_an_index_may_be_missing_between_nodes(store: RolloutStore) -> None:
    """A gateway that numbers calls as they come may have lost one."""
    said = text([user("a")], assistant("b"))
    nodes = [(node(3, None, 0, [1], [2]), said), (node(7, 3, 2, [3], [4]), said)]
    add(store, "s", nodes)
    rollout = rollouts(store, "s")
    assert [t.tokens.parent for t in rollout.turns if t.tokens] == [None, 0]
    assert rollout.trajectories()[0].token_ids == [1, 2, 3, 4]


def test_odd_sampling_settings_and_empty_sessions_are_no_fault(store: RolloutStore) -> None:
    add(store, "empty", [])
    assert rollouts(store, "empty").turns == []
    odd = {"temperature": None, "top_p": 0, "max_tokens": "many", "top_k": -1, "seed": "x"}
    add(store, "odd", [(node(0, None, 0, [1], [2], sampling=odd), text([], None))])
    rollout = rollouts(store, "odd")
    assert (rollout.sampling, rollout.sampling_seed) == (Sampling(), None)
    assert rollout.messages == [{"role": "assistant", "content": ""}]


def test_siblings_are_a_group(store: RolloutStore) -> None:
    for name, group in (("a", "g"), ("b", ""), ("c", "g"), ("d", "")):
        add(store, name, group_id=group)
    add(store, "e", status=SessionStatus.FAILED)
    groups = rollout_groups(store, [SessionStatus.FINISHED])
    assert [[r.episode_id for r in g.rollouts] for g in groups] == [["a", "c"], ["b"], ["d"]]
