"""Token deltas become prompts and trajectories; a rollout survives JSON."""

from __future__ import annotations

import gc
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rollout import plain_json, plain_rollout

from katgym.environment.failure import FailureKind, RolloutStatus
from katgym.environment.messages import assistant, user
from katgym.environment.reward import Component, Reward
from katgym.environment.scheduler import ToolErrorKind, ToolResult
from katgym.play.rollout import Rollout, RolloutGroup, Trajectory, Turn
from katgym.policies.base import BranchReason, Sampling, TokenRecord
from katgym.policies.version_span import VersionSpan, one_span


def record(
    parent: int | None, num_shared: int, prompt: Sequence[int], completion: Sequence[int]
) -> TokenRecord:
    return TokenRecord(
        parent=parent,
        num_shared=num_shared,
        prompt_ids=prompt,
        completion_ids=completion,
        policy_logprobs=[-token / 10 for token in completion],
    )


TOOLS = [{"type": "function", "function": {"name": "f"}}]


def rollout_of(*records: TokenRecord | None, results: Sequence[ToolResult] = ()) -> Rollout:
    turns = []
    for index, tokens in enumerate(records):
        num_prompt = 0 if tokens is None else tokens.num_shared + len(tokens.prompt_ids)
        turns.append(
            Turn(
                messages=[user("hi")],
                num_shared_messages=2 * index,
                answer=assistant("ho"),
                tools=TOOLS,
                tokens=tokens,
                num_prompt_tokens=num_prompt,
                num_completion_tokens=0 if tokens is None else len(tokens.completion_ids),
                tool_results=list(results) if index == 0 else [],
                started_s=index + 0.25,
                completed_s=index + 0.5,
                ended_s=index + 0.75,
            )
        )
    return plain_rollout(
        attempt=1,
        reward=Reward(value=0.5, components={"a": Component(score=0.5)}),
        turns=turns,
        sampling=Sampling(temperature=0.5, max_tokens=7),
        wall_s=1.25,
        env_kwargs={"level": 2},
    )


LINEAR = (record(None, 0, [1, 2], [3]), record(0, 3, [4], [5, 6]), record(1, 6, [7, 8], [9]))


def test_an_append_only_rollout_is_one_trajectory() -> None:
    rollout = rollout_of(*LINEAR)
    assert [rollout.prompt_ids(t) for t in range(3)] == [
        [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]
    ]  # fmt: skip
    assert rollout.trajectories() == [
        Trajectory(
            token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9],
            loss_mask=[False, False, True, False, True, True, False, False, True],
            policy_logprobs=[0.0, 0.0, -0.3, 0.0, -0.5, -0.6, 0.0, 0.0, -0.9],
            turns=(0, 1, 2),
        )
    ]


FORKS = {
    "inside the parent's prompt, where both paths are kept": (
        [record(None, 0, [1, 2], [3]), record(0, 3, [4], [5]), record(1, 3, [8], [9])],
        [([1, 2, 3, 4, 5], [3, 5], (0, 1)), ([1, 2, 3, 8, 9], [9], (2,))],
    ),
    "inside the parent's completion": (
        [record(None, 0, [1], [2, 3, 4]), record(0, 3, [7], [8])],
        [([1, 2, 3, 4], [2, 3, 4], (0,)), ([1, 2, 3, 7, 8], [8], (1,))],
    ),
    "a second continuation of one turn, which is not trained twice": (
        [record(None, 0, [1], [2]), record(0, 2, [3], [4]), record(0, 2, [5], [6])],
        [([1, 2, 3, 4], [2, 4], (0, 1)), ([1, 2, 5, 6], [6], (2,))],
    ),
    "turn 2 forks off 1's prompt, and 3 extends 2 exactly": (
        [
            record(None, 0, [1], [2]),
            record(0, 2, [3], [4]),
            record(1, 2, [5], [6]),
            record(2, 4, [7], [8]),
        ],
        [([1, 2, 3, 4], [2, 4], (0, 1)), ([1, 2, 5, 6, 7, 8], [6, 8], (2, 3))],
    ),
    "a new root": (
        [record(None, 0, [1], [2]), record(None, 0, [5], [6])],
        [([1, 2], [2], (0,)), ([5, 6], [6], (1,))],
    ),
}
"""Records of turns, and of each path its tokens, those that are trained, and its turns."""


def test_forks_are_paths_of_their_own(subtests: pytest.Subtests) -> None:
    for name, (records, expected) in FORKS.items():
        with subtests.test(name):
            paths = rollout_of(*records).trajectories()
            assert [
                (
                    path.token_ids,
                    list(itertools.compress(path.token_ids, path.loss_mask)),
                    path.turns,
                )
                for path in paths
            ] == expected
            for path in paths:
                pairs = zip(path.token_ids, path.loss_mask, strict=True)
                assert path.policy_logprobs == [-token / 10 * trained for token, trained in pairs]


def test_paths_follow_the_records_not_the_reported_counts() -> None:
    rollout = rollout_of(*LINEAR)
    turns = [msgspec.structs.replace(turn, num_prompt_tokens=0) for turn in rollout.turns]
    assert replace(rollout, turns=turns).trajectories() == rollout.trajectories()


def test_two_thousand_turns() -> None:
    records = [record(None, 0, [0], [1])]
    records += [record(i, 2 * (i + 1), [2], [1]) for i in range(1999)]
    rollout = rollout_of(*records)
    assert len(rollout.prompt_ids(1999)) == 3999
    (only,) = rollout.trajectories()
    assert (len(only.token_ids), sum(only.loss_mask)) == (4000, 2000)


@st.composite
def trees(draw: st.DrawFn) -> list[TokenRecord]:
    """Draw records whose sampled tokens are all different numbers."""
    records: list[TokenRecord] = []
    lengths: list[int] = []
    token = 0
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        whole = 0 if parent is None else lengths[parent]
        shared = draw(st.sampled_from([whole, whole, draw(st.integers(0, whole))]))
        completion = [token + i for i in range(draw(st.integers(1, 3)))]
        token += 3
        records.append(record(parent, shared, [-1] * draw(st.integers(0, 3)), completion))
        lengths.append(shared + len(records[-1].prompt_ids) + len(completion))
    return records


@given(trees())
def test_every_sampled_token_is_trained_exactly_once(records: list[TokenRecord]) -> None:
    rollout = rollout_of(*records)
    paths = rollout.trajectories()
    trained = [
        token
        for path in paths
        for token, is_trained in zip(path.token_ids, path.loss_mask, strict=True)
        if is_trained
    ]
    assert sorted(trained) == sorted(t for r in records for t in r.completion_ids)
    assert sorted(t for path in paths for t in path.turns) == list(range(len(records)))
    for path in paths:
        assert len(path.policy_logprobs) == len(path.token_ids)
        last = path.turns[-1]
        whole = rollout.prompt_ids(last) + list(records[last].completion_ids)
        assert path.token_ids == whole
        for token, is_trained, logprob in zip(
            path.token_ids, path.loss_mask, path.policy_logprobs, strict=True
        ):
            assert logprob == (-token / 10 if is_trained else 0.0)


def test_log_probs_that_are_not_known_are_nan_on_sampled_tokens() -> None:
    teacher = msgspec.structs.replace(LINEAR[1], policy_logprobs=())
    (path,) = rollout_of(LINEAR[0], teacher, LINEAR[2]).trajectories()
    assert [t for t, value in enumerate(path.policy_logprobs) if math.isnan(value)] == [4, 5]
    known = [path.policy_logprobs[t] for t in (0, 1, 2, 3, 6, 7, 8)]
    assert known == [0.0, 0.0, -0.3, 0.0, 0.0, 0.0, -0.9]
    data = json.loads(json.dumps(rollout_of(teacher).to_json(), allow_nan=False))
    assert Rollout.from_json(data).turns[0].tokens.policy_logprobs == []  # type: ignore[union-attr]  # it has tokens


def test_a_rollout_without_tokens_says_so() -> None:
    rollout = rollout_of(record(None, 0, [1], [2]), None)
    assert not rollout.has_tokens
    assert rollout_of(*LINEAR).has_tokens
    assert not rollout_of().has_tokens and rollout_of().trajectories() == []
    text = (
        "turn 1 of this rollout has no tokens: policy 'hf:tiny' records none."
        " Use a token policy (hf:, vllm:, smollm2)."
    )
    for call in (rollout.trajectories, lambda: rollout.prompt_ids(1)):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == text


def result(call_id: str, stage: int, **fields: Any) -> ToolResult:
    return ToolResult(call_id=call_id, name="f", content="text", stage=stage, **fields)


def test_counts() -> None:
    stages = (0, 0, 1, 2, 2, 2)
    results = [result(call_id, stage) for call_id, stage in zip("abcdef", stages, strict=True)]
    rollout = rollout_of(*LINEAR, results=results)
    assert rollout.num_turns == 3
    assert rollout.num_tool_calls == 6
    assert rollout.num_parallel_calls == 5
    assert rollout.num_prompt_tokens == 2 + 4 + 8
    assert rollout.num_completion_tokens == 1 + 2 + 1
    assert [r.call_id for r in rollout.tool_results] == list("abcdef")


def test_json_round_trip_loses_nothing() -> None:
    branched = msgspec.structs.replace(
        LINEAR[2], num_shared=4, branch=BranchReason.COMPACTION, version_spans=one_span(9, 1)
    )
    changed = msgspec.structs.replace(
        LINEAR[1],
        version_spans=(
            VersionSpan(version=3, start=0, end=1),
            VersionSpan(version=4, start=1, end=2),
        ),
    )
    results = [result("a", 0, error=ToolErrorKind.TIMEOUT, ended_s=1.5, num_bytes_omitted=3)]
    rollout = replace(
        rollout_of(LINEAR[0], changed, branched, results=results),
        status=RolloutStatus.TRUNCATED,
        failure_kind=FailureKind.MAX_TURNS,
        reason="why",
        num_retries=2,
    )
    data = json.loads(json.dumps(rollout.to_json()))
    again = Rollout.from_json(data)
    assert plain_json(again) == data
    assert again.tools == TOOLS
    assert [turn["tools"] for turn in data["turns"]] == [TOOLS, None, None]  # not kept twice
    assert again.tool_results == rollout.tool_results
    deltas = [turn["tokens"]["prompt_ids"] for turn in data["turns"]]
    assert deltas == [[1, 2], [4], [7, 8]]
    kept = [turn["tokens"]["version_spans"] for turn in data["turns"]]
    assert kept == [
        [],
        [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 2}],
        [{"version": 9, "start": 0, "end": 1}],
    ]
    assert again.trajectories() == rollout.trajectories()
    assert isinstance(again.status, RolloutStatus)
    assert isinstance(again.turns[2].tokens.branch, BranchReason)  # type: ignore[union-attr]  # it has tokens


def test_spans_that_do_not_fit_their_completion_are_refused_wherever_they_come_from() -> None:
    data = plain_json(rollout_of(LINEAR[0]))
    spans = data["turns"][0]["tokens"]["version_spans"]
    spans.append({"version": 3, "start": 0, "end": 2})
    with pytest.raises(ValueError, match="has to end at 1, the number of sampled tokens"):
        Rollout.from_json(data)
    spans[0]["version"] = "3"
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$\.turns\[0\]\.tokens"):
        Rollout.from_json(data)


def test_json_round_trip_without_tokens_and_with_an_invalid_reward() -> None:
    rollout = replace(
        rollout_of(None),
        status=RolloutStatus.FAILED,
        reward=Reward.invalid(FailureKind.SANDBOX_ERROR, "gone"),
        failure_kind=FailureKind.SANDBOX_ERROR,
        seed=None,
        sampling_seed=None,
    )
    again = Rollout.from_json(json.loads(json.dumps(rollout.to_json())))
    assert plain_json(again) == plain_json(rollout)
    assert again.reward.value is None


def test_group_rewards_leave_out_invalid_ones() -> None:
    valid = rollout_of(*LINEAR)
    failed = replace(valid, reward=Reward.invalid(FailureKind.ENV_ERROR, "x"))
    zero = replace(valid, reward=Reward(value=0.0))
    assert RolloutGroup(rollouts=[valid, failed, zero]).rewards == [0.5, 0.0]


def test_the_garbage_collector_does_not_follow_records() -> None:
    """A thousand rollouts at once hold so many that each of its passes would take long."""
    played = rollout_of(*LINEAR, results=[result("a", 0)])
    for turn in played.turns:
        assert not gc.is_tracked(turn) and not gc.is_tracked(turn.tokens)
        assert not any(map(gc.is_tracked, turn.tool_results))
