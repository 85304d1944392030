"""Rollouts to imitate, and pairs of a better and a worse one.

At the end: what counts as an error of a turn.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import record, rollout_of, short_rollout, turn

from katgym import Rollout, ToolErrorKind
from katgym_trainer import Row, pack
from katgym_trainer.rollouts.supervised_rows import preference_rows, supervised_rows
from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError, turn_errors

FAILED = frozenset({TurnError.FAILED_CALL})
GOOD, FAIR, BAD = (short_rollout(f"e{i}", r, 3 + i) for i, r in enumerate((1.0, 0.5, 0.0)))
BROKEN = rollout_of(turn(None), reward=None, episode_id="x")
FORKED = rollout_of(
    turn(record(None, 0, [1], [2])), turn(record(0, 1, [3], [4])), episode_id="y", policy="oracle"
)


def last_tokens(rows: list[Row]) -> list[int]:
    return [int(row.token_ids[-1]) for row in rows]


def test_valid_rollouts_that_reach_the_reward_are_kept() -> None:
    wanted = {None: [3, 4, 5], 0.0: [3, 4, 5], 0.5: [3, 4], 0.6: [3], 2.0: []}
    found = {
        least: last_tokens(supervised_rows([GOOD, FAIR, BAD, BROKEN], min_reward=least))
        for least in wanted
    }
    assert found == wanted


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
        rows = supervised_rows([GOOD, FORKED], weights=weights)
        return [row.weight.tolist() for row in rows]

    assert found(None) == [[1.0] * 3, [1.0] * 2, [1.0] * 3]
    by_name = {"hf:tiny": 0.5, "oracle": 2, "gone": 9.0}
    assert found(by_name) == [[0.5] * 3, [2.0] * 2, [2.0] * 3]

    def steps(rollout: Rollout) -> float:
        return float(rollout.num_turns)

    assert found(steps) == [[1.0] * 3, [2.0] * 2, [2.0] * 3]


def test_what_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    nan = float("nan")
    for rollouts, options, words in [
        ([GOOD, GOOD], {}, r"rollout 'e0' \(seat 'player'\) occurs twice; each counts once"),
        ([GOOD], {"min_reward": nan}, "min_reward is a number or None, got nan"),
        ([GOOD], {"masks": ErrorMasks(advantage=FAILED)}, r"advantage is \['failed_call'\]"),
        ([FORKED], {"weights": {"hf:tiny": 1.0, "a": 1.0}}, r"'oracle'; it has \['a', 'hf:tiny'\]"),
        (
            [GOOD],
            {"weights": lambda rollout: -1.0},
            r"'e0' \(policy 'hf:tiny'\) is -1.0; allowed is",
        ),
        ([GOOD], {"weights": {"hf:tiny": nan}}, "is nan; allowed is 0 or more"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            supervised_rows(rollouts, **options)


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
    named = Row([1, 3], [0, 1], [0.0, -0.5], rollout="r")
    better = [Row([1, 2], [0, 1]), named, Row([1, 4], [0, 0])]
    worse = Row([1, 5], [0, 1], weight=0.5, context="image")
    rows = preference_rows(better, worse, pair=3)
    assert last_tokens(rows) == [2, 3, 5]  # 4 is not trained
    assert [row.rollout for row in rows] == [(3, "chosen"), "r", (3, "rejected")]
    assert [float(row.advantages[0]) for row in rows] == [1.0, 1.0, -1.0]
    assert np.array_equal(rows[1].policy_logprobs, [0.0, -0.5])
    assert (rows[2].context, rows[2].weight.tolist()) == ("image", [0.5, 0.5])


def test_what_is_no_pair_is_refused(subtests: pytest.Subtests) -> None:
    for chosen, rejected, pair, words in [
        (GOOD, BAD, None, "pair is None, which is no name"),
        (GOOD, GOOD, 1, r"rollout \('e0', 'player'\) is both chosen and rejected in pair 1"),
        (GOOD, short_rollout("o", 0.0, 9, task_id="b"), 1, "a pair holds rollouts of different"),
        (GOOD, rollout_of(), 1, "the rejected side of pair 1 trains no token"),
        ([], GOOD, "q", "the chosen side of pair 'q' trains no token"),
        (Row([1, 2], [1, 0]), GOOD, 2, "the chosen side of pair 2 trains no token"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            preference_rows(chosen, rejected, pair=pair)


FAILED_CALL, UNPARSABLE = TurnError.FAILED_CALL, TurnError.UNPARSABLE
LOOP, TRUNCATED = TurnError.LOOP, TurnError.TRUNCATED
LOOK = ("look", '{"at": "door", "far": true}')


def test_every_kind_of_tool_error() -> None:
    unparsable = {"UNKNOWN_TOOL", "BAD_JSON", "BAD_ARGUMENTS", "MALFORMED", "OVER_CAP"}
    failed = {"TIMEOUT", "TURN_TIMEOUT", "TOOL_ERROR", "EXCEPTION"}
    assert {kind.name for kind in ToolErrorKind} == unparsable | failed
    for kind in ToolErrorKind:
        wanted = {FAILED_CALL, UNPARSABLE} if kind.name in unparsable else {FAILED_CALL}
        found = turn_errors(rollout_of(turn(None, None, kind, None), turn(None, None)))
        assert found == [wanted, set()], kind


def test_a_turn_may_have_several_errors_and_an_empty_rollout_has_none() -> None:
    cut = turn(None, ToolErrorKind.MALFORMED, finish_reason="length")
    found = turn_errors(rollout_of(cut, turn(None, finish_reason="tool_calls")))
    assert found == [{FAILED_CALL, UNPARSABLE, TRUNCATED}, set()]
    assert turn_errors(rollout_of()) == []


def loops(*calls: list[tuple[str, str]], length: int = 3) -> list[bool]:
    rollout = rollout_of(*(turn(None, calls=made) for made in calls))
    found = turn_errors(rollout, loop_length=length)
    assert all(errors <= {LOOP} for errors in found)
    return [LOOP in errors for errors in found]


def test_the_third_of_equal_calls_in_a_row_is_a_loop_and_so_are_those_after() -> None:
    assert loops([LOOK], [LOOK], [LOOK], [LOOK]) == [False, False, True, True]
    assert loops([LOOK], [LOOK], [LOOK], length=2) == [False, True, True]
    assert loops([LOOK], [LOOK]) == [False, False]


def test_what_breaks_a_loop() -> None:
    other_name, other_arguments = ("see", LOOK[1]), ("look", '{"at": "door", "far": false}')
    for other in ([other_name], [other_arguments], [LOOK, LOOK], []):
        assert loops([LOOK], [LOOK], other, [LOOK], [LOOK]) == [False] * 5
    # Answers without a call are no loop, however many there are.
    assert loops([], [], [], []) == [False] * 4


def test_turns_of_several_calls_are_compared_as_a_whole() -> None:
    pair = [LOOK, ("go", "{}")]
    assert loops(pair, pair, pair) == [False, False, True]
    assert loops(pair, pair[::-1], pair) == [False] * 3


def test_arguments_are_compared_as_values_and_as_text_where_they_are_none() -> None:
    again = [("look", '{"far":true,  "at":"door"}')]
    assert loops([LOOK], again, [LOOK]) == [False, False, True]
    broken = [("look", '{"at": ')]
    deep = [("look", "[" * 100_000)]
    assert loops(broken, broken, broken, deep, deep, deep) == [False, False, True] * 2
    assert loops(broken, [("look", '{"at":')], broken) == [False] * 3


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(2, 5))
def test_loops_are_those_of_a_slow_search(names: list[str], length: int) -> None:
    wanted = [
        i + 1 >= length and len(set(names[i + 1 - length : i + 1])) == 1 for i in range(len(names))
    ]
    assert loops(*([(name, "{}")] for name in names), length=length) == wanted


def test_masks_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for options, words in [
        ({"loss": "loop"}, "loss is a frozenset of failed_call, unparsable, loop, truncated; got"),
        ({"advantage": frozenset({"lop"})}, r"got frozenset\(\{'lop'\}\)"),
        ({"loop_length": 1}, "loop_length is an int >= 2, got 1"),
        ({"loop_length": 3.0}, "loop_length is an int >= 2, got 3.0"),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=words):
            ErrorMasks(**options)


def test_a_turn_whose_answer_is_missing_is_refused() -> None:
    rollout = rollout_of(turn(None), msgspec.structs.replace(turn(None), answer=None))
    with pytest.raises(ValueError, match="turn 1 of rollout 'e' has no answer in words"):
        turn_errors(rollout)
    with pytest.raises(ValueError, match="loop_length is an int >= 2, got 0"):
        turn_errors(rollout, loop_length=0)
