"""In bfloat16 a forest is as near to the float32 gradient as every row by itself is."""

from __future__ import annotations

import copy

import pytest
import torch
from row_by_row import total_loss
from tiny_families import gradients, make, row_outputs, sample_rows
from torch import Tensor

from katgym_trainer import forward_backward, loss, pack


def joined(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.float().flatten() for part in parts.values()])


@pytest.mark.parametrize("family", ["Qwen3", "Llama", "Gemma2"])
@pytest.mark.parametrize("name", ["sft", "grpo", "gspo"])
def test_a_forest_in_bfloat16_is_as_near_to_float32_as_rows_are(family: str, name: str) -> None:
    exact = make(family, attn_implementation="eager")
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16().float())
    half = copy.deepcopy(exact).bfloat16()
    rows = sample_rows(0) + sample_rows(10)
    total_loss(name, rows, lambda row: row_outputs(exact, row)).backward()
    oracle = joined(gradients(exact))
    total_loss(name, rows, lambda row: row_outputs(half, row)).backward()
    flat = float((joined(gradients(half)) - oracle).norm())
    forests = pack(rows, max_tokens=1000)
    in_parts = [forest.in_parts(11) for forest in forests]
    for each in (forests, in_parts):
        forward_backward(half, each, loss(name))
        found = joined(gradients(half))
        assert float((found - oracle).norm()) <= 1.25 * flat
