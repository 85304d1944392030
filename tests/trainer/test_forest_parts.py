"""Forests cut into parts: every token once, no part beyond the budget, no more cuts than needed."""

from __future__ import annotations

import itertools

import pytest
import torch
from drawn_batches import paths, row_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym_kernels import TreePlan
from katgym_trainer import PackedForest, Row, pack
from katgym_trainer.gradients.split_backward import depth_first


def owners(forest: PackedForest) -> list[list[int]]:
    """Return each part's tokens as places in the forest, by spelling their paths."""
    tokens, seen = forest.input_ids.tolist(), paths(forest)
    place = {tuple(tokens[j] for j in path): i for i, path in enumerate(seen)}
    spelled: list[list[tuple[int, ...]]] = []
    for part in forest.parts:
        above = [
            spelled[number][token][-1]
            for number, token in zip(part.path_part.tolist(), part.path_token.tolist(), strict=True)
        ]
        ids, end = part.input_ids.tolist(), part.end.tolist()
        spelled.append(
            [(*above, *(ids[j] for j in range(i + 1) if i < end[j])) for i in range(len(ids))]
        )
    return [[place[path] for path in part] for part in spelled]


@given(rows=row_lists(), budget=st.integers(1, 12))
def test_parts_hold_every_token_and_edge_once_within_the_budget(
    rows: list[Row], budget: int
) -> None:
    (whole,) = pack(rows, max_tokens=1000)
    forest = whole.in_parts(budget)
    held = owners(forest)
    assert sorted(itertools.chain.from_iterable(held)) == list(range(len(whole.input_ids)))
    depth = whole.position_ids.tolist()
    edges = []
    for number, (part, tokens) in enumerate(zip(forest.parts, held, strict=True)):
        assert 1 <= len(tokens) <= budget
        assert part.position_ids.tolist() == [depth[token] for token in tokens]
        above = torch.arange(len(part.path_part))
        end = torch.cat([torch.full_like(above, len(above) + len(tokens)), part.end + len(above)])
        depths = torch.cat([above, part.position_ids])
        TreePlan.build(end, depth_N=depths)  # raises for what is no forest
        assert all(child > number for child in part.children)
        for edge, pred, target in zip(part.edges, part.edge_pred, part.edge_target, strict=True):
            assert tokens[pred] == whole.edge_pred[edge] and target == whole.edge_target[edge]
        edges += part.edges.tolist()
    assert sorted(edges) == list(range(whole.stats.num_edges))


@given(rows=row_lists(max_rows=3), budget=st.integers(1, 6))
@settings(max_examples=60)
def test_there_are_no_more_parts_than_any_cutting_needs(rows: list[Row], budget: int) -> None:
    """Against all ways to cut edges of the tree such that no piece is beyond the budget."""
    rows = [Row([9, *row.token_ids[:5]], [0, *row.loss_mask[:5]]) for row in rows]
    (whole,) = pack(rows, max_tokens=1000)
    parents = [path[-2] if len(path) > 1 else -1 for path in paths(whole)]
    num = len(parents)
    if num > 13:
        return
    fewest = num
    for cut in itertools.product((False, True), repeat=num - 1):
        piece = list(range(num))
        sizes = [0] * num
        for token in range(num):
            if token and not cut[token - 1]:
                piece[token] = piece[parents[token]]
            sizes[piece[token]] += 1
        if max(sizes) <= budget:
            fewest = min(fewest, 1 + sum(cut))
    assert len(whole.in_parts(budget).parts) <= fewest


def test_one_small_forest_in_parts_field_by_field() -> None:
    rows = [Row([7, 8, 9, 1, 2], [0, 0, 0, 0, 1]), Row([7, 8, 5, 6], [0, 1, 0, 1])]
    (forest,) = pack(rows, max_tokens=100)
    assert forest.input_ids.tolist() == [7, 8, 5, 6, 9, 1, 2]
    top, left, right = forest.in_parts(3).parts
    assert top.input_ids.tolist() == [7] and top.children == (1,)
    assert left.input_ids.tolist() == [8, 5, 6] and left.path_token.tolist() == [0]
    assert left.children == (2,) and left.path_part.tolist() == [0]
    assert right.input_ids.tolist() == [9, 1, 2] and right.end.tolist() == [3, 3, 3]
    assert right.path_part.tolist() == [0, 1] and right.path_token.tolist() == [0, 0]
    assert right.position_ids.tolist() == [2, 3, 4]
    assert [part.edge_target.tolist() for part in (top, left, right)] == [[8], [6], [2]]
    assert list(depth_first(forest.in_parts(3).parts)) == [
        (0, True), (1, True), (2, False), (1, False), (0, False),
    ]  # fmt: skip


def test_pieces_that_hang_off_one_token_are_put_together() -> None:
    rows = [Row([1, 2, 3, 4, i], [0, 0, 0, 0, 1]) for i in range(10, 19)]
    (forest,) = pack(rows, max_tokens=100)
    parts = forest.in_parts(4).parts
    assert [part.input_ids.tolist() for part in parts] == [
        [1, 2, 3], [4, 10, 11, 12], [13, 14, 15, 16], [17, 18],
    ]  # fmt: skip
    assert parts[1].children == (2, 3)


def test_a_budget_of_nothing_is_refused() -> None:
    (forest,) = pack([Row([1, 2], [0, 1])], max_tokens=9)
    with pytest.raises(ValueError, match="max_tokens is an int >= 1, got 0"):
        forest.in_parts(0)
