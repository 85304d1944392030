"""What counts as an error of a turn."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rollouts import rollout_of, turn

from katgym import ToolErrorKind
from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError, turn_errors

FAILED, UNPARSABLE = TurnError.FAILED_CALL, TurnError.UNPARSABLE
LOOP, TRUNCATED = TurnError.LOOP, TurnError.TRUNCATED
LOOK = ("look", '{"at": "door", "far": true}')


@pytest.mark.parametrize(
    ("kind", "errors"),
    [
        (ToolErrorKind.UNKNOWN_TOOL, {FAILED, UNPARSABLE}),
        (ToolErrorKind.BAD_JSON, {FAILED, UNPARSABLE}),
        (ToolErrorKind.BAD_ARGUMENTS, {FAILED, UNPARSABLE}),
        (ToolErrorKind.MALFORMED, {FAILED, UNPARSABLE}),
        (ToolErrorKind.OVER_CAP, {FAILED, UNPARSABLE}),
        (ToolErrorKind.TIMEOUT, {FAILED}),
        (ToolErrorKind.TURN_TIMEOUT, {FAILED}),
        (ToolErrorKind.TOOL_ERROR, {FAILED}),
        (ToolErrorKind.EXCEPTION, {FAILED}),
    ],
)
def test_every_kind_of_tool_error(kind: ToolErrorKind, errors: set[TurnError]) -> None:
    assert turn_errors(rollout_of(turn(None, None, kind, None), turn(None, None))) == [
        errors,
        set(),
    ]


def test_every_kind_is_in_the_table_above() -> None:
    (mark,) = test_every_kind_of_tool_error.pytestmark  # type: ignore[attr-defined]  # parametrize adds it
    assert {kind for kind, _ in mark.args[1]} == set(ToolErrorKind)


def test_a_turn_may_have_several_errors_and_an_empty_rollout_has_none() -> None:
    cut = turn(None, ToolErrorKind.MALFORMED, finish_reason="length")
    assert turn_errors(rollout_of(cut, turn(None, finish_reason="tool_calls"))) == [
        {FAILED, UNPARSABLE, TRUNCATED},
        set(),
    ]
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "loop"}, "loss is a frozenset of failed_call, unparsable, loop, truncated; got"),
        ({"advantage": frozenset({"lop"})}, r"got frozenset\(\{'lop'\}\)"),
        ({"loop_length": 1}, "loop_length is an int >= 2, got 1"),
        ({"loop_length": 3.0}, "loop_length is an int >= 2, got 3.0"),
    ],
)
def test_masks_that_do_not_fit_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ErrorMasks(**options)  # type: ignore[arg-type]  # that is what is tested


def test_a_turn_whose_answer_is_missing_is_refused() -> None:
    rollout = rollout_of(turn(None), msgspec.structs.replace(turn(None), answer=None))
    with pytest.raises(ValueError, match="turn 1 of rollout 'e' has no answer in words"):
        turn_errors(rollout)
    with pytest.raises(ValueError, match="loop_length is an int >= 2, got 0"):
        turn_errors(rollout, loop_length=0)
