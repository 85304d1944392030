"""Why models run tree attention of their own: what stock attention silently makes of a forest.

If transformers mends one of these, its test here fails, and the way around it can go.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_families import make
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from katgym_kernels import TreePlan
from katgym_trainer import PackedForest, Row, TreeContext, pack
from katgym_trainer.models.hugging_face import NAME, HuggingFaceModel
from katgym_trainer.plans.plans_ahead import plans_of

ROWS = [Row([5, 6, 7, 8, 9, 10], [0] * 5 + [1]), Row([5, 6, 7, 11, 12], [0] * 4 + [1])]


def forest() -> PackedForest:
    (found,) = pack(ROWS, max_tokens=100)
    assert found.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 3, 4]
    return found


def exact(model: Any) -> Tensor:
    """Return the logits of every packed token, from each row by itself."""
    first, second = (
        model(input_ids=torch.from_numpy(row.token_ids.copy())[None], use_cache=False).logits[0]
        for row in ROWS
    )
    return torch.cat([first, second[3:]]).detach()


def logits(model: Any, mask: Tensor | None = None) -> Tensor:
    """Return those of the packed tokens with depths as positions, as transformers runs them."""
    found = forest()
    out = model(
        input_ids=found.input_ids[None], position_ids=found.position_ids[None],
        attention_mask=mask, use_cache=False,
    )  # fmt: skip
    return out.logits[0].detach()


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().abs().max())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_stock_attention_reads_positions_of_a_tree_as_packed_sequences(attention: str) -> None:
    model = make("Qwen3", attn_implementation=attention)
    wanted = exact(model)
    assert error(logits(model), wanted) > 1e-3
    # The second branch sees its ancestors no more; the first row is as it was.
    assert error(logits(model)[:6], wanted[:6]) < 1e-5


def test_a_boolean_mask_is_added_to_scores_by_eager_attention() -> None:
    mask = TreePlan.build(forest().end).mask_QN()
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    model = make("Qwen3", attn_implementation="eager")
    wanted = exact(model)
    assert error(logits(model, mask[None, None]), wanted) > 1e-3
    assert error(logits(model, additive[None, None]), wanted) < 1e-5
    model.set_attn_implementation("sdpa")
    assert error(logits(model, mask[None, None]), wanted) < 1e-5


def test_an_attention_without_a_registered_mask_gets_none() -> None:
    seen = []

    def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **rest: Any) -> Any:
        seen.append(mask)
        return v.repeat_interleave(2, 1).transpose(1, 2), None

    AttentionInterface.register("katgym_test_unmasked", attention)
    model = make("Qwen3")
    model.set_attn_implementation("katgym_test_unmasked")
    model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False)
    assert seen == [None, None]  # not even a causal one


def test_ours_is_registered_twice_and_exact() -> None:
    assert NAME in AttentionInterface() and NAME in AttentionMaskInterface()
    model = make("Qwen3", attn_implementation="eager")
    wanted = exact(model)
    found, tree_model = forest(), HuggingFaceModel(model)
    context = TreeContext(plans_of(found, tree_model.device), backend="reference")
    with tree_model.prepare():
        hidden_ND = tree_model.hidden(found, context).detach()
    assert error(hidden_ND @ model.lm_head.weight.T, wanted) < 5e-6
