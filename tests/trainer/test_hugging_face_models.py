"""Families of transformers on packed forests: as exact as float32 lets them be, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from row_by_row import total_loss
from tiny_families import FAMILIES, gradients, make, row_logprobs, row_outputs, sample_rows

from katgym_trainer import LOSSES, Row, forward_backward, loss, pack, trainer_logprobs

OPTIONS = {"dr_grpo": {"max_completion_tokens": 32}}


def check_exact(
    model: Any,
    rows: list[Row],
    name: str,
    *,
    options: dict[str, Any] | None = None,
    in_parts: int = 0,
    backend: str = "auto",
    max_tokens: int = 60,
) -> None:
    wanted = total_loss(name, rows, lambda row: row_outputs(model, row), options)
    wanted.backward()
    oracle = gradients(model)
    forests = pack(rows, max_tokens=max_tokens)
    if in_parts:
        forests = [forest.in_parts(in_parts) for forest in forests]
        assert all(len(forest.parts) > 2 for forest in forests)
    assert sum(f.stats.num_tree for f in forests) < sum(map(len, rows))
    metrics = forward_backward(model, forests, loss(name, **(options or {})), backend=backend)
    assert metrics["loss"] == pytest.approx(float(wanted.detach()), rel=2e-5, abs=1e-7)
    found = gradients(model)
    assert found.keys() == oracle.keys()
    whole = float(torch.cat([g.flatten() for g in oracle.values()]).norm())
    error = float(torch.cat([(found[n] - g).flatten() for n, g in oracle.items()]).norm())
    assert error / whole <= 5e-6
    for parameter, gradient in oracle.items():
        # Of parameters with next to no gradient nothing but rounding is left.
        least = 1e-3 * whole
        off = float((found[parameter] - gradient).norm()) / max(float(gradient.norm()), least)
        assert off <= 2e-5, parameter


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_exact(family: str) -> None:
    model = make(family, attn_implementation="eager")
    rows = sample_rows()
    found = trainer_logprobs(model, pack(rows, max_tokens=50))
    for place, row in enumerate(rows):
        exact = row_logprobs(model, row).detach()[torch.tensor(row.loss_mask[1:].tolist())]
        assert float((found[place] - exact).abs().max()) <= 5e-6
    for name in ("sft", "grpo"):
        check_exact(model, rows, name)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("sft", "grpo")])
def test_losses_are_exact(name: str) -> None:
    rows = sample_rows(1)
    if name == "dpo":  # pairs, of rows that know a reference
        rows = [
            row.replace(
                advantages=1.0 if i % 2 else -1.0, group=i // 2, ref_logprobs=row.policy_logprobs
            )
            for i, row in enumerate(rows)
        ]
    check_exact(make("Qwen3"), rows, name, options=OPTIONS.get(name, {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"kl_coef": 0.3, "entropy_coef": 0.1}),
        ("reinforce", {"importance": "sequence", "mismatch_mask": "geometric",
                       "mismatch_low": 0.5, "mismatch_high": 2.0}),
        ("ppo", {"ratio_to": "proximal", "importance": "token", "kl_coef": 0.1,
                 "kl_estimator": "k2", "is_kl_weighted": True}),
    ],
)  # fmt: skip
def test_what_losses_may_add_is_exact(name: str, options: dict[str, Any]) -> None:
    rows = [
        row.replace(
            ref_logprobs=row.policy_logprobs * 1.1, proximal_logprobs=row.policy_logprobs * 0.95
        )
        for row in sample_rows(2)
        if row.policy_logprobs is not None
    ]
    check_exact(make("Llama"), rows, name, options=options)
    check_exact(make("Llama"), rows, name, options=options, in_parts=11)


def test_on_policy_the_ratio_is_one_whatever_the_forests() -> None:
    model = make("Qwen3")
    rows = sample_rows(3)
    own = trainer_logprobs(model, pack(rows, max_tokens=40))
    rows = [row.replace(policy_logprobs=row.spread(own[i])) for i, row in enumerate(rows)]
    for forests in (pack(rows, max_tokens=40), pack(rows, max_tokens=1000)):
        metrics = forward_backward(model, forests, loss("grpo"))
        assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6) and metrics["clip_fraction"] == 0
        assert metrics["policy_kl"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "cascade"])
def test_backends_are_exact(backend: str) -> None:
    check_exact(make("Llama"), sample_rows(2), "grpo", backend=backend)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = make("Qwen3")
    model.activation_checkpointing_enable()
    check_exact(model, sample_rows(), "grpo")
    check_exact(model, sample_rows(), "grpo", in_parts=11)


@pytest.mark.parametrize(
    "family",
    [
        "Qwen2",
        "Gemma2",
        "GptOss",
        "Qwen3Moe",
        "DeepseekV3",
        "MiMoV2Flash",
        "Llama4Text",
        "Falcon",
        "Nemotron",
    ],
)
def test_forests_in_parts_are_exact(family: str) -> None:
    model = make(family, attn_implementation="eager")
    for name in ("sft", "gspo"):
        check_exact(model, sample_rows(), name, in_parts=11)


# TODO(peft>0.21): drop when peft asks for `is_activation_checkpointing`.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_trained_and_nothing_else() -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], lora_dropout=0.0)
    torch.manual_seed(0)
    model = peft.get_peft_model(make("Qwen3"), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    check_exact(model, sample_rows(), "grpo")
    forward_backward(model, pack(sample_rows(), max_tokens=60), loss("sft"))
    assert all("lora" in name for name in gradients(model))


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("Qwen3", {"attention_dropout": 0.1}, "Qwen3ForCausalLM has attention_dropout 0.1; set it"),
        ("SeedOss", {"residual_dropout": 0.1}, "SeedOssForCausalLM has residual_dropout 0.1; set"),
        ("Mixtral", {"router_jitter_noise": 0.1, "num_local_experts": 4}, "jitter_noise 0.1; set"),
        ("Phi", {"resid_pdrop": 0.1}, r"PhiForCausalLM has dropout 0.1 at 'model.layers.0"),
        ("Qwen3Moe", {"output_router_logits": True}, "asks for the router's loss"),
    ],
)
def test_models_that_would_not_be_exact_are_refused(
    family: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        forward_backward(make(family, **options), pack(sample_rows(), max_tokens=60), loss("sft"))


def test_what_is_no_model_of_transformers_is_refused() -> None:
    with pytest.raises(ValueError, match="not a model of transformers: Linear"):
        forward_backward(torch.nn.Linear(1, 1), pack(sample_rows(), max_tokens=60), loss("sft"))


def test_the_registered_attention_runs_on_forests_alone() -> None:
    import katgym_trainer.models.hugging_face  # noqa: F401 - registers it

    model = make("Qwen3")
    model.set_attn_implementation("katgym_tree")
    with pytest.raises(ValueError, match="runs on packed forests alone"):
        model(input_ids=torch.tensor([[3, 4]]))
