"""What a group's page has of its rollouts: parts that siblings share, and their lines."""

from __future__ import annotations

from katgym.run_view.trees.rollout_json import Parts


def test_equal_parts_are_there_once() -> None:
    parts = Parts(None)
    assert [parts.add(["a"]), parts.add(["b"], ["line"]), parts.add(["a"])] == [0, 1, 0]
    assert (parts.parts, parts.heads) == (['["a"]', '["b"]'], [None, ["line"]])


def test_a_part_has_its_line_whatever_use_of_it_comes_first() -> None:
    """A turn whose messages stand in lanes has none, and the last turn has no calls."""
    for uses in ([None, ["", 0, 0]], [["", 0, 0], None]):
        parts = Parts(None)
        assert [parts.add([], head) for head in uses] == [0, 0]
        assert parts.heads == [["", 0, 0]]
