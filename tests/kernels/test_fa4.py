"""What FlashAttention 4 is told of a forest: lists of tiles, which are the dense mask's."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from forests import AWKWARD, ends
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention.fa4 import block_lists, block_sizes, fa4_problem


def dense(counts: Tensor, lists: Tensor, num_columns: int) -> Tensor:
    """Return the tiles of lists as a boolean matrix, after a look at their form."""
    assert counts.dtype == lists.dtype == torch.int32
    assert counts.shape == lists.shape[:3] and lists.shape[:2] == (1, 1)
    assert lists.is_contiguous() and lists.shape[3] >= 1
    found = torch.zeros(counts.shape[2], num_columns, dtype=torch.bool)
    for row, (count, entries) in enumerate(zip(counts[0, 0], lists[0, 0], strict=True)):
        some = entries[:count].tolist()
        assert some == sorted(set(some))  # the last one holds the last token
        found[row, some] = True
    return found


def check(plan: TreePlan, blocks: tuple[int, int]) -> None:
    forward, backward = block_lists(plan, blocks)
    num = len(plan)
    num_q, num_k = -(-num // blocks[0]), -(-num // blocks[1])
    partial, full = dense(*forward[:2], num_k), dense(*forward[2:], num_k)
    assert torch.equal(dense(*backward[:2], num_q), partial.T)
    assert torch.equal(dense(*backward[2:], num_q), full.T)
    padded = torch.zeros(num_q * blocks[0], num_k * blocks[1], dtype=torch.bool)
    everyone = TreePlan.build(plan.host_end_N, depth_N=plan.host_depth_N, window=plan.window)
    padded[:num, :num] = everyone.mask_QN()
    tiles = padded.view(num_q, blocks[0], num_k, blocks[1]).transpose(1, 2).flatten(2)
    assert not (partial & full).any()
    assert tiles[full].all()  # the mask is not computed there, nor is the length looked at
    assert not tiles[~partial & ~full].any()
    if plan.window is None:
        assert torch.equal(partial | full, tiles.any(2))
        assert torch.equal(full, tiles.all(2))
    assert (partial | full).any(0).all() and (partial | full).any(1).all()  # no row without a tile


@given(
    end=ends(max_size=300),
    blocks=st.sampled_from([(16, 16), (32, 16), (16, 8), (128, 128), (256, 128), (128, 64)]),
    window=st.none() | st.integers(1, 40),
    share=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=60)
def test_lists_are_the_dense_masks_tiles(
    end: list[int], blocks: tuple[int, int], window: int | None, share: float
) -> None:
    check(TreePlan.build(end, window=window, num_above=int(share * len(end))), blocks)


@pytest.mark.parametrize("name", AWKWARD)
def test_lists_of_awkward_forests(name: str) -> None:
    check(TreePlan.build(AWKWARD[name]), (16, 16))


def test_tiles_are_those_it_can_divide() -> None:
    cpu = torch.device("cpu")
    assert [block_sizes(size, cpu) for size in (64, 128, 256)] == [
        (128, 128), (128, 128), (128, 64),
    ]  # fmt: skip


def test_it_is_taken_by_name_alone_and_says_what_it_needs() -> None:
    plan = TreePlan.build([2, 2])
    q = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="'fa4' needs a CUDA device; the tensors are on cpu"):
        tree_attention(q, q, q, plan, backend="fa4")
    with pytest.raises(ValueError, match="'fa4' does not know softcap; these do: reference, flex"):
        tree_attention(q, q, q, plan, backend="fa4", softcap=2.0)
    cuda = torch.device("cuda")
    for dtype, size, said in (
        (torch.float32, 64, "takes float16 and bfloat16, got torch.float32; see 'triton'"),
        (torch.bfloat16, 80, "has head sizes (64, 96, 128, 256), got 80"),
    ):
        assert said in str(fa4_problem(cuda, dtype, size))
    if find_spec("flash_attn") is None:
        said = "needs flash-attn-4. Hint: pip install 'katgym[flash-attn]'"
        assert said in str(fa4_problem(cuda, torch.bfloat16, 64))
