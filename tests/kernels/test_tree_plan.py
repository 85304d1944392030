"""A plan knows who sees whom, and refuses what is no forest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from forests import AWKWARD, ends, parents_of, visible_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym_kernels import TreePlan
from katgym_kernels.tree_plan import parents


def pairs_of(plan: TreePlan) -> set[tuple[int, int]]:
    return {(int(i), int(j)) for i, j in torch.nonzero(plan.mask_QN())}


@given(end=ends(), window=st.none() | st.integers(1, 9))
@settings(max_examples=300)
def test_mask_depth_parents_and_pairs_are_those_of_a_walk(
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


@given(end=ends())
@settings(max_examples=200)
def test_segments_are_the_runs_without_a_branch(end: list[int]) -> None:
    plan = TreePlan.build(end)
    starts = plan.segment_starts.tolist()
    assert starts[0] == 0 and starts[-1] == len(end)
    parent = parents_of(end)
    num_children = [parent.count(i) for i in range(len(end))]
    begins = [i for i, p in enumerate(parent) if p != i - 1 or p < 0 or num_children[p] > 1]
    assert starts[:-1] == begins


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


def test_roots_may_start_anywhere_and_windows_are_measured_in_depth() -> None:
    plan = TreePlan.build([3, 2, 3, 4], depth_N=[7, 8, 8, 0], window=1)
    assert plan.mask_QN().equal(torch.eye(4, dtype=torch.bool))
    wider = TreePlan.build([4, 2, 4, 4], window=2)  # 0 -> 1, 0 -> 2 -> 3
    assert pairs_of(wider) == {(0, 0), (1, 1), (1, 0), (2, 2), (2, 0), (3, 3), (3, 2)}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_forests(name: str) -> None:
    end = AWKWARD[name]
    assert pairs_of(TreePlan.build(torch.tensor(end))) == visible_pairs(end)


def test_a_large_forest_is_checked_in_no_time() -> None:
    plan = TreePlan.build(torch.full((200_000,), 200_000))
    assert plan.num_pairs == 200_000 * 200_001 // 2


@pytest.mark.parametrize(
    ("end", "more", "words"),
    [
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
    ],
)
def test_what_is_no_forest_is_refused(end: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TreePlan.build(end, **more)


@pytest.mark.parametrize("num", [3, -1, 1.5])
def test_something_is_asked_for(num: int) -> None:
    with pytest.raises(ValueError, match="num_above is an int, 0 to 2, got"):
        TreePlan.build([3, 3, 3], num_above=num)
