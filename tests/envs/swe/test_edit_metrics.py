"""Changed lines, distance from gold and locality of a patch; what an episode took back."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_envs.swe.edit_metrics import edit_distance, line_distance, locality, num_changed_lines
from katgym_envs.swe.revert_metrics import RevertTracker

BASE = b"""import math

def area(r):
    return math.pi * r

def width(r):
    return 2 * r

LIMIT = 3
"""
GOLD = BASE.replace(b"math.pi * r", b"math.pi * r * r")


def test_changed_lines_count_additions_and_deletions() -> None:
    assert num_changed_lines({"a": BASE}, {"a": GOLD}) == 2
    assert num_changed_lines({"a": b"1\n2\n"}, {"b": b"1\n"}) == 3
    assert num_changed_lines({"a": BASE}, {"a": BASE}) == 0


def test_edit_distance_is_0_for_gold_and_half_for_doing_nothing_to_a_replaced_line() -> None:
    assert edit_distance({"a": BASE}, {"a": GOLD}, {"a": GOLD}) == 0.0
    assert edit_distance({"a": BASE}, {"a": BASE}, {"a": GOLD}) == 0.5


def test_edit_distance_counts_what_was_done_elsewhere_and_needs_a_change_by_gold() -> None:
    final = GOLD + b"x = 1\ny = 2\n"
    assert edit_distance({"a": BASE}, {"a": final, "b": b"1\n2\n"}, {"a": GOLD}) == (2 + 2) / 2
    with pytest.raises(ValueError, match="gold does not differ"):
        edit_distance({"a": BASE}, {"a": BASE}, {"a": BASE})


def test_locality_is_the_share_inside_the_function_gold_changes() -> None:
    elsewhere = BASE.replace(b"2 * r", b"3 * r")
    both = elsewhere.replace(b"math.pi * r", b"math.tau * r")
    assert locality({"a": BASE}, {"a": GOLD}, {"a": GOLD}) == 1.0
    assert locality({"a": BASE}, {"a": elsewhere}, {"a": GOLD}) == 0.0
    assert locality({"a": BASE}, {"a": both}, {"a": GOLD}) == 0.5
    assert locality({"a": BASE}, {"a": BASE}, {"a": GOLD}) is None


def test_locality_outside_functions_and_where_nothing_parses_is_the_line_itself() -> None:
    gold = BASE.replace(b"LIMIT = 3", b"LIMIT = 4")
    final = BASE.replace(b"LIMIT = 3", b"LIMIT = 5").replace(b"import math", b"import math as m")
    assert locality({"a": BASE}, {"a": final}, {"a": gold}) == 0.5
    base, gold = b"a b\nc d\n", b"a b\nc e\n"
    assert locality({"t": base}, {"t": b"a x\nc x\n"}, {"t": gold}) == 0.5


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=9)


@given(lines, lines)
def test_line_distance_equals_the_textbook_recurrence(a: list[bytes], b: list[bytes]) -> None:
    @cache
    def textbook(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(
            textbook(i - 1, j) + 1,
            textbook(i, j - 1) + 1,
            textbook(i - 1, j - 1) + (a[i - 1] != b[j - 1]),
        )

    assert line_distance(a, b) == textbook(len(a), len(b))


EPISODE = {"a.py": b"x = 1\ny = 2\n"}


def tracked(*states: dict[str, bytes | None]) -> RevertTracker:
    """Return a tracker that saw these changes of the base state, one after another."""
    tracker = RevertTracker(base=EPISODE)
    for state in states:
        tracker.observe(state)
    return tracker


def test_an_edit_taken_back_is_half_of_all_changes_and_progress_is_none() -> None:
    edited: dict[str, bytes | None] = {"a.py": b"x = 5\ny = 2\n"}
    undone = tracked(edited, {})
    assert (undone.num_edits, undone.num_line_changes, undone.num_undone) == (2, 4, 2)
    assert (undone.churn, undone.is_null_final) == (0.5, True)
    further = tracked(edited, {"a.py": b"x = 5\ny = 6\n", "b.py": b"new\n"})
    assert (further.churn, further.is_null_final, further.num_edits) == (0.0, False, 2)
    idle = tracked({}, {})
    assert (idle.churn, idle.is_null_final, idle.num_edits) == (None, None, 0)


def test_a_deleted_file_that_comes_back_is_undone_and_its_lines_elsewhere_are_not() -> None:
    back = tracked({"a.py": None}, {"a.py": b"x = 1\n"})
    assert (back.num_line_changes, back.num_undone, back.is_null_final) == (3, 1, False)
    elsewhere = tracked({"a.py": b"y = 2\n"}, {"a.py": b"y = 2\n", "b.py": b"x = 1\n"})
    assert elsewhere.num_undone == 0


def test_blank_lines_count_as_no_change() -> None:
    tracker = tracked({"a.py": b"x = 1\n\n\ny = 2\n"})
    assert (tracker.num_line_changes, tracker.num_edits) == (0, 1)


def test_a_long_way_is_bounded_by_all_lines_replaced() -> None:
    old, new = [b"a%d" % i for i in range(510)], [b"b%d" % i for i in range(520)]
    assert line_distance(old[:90], new[:100]) == 100
    assert line_distance([*old, b"same", b"x"], [*new, b"same", b"y"]) == 522
