"""Which tiles are visited is exact, whatever the forest."""

from __future__ import annotations

import pytest
import torch
from forests import AWKWARD, ends
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym_kernels import TreePlan
from katgym_kernels.tiles import Tiles

BLOCKS = st.sampled_from([1, 2, 3, 4, 8, 16])


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


def check(plan: TreePlan, block_m: int, block_n: int) -> None:
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


@pytest.mark.slow
@given(end=ends(), block_m=BLOCKS, block_n=BLOCKS)
@settings(max_examples=400)
def test_rules_equal_brute_force(end: list[int], block_m: int, block_n: int) -> None:
    check(TreePlan.build(end), block_m, block_n)


@pytest.mark.slow
@given(end=ends(), block_m=BLOCKS, block_n=BLOCKS, window=st.integers(1, 20))
@settings(max_examples=500)
def test_with_a_window_nothing_visible_is_skipped_and_nothing_hidden_is_full(
    end: list[int], block_m: int, block_n: int, window: int
) -> None:
    check(TreePlan.build(end, window=window), block_m, block_n)


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_forests(name: str) -> None:
    check(TreePlan.build(AWKWARD[name]), 16, 8)


@given(end=ends(), block=BLOCKS)
@settings(max_examples=300)
def test_the_queries_of_a_key_tile_are_one_range(end: list[int], block: int) -> None:
    plan = TreePlan.build(end)
    tiles = plan.tiles(block, block)
    mask = plan.mask_QN()
    for k in range(len(tiles.max_end)):
        keys = slice(k * block, (k + 1) * block)
        queries = torch.nonzero(mask[:, keys].any(1))[:, 0]
        assert queries.tolist() == list(range(k * block, int(tiles.max_end[k])))


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


def test_a_tile_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="block_n is at least 1, got 0"):
        TreePlan.build([1]).tiles(4, 0)
