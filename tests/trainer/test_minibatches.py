"""Rows in updates: groups stay whole, idle ones are left out, means stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer import Row, pack
from katgym_trainer.losses.objective import Normaliser
from katgym_trainer.losses.scope import Scope
from katgym_trainer.minibatches import busy_places, is_trained, share, split_groups


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(
    groups=st.lists(st.sampled_from(["a", "b", "c", "d", "e", None]), max_size=15),
    num_parts=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_parts_hold_every_row_once_and_groups_whole(
    groups: list[str | None], num_parts: int, seed: int
) -> None:
    rows = [Row([1, 2], [0, 1], group=group) for group in groups]
    parts = split_groups(rows, num_parts, rng=rng(seed))
    assert sorted(id(row) for part in parts for row in part) == sorted(map(id, rows))
    for group in {group for group in groups if group is not None}:
        assert sum(any(row.group == group for row in part) for part in parts) == 1
    num_groups = len({g for g in groups if g is not None}) + groups.count(None)
    assert len(parts) == min(num_parts, num_groups) and all(parts)
    again = split_groups(rows, num_parts, rng=rng(seed))
    assert [list(map(id, part)) for part in parts] == [list(map(id, part)) for part in again]


def test_rows_of_a_rollout_without_a_group_stay_together() -> None:
    rows = [Row([1, 2], [0, 1], rollout=name) for name in "xyxy"]
    parts = split_groups(rows, 2, rng=rng())
    assert sorted("".join(str(row.rollout) for row in part) for part in parts) == ["xx", "yy"]


def test_one_part_is_the_rows_in_order_without_a_draw() -> None:
    rows = [Row([1, 2], [0, 1], group=name) for name in "bab"]
    untouched = rng()
    (part,) = split_groups(rows, 1, rng=untouched)
    assert part == rows and untouched.random() == rng().random()


def test_idle_groups_are_those_without_an_advantage_on_a_trained_token() -> None:
    rows = [
        Row([1, 2, 3], [0, 1, 1], advantages=0.0, group="half"),
        Row([1, 2, 3], [0, 1, 1], advantages=1.0, group="half"),
        Row([1, 2, 3], [0, 1, 1], advantages=0.0, group="zero"),
        Row([1, 2, 3], [0, 0, 1], advantages=[9.0, 9.0, 0.0], group="elsewhere"),
        Row([1, 2, 3], [0, 1, 1], advantages=1.0, weight=0.0, group="weightless"),
        Row([1, 2, 3], [0, 1, 1], advantages=[0.0, 0.0, -1.0]),
    ]
    assert [rows[place].group for place in busy_places(rows)] == ["half", "half", None]
    assert busy_places([]) == []


def test_trained_means_a_token_with_weight() -> None:
    assert not is_trained([])
    assert not is_trained([Row([1, 2], [1, 0]), Row([1, 2], [0, 1], weight=0)])
    assert is_trained([Row([1, 2], [1, 0]), Row([1, 2], [0, 1], weight=0.1)])


@given(
    data=st.lists(
        st.tuples(
            st.integers(0, 4), st.lists(st.booleans(), min_size=1, max_size=5), st.integers(0, 3)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_shares_are_those_of_the_scope(data: list[tuple[int, list[bool], int]]) -> None:
    rows = [
        Row([1, *range(2, 2 + len(mask))], [False, *mask], weight=weight, rollout=rollout)
        for rollout, mask, weight in data
    ]
    some = [row for row in rows if row.rollout in (0, 1)]
    if not is_trained(some):
        return
    inside, whole = (Scope.of(pack(these, max_tokens=99)) for these in (some, rows))
    tokens = share(some, rows, Normaliser.TOKENS)
    assert tokens == pytest.approx(inside.weighted_tokens / whole.weighted_tokens)
    for normaliser in (Normaliser.ROLLOUTS, Normaliser.ROLLOUT_TOKENS):
        wanted = inside.rollout_weight / whole.rollout_weight
        assert share(some, rows, normaliser) == pytest.approx(wanted)
    assert share(rows, rows, Normaliser.ROLLOUTS) == 1


def test_a_normaliser_that_nobody_knows_is_refused() -> None:
    rows = [Row([1, 2], [0, 1])]
    with pytest.raises(ValueError, match="what normaliser 'pairs' counts"):
        share(rows, rows, "pairs")  # type: ignore[arg-type]
