"""Rollouts to imitate, and pairs of a better and a worse one."""

from __future__ import annotations

import numpy as np
import pytest
from made_rollouts import record, rollout_of, short_rollout, turn

from katgym import Rollout, ToolErrorKind
from katgym_trainer import Row, pack
from katgym_trainer.rollouts.supervised_rows import preference_rows, supervised_rows
from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError

FAILED = frozenset({TurnError.FAILED_CALL})
GOOD, FAIR, BAD = (short_rollout(f"e{i}", r, 3 + i) for i, r in enumerate((1.0, 0.5, 0.0)))
BROKEN = rollout_of(turn(None), reward=None, episode_id="x")
FORKED = rollout_of(
    turn(record(None, 0, [1], [2])), turn(record(0, 1, [3], [4])), episode_id="y", policy="oracle"
)


def last_tokens(rows: list[Row]) -> list[int]:
    return [int(row.token_ids[-1]) for row in rows]


@pytest.mark.parametrize(
    ("min_reward", "kept"),
    [(None, [3, 4, 5]), (0.0, [3, 4, 5]), (0.5, [3, 4]), (0.6, [3]), (2.0, [])],
)
def test_valid_rollouts_that_reach_the_reward_are_kept(
    min_reward: float | None, kept: list[int]
) -> None:
    rows = supervised_rows([GOOD, FAIR, BAD, BROKEN], min_reward=min_reward)
    assert last_tokens(rows) == kept


def test_rollouts_that_are_not_kept_need_no_tokens() -> None:
    poor = rollout_of(turn(None), reward=0.0, episode_id="p")
    assert last_tokens(supervised_rows([poor, GOOD], min_reward=1.0)) == [3]
    with pytest.raises(ValueError, match="turn 0 of rollout 'p' has no tokens: policy 'hf:tiny'"):
        supervised_rows([poor, GOOD])


def test_what_was_sampled_under_a_constraint_is_not_imitated() -> None:
    held = turn(record(None, 0, [1], [2]), constraint="tool_choice:ab")
    mixed = rollout_of(held, turn(record(0, 2, [3], [4])))
    (row,) = supervised_rows([mixed, rollout_of(held, episode_id="h")])
    assert row.token_ids.tolist() == [1, 2, 3, 4]
    assert row.loss_mask.tolist() == [False, False, False, True]
    with pytest.raises(ValueError, match="the chosen side of pair 0 trains no token"):
        preference_rows(rollout_of(held, episode_id="h"), rollout_of(held), pair=0)


def test_turns_with_errors_are_context_and_rows_of_nothing_else_are_left_out() -> None:
    mixed = rollout_of(
        turn(record(None, 0, [1], [2]), ToolErrorKind.BAD_JSON), turn(record(0, 2, [3], [4]))
    )
    failed = rollout_of(turn(record(None, 0, [1], [2]), ToolErrorKind.TIMEOUT), episode_id="f")
    (row,) = supervised_rows([mixed, failed], masks=ErrorMasks(loss=FAILED))
    assert row.token_ids.tolist() == [1, 2, 3, 4]
    assert row.loss_mask.tolist() == [False, False, False, True]


def test_weights_are_of_policies_or_of_rollouts_and_of_all_their_rows() -> None:
    def found(weights: object) -> list[list[float]]:
        rows = supervised_rows([GOOD, FORKED], weights=weights)  # type: ignore[arg-type]  # two kinds
        return [row.weight.tolist() for row in rows]

    assert found(None) == [[1.0] * 3, [1.0] * 2, [1.0] * 3]
    by_name = {"hf:tiny": 0.5, "oracle": 2, "gone": 9.0}
    assert found(by_name) == [[0.5] * 3, [2.0] * 2, [2.0] * 3]

    def steps(rollout: Rollout) -> float:
        return float(rollout.num_turns)

    assert found(steps) == [[1.0] * 3, [2.0] * 2, [2.0] * 3]


@pytest.mark.parametrize(
    ("rollouts", "options", "words"),
    [
        ([GOOD, GOOD], {}, r"rollout 'e0' \(seat 'player'\) occurs twice; each counts once"),
        ([GOOD], {"min_reward": float("nan")}, "min_reward is a number or None, got nan"),
        (
            [GOOD],
            {"masks": ErrorMasks(advantage=FAILED)},
            r"masks.advantage is \['failed_call'\], and supervised rows",
        ),
        (
            [FORKED],
            {"weights": {"hf:tiny": 1.0, "a": 1.0}},
            r"weights has none for policy 'oracle'; it has \['a', 'hf:tiny'\]",
        ),
        (
            [GOOD],
            {"weights": lambda rollout: -1.0},
            r"weight of rollout 'e0' \(policy 'hf:tiny'\) is -1.0; allowed is 0 or more",
        ),
        ([GOOD], {"weights": {"hf:tiny": float("nan")}}, "is nan; allowed is 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(
    rollouts: list[Rollout], options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        supervised_rows(rollouts, **options)  # type: ignore[arg-type]  # that is what is tested


def test_a_pair_is_a_group_of_two_rollouts_with_signs() -> None:
    rows = preference_rows(FORKED, short_rollout("z", 0.0, 8, policy="hf:tiny"), pair="p1")
    assert last_tokens(rows) == [2, 4, 8]
    assert [row.advantages.tolist() for row in rows] == [[1.0] * 2, [1.0] * 3, [-1.0] * 3]
    assert {row.group for row in rows} == {"p1"}
    assert [row.rollout for row in rows] == [("y", "player"), ("y", "player"), ("z", "player")]
    (forest,) = pack(rows, max_tokens=100)
    assert len(set(forest.row_group.tolist())) == 1
    assert len(set(forest.row_rollout.tolist())) == 2
    assert sorted(forest.occ_advantage.tolist()) == [-1.0, 1.0, 1.0]


def test_rows_of_a_side_that_name_no_rollout_are_one() -> None:
    better = [
        Row([1, 2], [0, 1]),
        Row([1, 3], [0, 1], [0.0, -0.5], rollout="r"),
        Row([1, 4], [0, 0]),
    ]
    worse = Row([1, 5], [0, 1], weight=0.5, context="image")
    rows = preference_rows(better, worse, pair=3)
    assert last_tokens(rows) == [2, 3, 5]  # 4 is not trained
    assert [row.rollout for row in rows] == [(3, "chosen"), "r", (3, "rejected")]
    assert [float(row.advantages[0]) for row in rows] == [1.0, 1.0, -1.0]
    assert np.array_equal(rows[1].policy_logprobs, [0.0, -0.5])
    assert (rows[2].context, rows[2].weight.tolist()) == ("image", [0.5, 0.5])


@pytest.mark.parametrize(
    ("chosen", "rejected", "pair", "words"),
    [
        (GOOD, BAD, None, "pair is None, which is no name"),
        (GOOD, GOOD, 1, r"rollout \('e0', 'player'\) is both chosen and rejected in pair 1"),
        (GOOD, short_rollout("o", 0.0, 9, task_id="b"), 1, "a pair holds rollouts of different"),
        (GOOD, rollout_of(), 1, "the rejected side of pair 1 trains no token"),
        ([], GOOD, "q", "the chosen side of pair 'q' trains no token"),
        (Row([1, 2], [1, 0]), GOOD, 2, "the chosen side of pair 2 trains no token"),
    ],
)
def test_what_is_no_pair_is_refused(chosen: Row, rejected: Row, pair: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        preference_rows(chosen, rejected, pair=pair)  # type: ignore[arg-type]  # None is tested
