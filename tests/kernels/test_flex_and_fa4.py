"""FlexAttention and FlashAttention 4 get lists of tiles that are exactly the mask's."""

from __future__ import annotations

import itertools
import random
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from forests import AWKWARD, ends, random_end
from hypothesis import given
from hypothesis import strategies as st
from nightly import IS_NIGHT, some_of
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention import flex
from katgym_kernels.attention.fa4 import block_lists, block_sizes, fa4_problem
from katgym_kernels.attention.flex import block_mask, flex_problem, flex_tree_attention
from katgym_kernels.attention.reference import reference_attention

FORESTS = {
    **AWKWARD,
    "random": random_end(random.Random(0), 400, chain=0.9),
    "chain heavy": random_end(random.Random(1), 700, chain=0.995),
}


def test_flex_blocks_are_those_that_asking_every_pair_finds(subtests: pytest.Subtests) -> None:
    for name, end in FORESTS.items():
        with subtests.test(name):
            found = block_mask(TreePlan.build(end))
            num = len(end)
            wanted = create_block_mask(found.mask_mod, 1, 1, num, num, device="cpu", BLOCK_SIZE=128)
            assert torch.equal(found.to_dense(), wanted.to_dense())
            for kind in ("kv", "full_kv"):
                counts, others = (getattr(m, f"{kind}_num_blocks")[0, 0] for m in (found, wanted))
                lists, its = (getattr(m, f"{kind}_indices")[0, 0] for m in (found, wanted))
                assert torch.equal(counts, others), kind
                for row, count in enumerate(counts.tolist()):
                    assert set(lists[row, :count].tolist()) == set(its[row, :count].tolist())


def test_flex_computes_the_reference(subtests: pytest.Subtests) -> None:
    every = itertools.product([None, 9], [None, 2.0], [False, True], [0, 300])
    for window, softcap, has_sinks, above in some_of(every, 4):
        with subtests.test(window=window, softcap=softcap, has_sinks=has_sinks, above=above):
            plan = TreePlan.build(FORESTS["random"], window=window, num_above=above)
            rng = torch.Generator().manual_seed(0)
            q, k, v = (torch.randn(h, len(plan), 16, generator=rng) for h in (4, 2, 2))
            q = q[:, above:]
            sinks = torch.randn(4, generator=rng) if has_sinks else None
            wanted, found = (
                tree_attention(q, k, v, plan, backend=backend, softcap=softcap, sinks=sinks)
                for backend in ("reference", "flex")
            )
            assert float((found - wanted).norm() / wanted.norm()) <= 2e-6


def test_flex_has_no_gradient_on_the_cpu() -> None:
    q = torch.zeros(1, 2, 16, requires_grad=True)
    with pytest.raises(ValueError, match="'flex' has no backward on the CPU"):
        tree_attention(q, q, q, TreePlan.build([2, 2]), backend="flex")


# Dynamo warns of what it finds in PyTorch's own attention, and looks at `.grad` of what is no leaf.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_what_flex_compiles_for_a_gpu_has_the_gradients_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Traced for any length as on CUDA, forward and backward; the graphs then run eagerly."""
    compiled = torch.compile(flex_attention, dynamic=True, backend="aot_eager")
    monkeypatch.setattr(flex, "_run_eagerly", compiled)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)  # refuses a CPU's backward
    every = itertools.product([256, 64], [None, 40], [None, 2.0], [False, True])
    for size, window, softcap, has_sinks in every if IS_NIGHT else [(64, 40, 2.0, True)]:
        with subtests.test(window=window, softcap=softcap, has_sinks=has_sinks, size=size):
            torch.compiler.reset()  # a function has eight graphs at most
            plan = TreePlan.build(FORESTS["random"], window=window)
            rng = torch.Generator().manual_seed(0)
            leaves = [torch.randn(h, len(plan), size, generator=rng) for h in (4, 2, 2, 4)]
            *leaves, grad = [leaf.requires_grad_() for leaf in leaves]
            leaves += [torch.randn(4, generator=rng).requires_grad_()] * has_sinks
            played = []
            for run in (flex_tree_attention, reference):
                out = run(
                    *leaves[:3], plan, scale=size**-0.5, softcap=softcap,
                    sinks_H=leaves[3] if has_sinks else None,
                )  # fmt: skip
                played.append([out.detach(), *torch.autograd.grad(out, leaves, grad.detach())])
            for found, wanted in zip(*played, strict=True):
                assert float((found - wanted).norm() / wanted.norm()) <= 2e-6


def reference(*inputs: Any, **options: Any) -> Tensor:
    return reference_attention(*inputs, **options)[0]


def test_flex_says_which_head_sizes_it_has_on_a_gpu() -> None:
    found = [flex_problem(torch.device("cuda"), size, needs_grad=True) for size in (192, 256, 512)]
    assert found[:2] == [None, None]
    assert "head sizes up to 256 on CUDA, got 512; see 'triton'" in str(found[2])


def test_layers_share_one_block_mask_and_one_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TreePlan] = []

    def counted(plan: TreePlan) -> BlockMask:
        made.append(plan)
        return block_mask(plan)

    monkeypatch.setattr(flex, "block_mask", counted)
    plan = TreePlan.build([5, 3, 3, 5, 5])
    q = torch.randn(1, 5, 16)
    for _ in range(3):
        tree_attention(q, q, q, plan, backend="flex", softcap=4.0)
    cpu = torch.device("cpu")
    assert made == [plan] and flex._cap(4.0, cpu) is flex._cap(4.0, cpu)


def dense(counts: Tensor, lists: Tensor, num_columns: int) -> Tensor:
    """Return the tiles of FlashAttention's lists as a matrix, after a look at their form."""
    assert counts.dtype == lists.dtype == torch.int32
    assert counts.shape == lists.shape[:3] and lists.shape[:2] == (1, 1)
    assert lists.is_contiguous() and lists.shape[3] >= 1
    found = torch.zeros(counts.shape[2], num_columns, dtype=torch.bool)
    for row, (count, entries) in enumerate(zip(counts[0, 0], lists[0, 0], strict=True)):
        some = entries[:count].tolist()
        assert some == sorted(set(some))  # the last one holds the last token
        found[row, some] = True
    return found


def check_lists(plan: TreePlan, blocks: tuple[int, int]) -> None:
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
def test_lists_of_fa4_are_the_dense_masks_tiles(
    end: list[int], blocks: tuple[int, int], window: int | None, share: float
) -> None:
    check_lists(TreePlan.build(end, window=window, num_above=int(share * len(end))), blocks)


def test_lists_of_awkward_forests(subtests: pytest.Subtests) -> None:
    for name, end in AWKWARD.items():
        with subtests.test(name):
            check_lists(TreePlan.build(end), (16, 16))


def test_fa4_is_taken_by_name_alone_and_says_what_it_needs() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    tiles = {64: (128, 128), 128: (128, 128), 256: (128, 64)}  # that its own tiles divide
    assert {size: block_sizes(size, cpu) for size in tiles} == tiles
    plan = TreePlan.build([2, 2])
    q = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="'fa4' needs a CUDA device; the tensors are on cpu"):
        tree_attention(q, q, q, plan, backend="fa4")
    with pytest.raises(ValueError, match="'fa4' does not know softcap; these do: reference, flex"):
        tree_attention(q, q, q, plan, backend="fa4", softcap=2.0)
    assert "float16 and bfloat16, got torch.float32" in str(fa4_problem(cuda, torch.float32, 64))
    assert "(64, 96, 128, 256), got 80" in str(fa4_problem(cuda, torch.bfloat16, 80))
    if find_spec("flash_attn") is None:
        told = str(fa4_problem(cuda, torch.bfloat16, 64))
        assert "needs flash-attn-4. Hint: pip install 'katgym[flash-attn]'" in told
