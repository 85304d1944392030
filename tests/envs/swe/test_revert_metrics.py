"""How much of an episode's changes were taken back."""

from __future__ import annotations

from katgym_envs.swe.revert_metrics import RevertTracker

BASE = {"a.py": b"x = 1\ny = 2\n"}


def test_an_edit_taken_back_is_half_of_all_changes() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({"a.py": b"x = 5\ny = 2\n"})
    tracker.observe({})
    assert (tracker.num_edits, tracker.num_line_changes, tracker.num_undone) == (2, 4, 2)
    assert tracker.churn == 0.5
    assert tracker.is_null_final is True


def test_straight_progress_has_no_churn() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({"a.py": b"x = 5\ny = 2\n"})
    tracker.observe({"a.py": b"x = 5\ny = 6\n", "b.py": b"new\n"})
    assert (tracker.churn, tracker.is_null_final, tracker.num_edits) == (0.0, False, 2)


def test_no_edit_has_neither_churn_nor_a_null_final() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({})
    tracker.observe({})
    assert (tracker.churn, tracker.is_null_final, tracker.num_edits) == (None, None, 0)


def test_a_deleted_file_that_comes_back_is_undone() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({"a.py": None})
    tracker.observe({"a.py": b"x = 1\n"})
    assert (tracker.num_line_changes, tracker.num_undone) == (3, 1)
    assert tracker.is_null_final is False


def test_the_same_line_in_another_file_undoes_nothing() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({"a.py": b"y = 2\n"})
    tracker.observe({"a.py": b"y = 2\n", "b.py": b"x = 1\n"})
    assert tracker.num_undone == 0


def test_blank_lines_count_as_no_change() -> None:
    tracker = RevertTracker(base=BASE)
    tracker.observe({"a.py": b"x = 1\n\n\ny = 2\n"})
    assert (tracker.num_line_changes, tracker.num_edits) == (0, 1)
