"""Rollouts become rows: their paths, what masks change, advantages of groups.

At the end: rows have the experts that ran their tokens, where the policy's server told them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import record, rollout_of, short_rollout, turn
from tiny_families import make
from tiny_model import TinyModel
from tiny_model_rows import check_equal, gradients

from katgym import Rollout, RolloutGroup, TokenRecord, ToolErrorKind, VersionSpan
from katgym.environment.failure import RolloutStatus
from katgym.policies.expert_routes import write_routes
from katgym.rollout_store import RolloutStore, record_rollout, record_rollouts
from katgym.rollout_store.group_cursor import GroupCursor
from katgym_trainer import (
    RewardShaping,
    Row,
    Trainer,
    forward_backward,
    loss,
    pack,
    read_rollouts,
    supervised_rows,
)
from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows
from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError, turn_errors
from katgym_trainer.row import Floats

FAILED = frozenset({TurnError.FAILED_CALL})
# Turns 0 and 1 are a path; 2 forks off turn 1's prompt, and 3 extends it.
BRANCHED = rollout_of(
    turn(record(None, 0, [1, 2], [3], version=7)),
    turn(record(0, 3, [4], [5, 6], version=8), ToolErrorKind.TOOL_ERROR),
    turn(record(1, 3, [7], [8, 9], version=8)),
    turn(record(2, 6, [10], [11], version=9), finish_reason="length"),
)


def grouped(*rollouts: Rollout) -> RolloutGroup:
    return RolloutGroup(rollouts=list(rollouts))


def test_a_row_for_each_path() -> None:
    first, second = rollout_rows(BRANCHED, advantage=0.5, weight=2.0, group="g")
    assert first.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.loss_mask.tolist() == [False, False, True, False, True, True]
    assert first.policy_logprobs.tolist() == [0.0, 0.0, -0.3, 0.0, -0.5, -0.6]
    assert second.token_ids.tolist() == [1, 2, 3, 7, 8, 9, 10, 11]
    assert second.loss_mask.tolist() == [False] * 4 + [True, True, False, True]
    for row in (first, second):
        assert row.advantages.tolist() == [0.5] * len(row)
        assert row.weight.tolist() == [2.0] * len(row)
        assert (row.group, row.rollout, row.context) == ("g", ("e", "player"), None)


def test_what_was_sampled_under_a_constraint_is_context(caplog: pytest.LogCaptureFixture) -> None:
    held = turn(record(None, 0, [1, 2], [3], policy_logprobs=[-20.0]), constraint="json_schema:ab")
    rollouts = [
        rollout_of(held, turn(record(0, 3, [4], [5])), episode_id=name, reward=reward)
        for name, reward in (("a", 0.0), ("b", 1.0))
    ]
    rows = group_rows([grouped(*rollouts)], "dr_grpo")
    for row, advantage in zip(rows, (-0.5, 0.5), strict=True):
        assert row.token_ids.tolist() == [1, 2, 3, 4, 5]
        assert row.loss_mask.tolist() == [False, False, False, False, True]
        assert row.policy_logprobs.tolist() == [0.0, 0.0, 0.0, 0.0, -0.5]
        assert row.advantages[-1] == advantage
    assert "2 answers were sampled under a constraint (2 of json_schema)" in caplog.text


BENT: list[dict[str, Any]] = [
    {"constraint": "json_schema:ab"},
    {"constraints": {"response_format": {"type": "json_object"}}},  # of stores without the former
    {"tool_choice": "required"},
    {"min_p": 0.1},
    {"made_up": 1},
]
UNBENT: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3, "min_p": 0.0, "constraints": {"reasoning_effort": "low"}},
    {"tool_choice": "auto", "stop": ["x"], "max_tokens": 7},
]


def sampled(*samplings: dict[str, Any], group: int, attempt: int) -> Rollout:
    """Return a rollout of a turn of two tokens for each of its samplings, one after the other.

    Every second attempt of a group gets the reward 1.
    """
    turns, place = [], 0
    for number, sampling in enumerate(samplings):
        prompt = [1, 2] if number == 0 else [number]
        told = [0.0 if sampling in BENT else -0.5 - number, -0.25]
        tokens = record(
            number - 1 if number else None, place, prompt, [3 + number, 7], policy_logprobs=told
        )
        turns.append(msgspec.structs.replace(turn(tokens), sampling=sampling))
        place += len(prompt) + 2
    name, reward = f"{group}-{attempt}", attempt % 2
    return rollout_of(*turns, reward=reward, episode_id=name, attempt=attempt)


def mixed_groups() -> list[RolloutGroup]:
    """Return groups of which the first rollout's first turn, the second's and a third are bent."""
    groups = []
    for number, bent in enumerate(BENT):
        free = UNBENT[number % len(UNBENT)]
        members = [(bent, free, free), (free, bent), (free, free, free), (bent,)]
        groups.append(
            grouped(*(sampled(*m, group=number, attempt=i) for i, m in enumerate(members)))
        )
    return groups


def masked_by_hand(groups: list[RolloutGroup]) -> list[Row]:
    """Return the rows of groups whose bent turns are free for all that is recorded of them."""
    unbent, places = [], {}
    for group in groups:
        rollouts = []
        for rollout in group.rollouts:
            held = [number for number, own in enumerate(rollout.turns) if own.sampling in BENT]
            # Turn n's tokens stand behind a first prompt of two and later ones of one.
            places[rollout.episode_id] = [4 + 3 * n - k for n in held for k in (2, 1)]
            turns = [msgspec.structs.replace(own, sampling={}) for own in rollout.turns]
            rollouts.append(dataclasses.replace(rollout, turns=turns))
        unbent.append(grouped(*rollouts))
    rows = []
    for row in group_rows(unbent, "dr_grpo"):
        mask = row.loss_mask.copy()
        mask[places[row.rollout[0]]] = False
        rows.append(row.replace(loss_mask=mask))
    return [row for row in rows if row.num_trained]


def read_back(groups: list[RolloutGroup], path: Path, reader: str) -> list[RolloutGroup]:
    """Return groups as a reader has them of what was written down."""
    if reader == "store":
        with RolloutStore.open(path) as store:
            for number, group in enumerate(groups):
                record_rollouts(store, group.rollouts, group_id=str(number))
            return [group for _, group in GroupCursor(store, group_size=4).groups()]
    lines = [json.dumps(r.to_json()) for group in groups for r in group.rollouts]
    path.write_text("".join(line + "\n" for line in lines))
    found = {rollout.episode_id: rollout for rollout in read_rollouts(path)}
    return [grouped(*(found[r.episode_id] for r in group.rollouts)) for group in groups]


@pytest.mark.parametrize("reader", ["none", "store", "file"])
def test_gradients_and_metrics_are_those_without_the_tokens_whose_sampling_was_bent(
    reader: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    groups = mixed_groups()
    read = groups if reader == "none" else read_back(groups, tmp_path / "rollouts", reader)
    rows, wanted = group_rows(read, "dr_grpo"), masked_by_hand(groups)
    assert len(rows) == len(wanted) == 3 * len(BENT)
    for name, options in (
        ("grpo", {"kl_coef": 0.3}),
        ("rloo", {"importance": "token", "importance_max": 1.1, "entropy_coef": 0.1}),
        ("grpo", {"mismatch_mask": "token", "mismatch_low": 1e-5, "mismatch_high": 2.0}),
        ("reinforce", {"importance": "sequence"}),
        ("sft", {}),
    ):
        found = []
        for own in (rows, wanted):
            model = TinyModel()
            own = [row.replace(ref_logprobs=[-0.1 * t for t in row.token_ids]) for row in own]
            forests = pack(own, max_tokens=10_000)
            metrics = forward_backward(model, forests, loss(name, **options))
            found.append((gradients(model), metrics))
        with subtests.test(name=name, options=options):
            assert found[0][1] == pytest.approx(found[1][1], rel=1e-12)
            check_equal(found[0][0], found[1][0], 1e-12)


def test_a_step_on_groups_whose_every_turn_was_bent_changes_nothing() -> None:
    bent = [
        grouped(*(sampled(one, group=number, attempt=attempt) for attempt in (0, 1)))
        for number, one in enumerate(BENT)
    ]
    model = TinyModel()
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer = Trainer(model, "reinforce")
    metrics = trainer.step(bent)
    assert (metrics["train/num_rows"], metrics["train/is_skipped"]) == (0, 1.0)
    assert all(map(torch.equal, before, model.parameters()))


def test_turns_that_call_tools_are_kept_by_pruning() -> None:
    first, second = rollout_rows(BRANCHED)
    assert first.is_kept is not None and np.flatnonzero(first.is_kept).tolist() == [4, 5]
    assert second.is_kept is None


def test_a_rollout_without_turns_has_no_rows() -> None:
    assert rollout_rows(rollout_of()) == []


def test_seats_and_episodes_are_rollouts_of_their_own() -> None:
    made = [
        short_rollout("a", 1.0, 3),
        short_rollout("b", 1.0, 3),
        short_rollout("a", 1.0, 3, seat="black"),
    ]
    keys = [rollout_rows(rollout)[0].rollout for rollout in made]
    assert len(set(keys)) == 3


def test_versions_split_prefixes_only_when_asked() -> None:
    old = short_rollout("a", 1.0, 3, 4)
    new = rollout_of(turn(record(None, 0, [1, 2], [3, 5], version=1)), episode_id="b")

    def num_tokens(should_split: bool) -> int:
        rows = [
            row
            for rollout in (old, new)
            for row in rollout_rows(rollout, should_split_versions=should_split)
        ]
        (forest,) = pack(rows, max_tokens=100)
        return forest.stats.num_tree

    assert num_tokens(False) == 5  # 1 2 3, then 4 and 5
    assert num_tokens(True) == 8
    assert [row.context for row in rollout_rows(BRANCHED, should_split_versions=True)] == [
        (((7, 0),), ((8, 0),)),
        (((8, 0),), ((9, 0),)),
    ]


def test_tokens_of_too_old_weights_are_context_alone() -> None:
    spans = [VersionSpan(version=2, start=0, end=2), VersionSpan(version=4, start=2, end=3)]
    rollout = rollout_of(
        turn(record(None, 0, [1, 2], [3, 4, 5], version_spans=spans)),
        turn(record(0, 5, [6], [7], version=5)),
        turn(record(1, 7, [8], [9], version_spans=())),  # not known: as old as can be
    )

    def trained(oldest: int) -> list[int]:
        (row,) = rollout_rows(rollout, oldest_version=oldest)
        return [int(token) for token in row.token_ids[row.trained]]

    assert trained(-1) == trained(0) == [3, 4, 5, 7, 9]
    assert trained(1) == trained(2) == [3, 4, 5, 7]
    assert trained(4) == [5, 7]
    group = grouped(rollout)
    assert group_rows([group], "reinforce", oldest_version=6) == []


def test_versions_split_prefixes_by_the_token_at_which_they_change() -> None:
    """Answers of different lengths by the same weights still share; a change elsewhere parts."""
    ends = {"a": (1, 4), "b": (1, 3), "c": (2, 4)}  # first token of version 1, number of tokens
    rows = []
    for name, (change, num) in ends.items():
        spans = [
            VersionSpan(version=0, start=0, end=change),
            VersionSpan(version=1, start=change, end=num),
        ]
        made = record(None, 0, [1, 2], range(3, 3 + num), version_spans=spans)
        rows += rollout_rows(rollout_of(turn(made), episode_id=name), should_split_versions=True)
    assert [row.context for row in rows] == [(((0, 0), (1, 1)),)] * 2 + [(((0, 0), (1, 2)),)]
    (forest,) = pack(rows, max_tokens=100)
    assert forest.stats.num_tree == 6 + 6  # "b" is the beginning of "a", and "c" by itself


def test_the_two_masks_are_apart() -> None:
    for masks, trained, advantages in [
        (ErrorMasks(), [2, 4, 5], [1.0] * 6),
        (ErrorMasks(loss=FAILED), [2], [1.0] * 6),
        (ErrorMasks(advantage=FAILED), [2, 4, 5], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
        (ErrorMasks(loss=FAILED, advantage=FAILED), [2], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
    ]:
        first, second = rollout_rows(BRANCHED, advantage=1.0, masks=masks)
        assert np.flatnonzero(first.loss_mask).tolist() == trained
        assert first.advantages.tolist() == advantages
        assert np.flatnonzero(second.loss_mask).tolist() == [4, 5, 7]
        assert second.advantages.tolist() == [1.0] * 8


def test_masks_know_every_error_and_their_own_length_of_loops() -> None:
    cut = frozenset({TurnError.TRUNCATED})
    _, second = rollout_rows(BRANCHED, masks=ErrorMasks(loss=cut))
    assert np.flatnonzero(second.loss_mask).tolist() == [4, 5]
    calls = [("look", "{}")]
    loop = rollout_of(
        turn(record(None, 0, [1], [2]), calls=calls), turn(record(0, 2, [3], [4]), calls=calls)
    )
    for length, trained in [(2, [1]), (3, [1, 3])]:
        masks = ErrorMasks(loss=frozenset({TurnError.LOOP}), loop_length=length)
        (row,) = rollout_rows(loop, masks=masks)
        assert np.flatnonzero(row.loss_mask).tolist() == trained


def test_a_row_knows_its_log_probs_only_if_every_turn_does() -> None:
    first, second = rollout_rows(
        rollout_of(
            turn(record(None, 0, [1], [2], policy_logprobs=[])),
            turn(record(0, 2, [3], [4])),
            turn(record(None, 0, [5], [6])),
        )
    )
    assert first.policy_logprobs is None and first.loss_mask.tolist() == [False, True, False, True]
    assert second.policy_logprobs is not None and second.policy_logprobs.tolist() == [0.0, -0.6]


def test_a_turn_without_tokens_is_named() -> None:
    text = (
        "turn 1 of rollout 'e' has no tokens: policy 'oracle' records none."
        " `tokenize_rollout` makes some of its messages"
    )
    rollout = rollout_of(turn(record(None, 0, [1], [2])), turn(None), policy="oracle")
    with pytest.raises(ValueError) as caught:
        rollout_rows(rollout)
    assert str(caught.value) == text


@pytest.mark.parametrize("logprob", [-math.inf, 0.5])
def test_a_log_prob_that_no_sampled_token_has_is_told_with_its_rollout(logprob: float) -> None:
    second = record(0, 3, [3], [4, 5], policy_logprobs=[-0.1, logprob])
    rollout = rollout_of(turn(record(None, 0, [1], [2])), turn(second), episode_id="odd")
    with pytest.raises(ValueError, match=rf"rollout 'odd': policy_logprobs\[4\] is {logprob}, "):
        rollout_rows(rollout)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    """Draw trees of turns with errors; every sampled token is another."""
    records: list[TokenRecord] = []
    made, lengths, token = [], [], 10
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        whole = 0 if parent is None else lengths[parent]
        shared = draw(st.sampled_from([whole, whole, draw(st.integers(0, whole))]))
        prompt = [1] * draw(st.integers(0 if shared else 1, 3))
        completion = [token + i for i in range(draw(st.integers(1, 3)))]
        token += 3
        records.append(record(parent, shared, prompt, completion))
        lengths.append(shared + len(prompt) + len(completion))
        error = draw(st.sampled_from([None, ToolErrorKind.TIMEOUT, ToolErrorKind.BAD_JSON]))
        reason = draw(st.sampled_from(["stop", "length"]))
        made.append(turn(records[-1], error, finish_reason=reason))
    return rollout_of(*made)


ERRORS = st.frozensets(st.sampled_from(TurnError))


@pytest.mark.slow
@given(rollouts(), ERRORS, ERRORS)
def test_every_sampled_token_is_trained_once_unless_its_turn_is_masked(
    rollout: Rollout, loss: frozenset[TurnError], advantage: frozenset[TurnError]
) -> None:
    masks = ErrorMasks(loss=loss, advantage=advantage)
    wanted = {}
    for made, errors in zip(rollout.turns, turn_errors(rollout), strict=True):
        for token in () if errors & loss else made.tokens.completion_ids:
            wanted[token] = 0.0 if errors & advantage else 2.0
    found = {}
    for row in rollout_rows(rollout, advantage=2.0, masks=masks):
        for place in np.flatnonzero(row.loss_mask):
            token = int(row.token_ids[place])
            assert token not in found
            found[token] = float(row.advantages[place])
            assert row.policy_logprobs[place] == -token / 10
    assert found == wanted


def group_of(*rewards: float | None, start: int = 0, **more: object) -> RolloutGroup:
    numbered = enumerate(rewards)
    return grouped(*(short_rollout(f"e{start + i}", r, 3 + i, **more) for i, r in numbered))


def joined(*groups: RolloutGroup) -> RolloutGroup:
    return grouped(*(rollout for group in groups for rollout in group.rollouts))


def by_token(rows: list[Row]) -> dict[int, float]:
    """Return the advantage of each row's last token."""
    return {int(row.token_ids[-1]): round(float(row.advantages[-1]), 5) for row in rows}


def test_rollouts_have_the_advantages_of_their_group_and_invalid_ones_no_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = [group_of(1.0, None, 0.0, 0.5), group_of(3.0, 1.0, start=4)]
    rows = group_rows(groups, "dr_grpo")
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, t] for t in (3, 5, 6, 3, 4)]
    assert [row.advantages[-1] for row in rows] == [0.5, -0.5, 0.0, 1.0, -1.0]
    first, second = {row.group for row in rows[:3]}, {row.group for row in rows[3:]}
    assert len(first) == len(second) == 1 and first != second
    assert None not in first | second
    assert [record.getMessage() for record in caplog.records] == [
        "left out 1 rollouts whose reward is not valid"
    ]


def test_all_kinds_of_advantages() -> None:
    rewards = (1.0, 0.0, None, 0.0, 1.0, 0.5)  # deviations +-0.5 and 0, variance 1 / 4
    for kind, high in [("grpo", 1.0), ("dr_grpo", 0.5), ("rloo", 0.625)]:
        found = by_token(group_rows([group_of(*rewards)], kind))
        assert found == pytest.approx({3: high, 4: -high, 6: -high, 7: high, 8: 0.0}, abs=2e-5)
    assert by_token(group_rows([group_of(2.0, None)], "reinforce")) == {3: 2.0}


def test_a_valid_reward_counts_where_nothing_is_trained() -> None:
    """Of a prompt that was too long, and of a rollout whose turns are all masked."""
    good, bad = short_rollout("a", 1.0, 3), short_rollout("b", 0.0, 4)
    silent = rollout_of(reward=0.0, episode_id="c")
    masked = rollout_of(
        turn(record(None, 0, [1, 2], [5]), ToolErrorKind.TIMEOUT), reward=0.0, episode_id="d"
    )
    groups = [grouped(good, bad, silent, masked)]
    found = by_token(group_rows(groups, "dr_grpo", masks=ErrorMasks(loss=FAILED)))
    assert found == {3: 0.75, 4: -0.25}


def test_shaping_changes_valid_rewards_before_they_are_compared() -> None:
    def overlong(rollouts: object, rewards_G: Floats) -> Floats:
        """DAPO's: 0 up to 2 tokens, then down to -1 at 4."""
        assert isinstance(rollouts, list)
        lengths = [len(rollout.turns[0].tokens.completion_ids) for rollout in rollouts]
        return rewards_G - np.clip((np.array(lengths) - 2) / 2, 0, 1)

    group = grouped(
        short_rollout("a", 1.0, 3),
        short_rollout("b", None, 4, 4, 4, 4),
        short_rollout("c", 1.0, 5, 5, 5),
        short_rollout("d", 0.0, 6, 6, 6, 6, 6),
    )  # shaped to 1, 0.5 and -1: mean 1 / 6
    found = by_token(group_rows([group], "dr_grpo", shaping=overlong))
    assert found == pytest.approx({3: 5 / 6, 5: 1 / 3, 6: -7 / 6}, abs=1e-5)


def test_shaping_that_returns_no_rewards_is_refused(subtests: pytest.Subtests) -> None:
    groups = [group_of(None), group_of(1.0, None, 0.0, start=1)]
    for made, words in [
        (np.array([1.0]), r"made \[1.0\] of the rewards of group 1; .* each of its 2 valid"),
        (np.array([1.0, np.nan]), r"made \[1.0, nan\] of the rewards of group 1"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            group_rows(groups, "grpo", shaping=lambda rollouts, rewards_G, made=made: made)


def test_rollouts_that_were_cut_are_compared_and_not_trained_on() -> None:
    cut = short_rollout("b", 0.0, 4, status=RolloutStatus.TRUNCATED)
    group = grouped(short_rollout("a", 1.0, 3), cut, short_rollout("c", 0.5, 5))
    found = by_token(group_rows([group], "dr_grpo", masks=ErrorMasks(truncated_rollouts=True)))
    assert found == {3: 0.5, 5: 0.0}


def test_a_run_s_shaping_takes_the_reward_of_the_cut_and_punishes_length() -> None:
    cut = short_rollout("b", 1.0, 4, status=RolloutStatus.TRUNCATED)
    long = turn(record(None, 0, [1, 2], [5] * 4), num_completion_tokens=4)
    group = grouped(short_rollout("a", 1.0, 3), cut, rollout_of(long, reward=1.0, episode_id="c"))
    shaping = RewardShaping(max_tokens=5, buffer_tokens=4, factor=0.4, is_truncated_zero=True)
    assert by_token(group_rows([group], "reinforce", shaping=shaping)) == {3: 1.0, 4: 0.0, 5: 0.7}
    assert by_token(group_rows([group], "reinforce", shaping=RewardShaping())) == {3: 1, 4: 1, 5: 1}


def test_versions_and_masks_reach_the_rows() -> None:
    group = grouped(BRANCHED)
    rows = group_rows(
        [group], "reinforce", masks=ErrorMasks(advantage=FAILED), should_split_versions=True
    )
    assert [row.context for row in rows] == [(((7, 0),), ((8, 0),)), (((8, 0),), ((9, 0),))]
    assert rows[0].advantages.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_groups_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for groups, words in [
        ([], "there are no groups to make rows of"),
        ([group_of(1.0), grouped()], "group 1 has no rollouts"),
        (
            [joined(group_of(1.0), group_of(1.0, start=1, task_id="b"))],
            "group 0 .*: task_id of rollout 0 is 'train-000001', of rollout 1 'b'",
        ),
        ([joined(group_of(1.0), group_of(None, start=1, seat="x"))], "0 is 'player', of .* 1 'x'"),
        ([group_of(1.0), group_of(0.0)], r"rollout 'e0' \(seat 'player'\) occurs twice"),
        (
            [group_of(1.0), grouped(rollout_of(turn(None), policy="openai:x"))],
            "turn 0 of rollout 0 of group 1 has no tokens: policy 'openai:x'",
        ),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            group_rows(groups, "grpo")


def test_an_invalid_rollout_needs_no_tokens() -> None:
    failed = rollout_of(turn(None), reward=None, episode_id="f")
    group = grouped(*group_of(1.0, 0.0).rollouts, failed)
    assert by_token(group_rows([group], "dr_grpo")) == {3: 0.5, 4: -0.5}
    assert group_rows([grouped(failed)], "grpo") == []


def routes_of(num_tokens: int, start: int, add: int) -> bytes:
    """Return routes of one layer in which each token's expert is its place, plus a number."""
    places = np.arange(start, start + num_tokens) + add
    return write_routes(places[:, None, None])


def test_rows_have_the_experts_of_the_turns_that_ran_their_tokens() -> None:
    # Turn 2 forks off turn 1's prompt and tells nothing; turn 3 extends it.
    told = [
        turn(record(None, 0, [1, 2], [3], routes=routes_of(2, 0, 10))),
        turn(record(0, 3, [4], [5, 6], routes=routes_of(3, 2, 20))),
        turn(record(1, 3, [7], [8, 9])),
        turn(record(2, 6, [10], [11], routes=routes_of(2, 5, 200))),
    ]
    rollout = rollout_of(*told)
    first, second = group_rows([grouped(rollout)], "grpo")
    assert first.routes.experts_TLK[:, 0, 0].tolist() == [10, 11, 22, 23, 24, 0]
    assert first.routes.is_told_T.tolist() == [True] * 5 + [False]
    # The fork's first token was run by nobody who told; the token before it by turn 1.
    assert second.routes.is_told_T.tolist() == [True] * 3 + [False] * 2 + [True] * 2 + [False]
    told_of_second = second.routes.experts_TLK[second.routes.is_told_T, 0, 0]
    assert told_of_second.tolist() == [10, 11, 22, 205, 206]
    assert all(row.routes is None for row in rollout_rows(rollout))
    assert all(row.routes is None for row in supervised_rows([rollout]))
    untold = rollout_of(turn(record(None, 0, [1, 2], [3])))
    assert group_rows([grouped(untold)], "grpo")[0].routes is None


def test_experts_come_back_from_a_store_and_train(tmp_path: Path) -> None:
    made = []
    for name, reward, last in (("a", 1.0, 5), ("b", 0.0, 6)):
        experts = np.random.default_rng(last).permuted(np.tile(np.arange(4), (4, 2, 1)), axis=2)
        tokens = record(None, 0, [3, 4, 7], [8, last], routes=write_routes(experts[:, :, :2]))
        made.append(rollout_of(turn(tokens), reward=reward, episode_id=name))
    with RolloutStore.open(tmp_path) as store:
        for rollout in made:
            metadata = {"group_size": 2}
            record_rollout(store, rollout, group_id="g", metadata=metadata)
    trainer = Trainer(make("Mixtral"), "grpo", args={"learning_rate": 1e-3, "max_tokens": 50})
    metrics = trainer.step([grouped(*read_rollouts(tmp_path))])
    trainer.close()
    assert 0 < metrics["train/route_difference"] <= 1


def test_experts_come_back_from_json() -> None:
    routes = write_routes(np.ones((2, 1, 1), dtype=int))
    for told in (routes, b""):
        rollout = rollout_of(turn(record(None, 0, [1, 2], [3], routes=told)))
        data = json.loads(json.dumps(rollout.to_json()))
        assert ("routes" in data["turns"][0]["tokens"]) == bool(told)
        tokens = Rollout.from_json(data).turns[0].tokens
        assert tokens is not None and tokens.routes == told


def test_turns_of_different_models_are_refused() -> None:
    rollout = rollout_of(
        turn(record(None, 0, [1, 2], [3], routes=write_routes([[[0]], [[1]]]))),
        turn(record(0, 3, [], [4], routes=write_routes([[[0, 1]]]))),
    )
    with pytest.raises(ValueError, match="sampled from different models, of which one is trained"):
        rollout_rows(rollout, should_replay_routes=True)
