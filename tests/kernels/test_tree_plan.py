"""A plan knows who sees whom and which tiles hold that, and refuses what is no forest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from forests import AWKWARD, ends, parents_of, visible_pairs
from hypothesis import given
from hypothesis import strategies as st

from katgym_kernels import TreePlan
from katgym_kernels.tiles import Tiles
from katgym_kernels.tree_plan import parents

BLOCKS = st.sampled_from([1, 2, 3, 4, 8, 16])


def pairs_of(plan: TreePlan) -> set[tuple[int, int]]:
    return {(int(i), int(j)) for i, j in torch.nonzero(plan.mask_QN())}


@given(end=ends(), window=st.none() | st.integers(1, 9))
def test_mask_depth_parents_pairs_and_segments_are_those_of_a_walk(
    end: list[int], window: int | None
) -> None:
    plan = TreePlan.build(end, window=window)
    wanted = visible_pairs(end, window)
    assert pairs_of(plan) == wanted
    assert plan.num_pairs == len(wanted)
    parent = parents_of(end)
    assert parents(plan.host_end_N).tolist() == parent
    for i, p in enumerate(parent):
        assert plan.depth_N[i] == (0 if p < 0 else plan.depth_N[p] + 1)
    num_children = [parent.count(i) for i in range(len(end))]
    begins = [i for i, p in enumerate(parent) if p != i - 1 or p < 0 or num_children[p] > 1]
    assert plan.segment_starts.tolist() == [*begins, len(end)]


def test_a_plan_by_hand() -> None:
    plan = TreePlan.build([5, 3, 3, 5, 5])  # 0 -> (1 -> 2), (3 -> 4)
    assert plan.mask_QN().int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert plan.depth_N.tolist() == [0, 1, 2, 1, 2]
    assert plan.segment_starts.tolist() == [0, 1, 3, 5]
    assert plan.num_pairs == 11
    assert (plan.end_N.dtype, plan.depth_N.dtype) == (torch.int32, torch.int32)
    large = TreePlan.build(torch.full((200_000,), 200_000))  # nothing is of N^2 elements
    assert large.num_pairs == 200_000 * 200_001 // 2


def test_roots_may_start_anywhere_and_windows_are_measured_in_depth() -> None:
    plan = TreePlan.build([3, 2, 3, 4], depth_N=[7, 8, 8, 0], window=1)
    assert plan.mask_QN().equal(torch.eye(4, dtype=torch.bool))
    wider = TreePlan.build([4, 2, 4, 4], window=2)  # 0 -> 1, 0 -> 2 -> 3
    assert pairs_of(wider) == {(0, 0), (1, 1), (1, 0), (2, 2), (2, 0), (3, 3), (3, 2)}


def by_tile(plan: TreePlan, tiles: Tiles) -> dict[tuple[int, int], torch.Tensor]:
    """Return the mask's tiles, padded with what is never visible."""
    num = len(plan)
    rows, columns = (-(-num // block) * block for block in (tiles.block_m, tiles.block_n))
    padded = torch.zeros(rows, columns, dtype=torch.bool)
    padded[:num, :num] = plan.mask_QN()
    return {
        (q, k): padded[
            q * tiles.block_m : (q + 1) * tiles.block_m, k * tiles.block_n : (k + 1) * tiles.block_n
        ]
        for q in range(rows // tiles.block_m)
        for k in range(columns // tiles.block_n)
    }


def listed(offsets: torch.Tensor, keys: torch.Tensor) -> set[tuple[int, int]]:
    found = set()
    for q in range(len(offsets) - 1):
        chosen = keys[offsets[q] : offsets[q + 1]].tolist()
        assert chosen == sorted(set(chosen))
        found |= {(q, k) for k in chosen}
    return found


def check_tiles(plan: TreePlan, block_m: int, block_n: int) -> None:
    """With a window nothing visible is skipped and nothing hidden is full; else all is exact."""
    tiles = plan.tiles(block_m, block_n)
    full = listed(tiles.full_offsets, tiles.full_keys)
    partial = listed(tiles.partial_offsets, tiles.partial_keys)
    assert not full & partial
    for place, tile in by_tile(plan, tiles).items():
        if plan.window is None:
            assert (place in full) == bool(tile.all()), place
            assert (place in full | partial) == bool(tile.any()), place
        else:
            assert place not in full or tile.all(), place
            assert place in full | partial or not tile.any(), place
    if plan.window is None:  # the queries of a key tile are one range
        seen = plan.mask_QN()
        for k, stop in enumerate(tiles.max_end.tolist()):
            queries = torch.nonzero(seen[:, k * block_n : (k + 1) * block_n].any(1))[:, 0]
            assert queries.tolist() == list(range(k * block_n, stop))


@given(end=ends(), block_m=BLOCKS, block_n=BLOCKS, window=st.none() | st.integers(1, 20))
def test_tiles_are_those_of_the_mask(
    end: list[int], block_m: int, block_n: int, window: int | None
) -> None:
    check_tiles(TreePlan.build(end, window=window), block_m, block_n)


def test_awkward_forests(subtests: pytest.Subtests) -> None:
    for name, end in AWKWARD.items():
        with subtests.test(name):
            plan = TreePlan.build(torch.tensor(end))
            assert pairs_of(plan) == visible_pairs(end)
            check_tiles(plan, 16, 8)


def test_tiles_by_hand_and_their_efficiency() -> None:
    plan = TreePlan.build([8] * 8)
    tiles = plan.tiles(4, 2)
    assert tiles.full_offsets.tolist() == [0, 0, 2]
    assert tiles.full_keys.tolist() == [0, 1]
    assert tiles.partial_offsets.tolist() == [0, 2, 4]
    assert tiles.partial_keys.tolist() == [0, 1, 2, 3]
    assert tiles.num_visited == 6
    assert tiles.efficiency(plan.num_pairs) == 36 / 48
    assert plan.tiles(4, 2) is tiles
    with pytest.raises(ValueError, match="block_n is at least 1, got 0"):
        plan.tiles(4, 0)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "end_N has 1 to 2147483647 tokens, got 0"),
    ([[1]], {}, r"end_N has one dimension, got shape \(1, 1\)"),
    ([1.0], {}, "end_N holds integers, got torch.float32"),
    ([True], {}, "end_N holds integers, got torch.bool"),
    ([2, 1], {}, r"end_N\[1\] is 1, allowed is 2 to 2"),
    ([1, 4, 3], {}, r"end_N\[1\] is 4, allowed is 2 to 3"),
    ([2, 3, 3], {}, r"end_N\[1\] is 3, allowed is 2 to 2: token 1 lies below token 0, whose"),
    ([4, 3, 4, 4], {}, r"end_N\[2\] is 4, allowed is 3 to 3: token 2 lies below token 1"),
    ([2, 2], {"depth_N": [0]}, "depth_N has 1 tokens, end_N has 2"),
    ([2, 2], {"depth_N": [0, 2]}, r"depth_N\[1\] is 2, allowed is 1: its parent, token 0"),
    ([2, 2], {"depth_N": [-1, 0]}, r"depth_N\[0\] is -1, allowed is 0 to"),
    ([1], {"window": 0}, "window is an int >= 1 or None, got 0"),
    ([1], {"window": 1.5}, "window is an int >= 1 or None, got 1.5"),
    ([3, 3, 3], {"num_above": 3}, "num_above is an int, 0 to 2, got 3"),
    ([3, 3, 3], {"num_above": -1}, "num_above is an int, 0 to 2, got -1"),
    ([3, 3, 3], {"num_above": 1.5}, "num_above is an int, 0 to 2, got 1.5"),
]


def test_what_is_no_forest_is_refused(subtests: pytest.Subtests) -> None:
    for end, more, words in REFUSED:
        with subtests.test(words), pytest.raises(ValueError, match=words):
            TreePlan.build(end, **more)
