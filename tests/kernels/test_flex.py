"""FlexAttention gets exactly the blocks it would find itself, and computes the reference."""

from __future__ import annotations

import random

import pytest
import torch
from forests import AWKWARD, random_end
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention import flex
from katgym_kernels.attention.flex import block_mask

FORESTS = {
    **AWKWARD,
    "random": random_end(random.Random(0), 400, chain=0.9),
    "chain heavy": random_end(random.Random(1), 700, chain=0.995),
}


@pytest.mark.parametrize("name", FORESTS)
def test_blocks_are_those_that_asking_every_pair_finds(name: str) -> None:
    plan = TreePlan.build(FORESTS[name])
    found = block_mask(plan)
    num = len(plan)
    wanted = create_block_mask(found.mask_mod, 1, 1, num, num, device="cpu", BLOCK_SIZE=128)
    assert torch.equal(found.to_dense(), wanted.to_dense())
    for kind in ("kv", "full_kv"):
        counts, others = (getattr(m, f"{kind}_num_blocks")[0, 0] for m in (found, wanted))
        lists, other_lists = (getattr(m, f"{kind}_indices")[0, 0] for m in (found, wanted))
        assert torch.equal(counts, others), kind
        for row, count in enumerate(counts.tolist()):
            assert set(lists[row, :count].tolist()) == set(other_lists[row, :count].tolist())


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("above", [0, 300])
def test_forward_is_the_reference(
    window: int | None, softcap: float | None, has_sinks: bool, above: int
) -> None:
    plan = TreePlan.build(FORESTS["random"], window=window, num_above=above)
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(h, len(plan), 16, generator=rng) for h in (4, 2, 2))
    q = q[:, above:]
    sinks = torch.randn(4, generator=rng) if has_sinks else None
    options = {"softcap": softcap, "sinks": sinks}
    wanted = tree_attention(q, k, v, plan, backend="reference", **options)
    found = tree_attention(q, k, v, plan, backend="flex", **options)
    assert float((found - wanted).norm() / wanted.norm()) <= 2e-6


def test_a_gradient_on_the_cpu_is_refused() -> None:
    plan = TreePlan.build([2, 2])
    q = torch.zeros(1, 2, 16, requires_grad=True)
    with pytest.raises(ValueError, match="'flex' has no backward on the CPU"):
        tree_attention(q, q, q, plan, backend="flex")


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
    assert made == [plan] and flex._cap(4.0) is flex._cap(4.0)
