"""Which families of transformers replay given experts: seen where their experts run."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from katgym_trainer import Row, RowRoutes, forward_backward, loss, pack

SCRIPT = Path(__file__).parents[2] / "trainer/benchmarks/model_families.py"
REPLAY = [
    "afmoe", "axk1", "bailing_hybrid", "cohere2_moe", "deepseek_v2", "deepseek_v3", "dots1",
    "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "gpt_oss",
    "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "hy_v3", "jamba",
    "kimi_linear", "kolibri1", "laguna", "mellum", "mimo_v2_flash", "minimax", "minimax_m2",
    "mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next",
    "qwen4_exp_text", "solar_open",
]  # fmt: skip


@pytest.fixture(scope="module")
def families() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("family_makers", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    yield script


def routed(row: Row, layers: list[int]) -> Row:
    """Return a row with two of four experts for each token, the same after the same tokens."""
    experts = np.zeros((len(row), 2, 2), dtype=np.uint8)
    for t in range(len(row)):
        rng = np.random.default_rng(row.token_ids[: t + 1])
        for layer in layers:
            experts[t, layer] = rng.permutation(4)[:2]
    return row.replace(routes=RowRoutes(experts, np.ones(len(row), dtype=bool)))


@pytest.mark.parametrize("family", REPLAY)
def test_families_run_the_experts_that_they_are_given(family: str, families: ModuleType) -> None:
    model = families.make(family)
    seen: dict[int, Tensor] = {}
    layers = []
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts"):
            layer = int(re.search(r"\d+", name)[0])  # type: ignore[index]
            layers.append(layer)

            def see(_: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
                seen[layer] = next(x for x in given if not x.is_floating_point())

            module.register_forward_pre_hook(see, with_kwargs=True)
    (forest,) = pack([routed(row, layers) for row in families.sample_rows()], max_tokens=4096)
    metrics = forward_backward(model, [forest], loss("sft"))
    assert metrics["route_difference"] > 0.5
    assert forest.routes is not None and sorted(seen) == sorted(layers)
    for layer, experts in seen.items():
        assert torch.equal(experts.sort(-1).values, forest.routes[:, layer].long().sort(-1).values)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("phimoe", "in which PhimoeForCausalLM asks no torch.topk over 4 experts"),
        ("llama", "LlamaForCausalLM has no experts"),
    ],
)
def test_families_that_choose_otherwise_are_refused(
    family: str, words: str, families: ModuleType
) -> None:
    model = families.make(family)
    forests = pack([routed(row, [0, 1]) for row in families.sample_rows()], max_tokens=4096)
    with pytest.raises(ValueError, match=words):
        forward_backward(model, forests, loss("sft"))
