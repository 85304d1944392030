"""Families of transformers on packed forests: as exact as float32 lets them be, or refused.

Then in bfloat16: a forest is as near to the float32 gradient as every row by itself is.
At the end why models run tree attention of their own: what stock attention silently makes of a
forest. If transformers mends one of these, its test here fails, and the way around it can go.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from nightly import IS_NIGHT, some_of
from row_by_row import total_loss
from tiny_families import FAMILIES, gradients, make, row_logprobs, row_outputs, sample_rows
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from katgym_kernels import TreePlan
from katgym_trainer import (
    LOSSES,
    PackedForest,
    Row,
    TreeContext,
    forward_backward,
    loss,
    pack,
    trainer_logprobs,
)
from katgym_trainer.models.hugging_face import NAME, HuggingFaceModel
from katgym_trainer.plans.plans_ahead import plans_of

OPTIONS = {"dr_grpo": {"max_completion_tokens": 32}}


# By day, one of each kind of attention.
ALIKE = ["Qwen3", "Gemma2", "MiniCPM3", "Phi", "StableLm", "Mixtral", "GraniteMoe", "HrmText"]
IN_PARTS = [
    "Qwen2", "Qwen3Moe", "Nemotron", "Gemma2", "GptOss", "DeepseekV3", "MiMoV2Flash", "Llama4Text",
    "Falcon",
]  # fmt: skip


def check_logprobs(model: Any, rows: list[Row]) -> None:
    found = trainer_logprobs(model, pack(rows, max_tokens=50))
    for place, row in enumerate(rows):
        exact = row_logprobs(model, row).detach()[torch.tensor(row.loss_mask[1:].tolist())]
        assert float((found[place] - exact).abs().max()) <= 5e-6


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


def test_families_are_exact(subtests: pytest.Subtests) -> None:
    rows = sample_rows()
    for family in FAMILIES if IS_NIGHT else ALIKE:
        with subtests.test(family=family):
            model = make(family, attn_implementation="eager")
            check_logprobs(model, rows)
            for name in ("sft", "grpo"):
                check_exact(model, rows, name)
            assert model.config._attn_implementation == "eager"


def test_forests_in_parts_are_exact(subtests: pytest.Subtests) -> None:
    for family in IN_PARTS if IS_NIGHT else IN_PARTS[-5:]:
        with subtests.test(family=family):
            model = make(family, attn_implementation="eager")
            for name in ("sft", "gspo"):
                check_exact(model, sample_rows(), name, in_parts=11)


def test_losses_are_exact(subtests: pytest.Subtests) -> None:
    model, rows = make("Qwen3"), sample_rows(1)
    pairs = [  # of rows that know a reference
        row.replace(advantages=i % 2 * 2 - 1.0, group=i // 2, ref_logprobs=row.policy_logprobs)
        for i, row in enumerate(rows)
    ]
    for name in [name for name in LOSSES if name not in ("sft", "grpo")]:
        with subtests.test(name=name):
            options = OPTIONS.get(name, {})
            check_exact(model, pairs if name == "dpo" else rows, name, options=options)


def test_what_losses_may_add_is_exact(subtests: pytest.Subtests) -> None:
    model = make("Llama")
    rows = [
        row.replace(
            ref_logprobs=row.policy_logprobs * 1.1, proximal_logprobs=row.policy_logprobs * 0.95
        )
        for row in sample_rows(2)
        if row.policy_logprobs is not None
    ]
    for name, options in [
        ("grpo", {"kl_coef": 0.3, "entropy_coef": 0.1}),
        ("reinforce", {"importance": "sequence", "mismatch_mask": "geometric",
                       "mismatch_low": 0.5, "mismatch_high": 2.0}),
        ("ppo", {"ratio_to": "proximal", "importance": "token", "kl_coef": 0.1,
                 "kl_estimator": "k2", "is_kl_weighted": True}),
    ]:  # fmt: skip
        with subtests.test(name=name, options=options):
            check_exact(model, rows, name, options=options)
            check_exact(model, rows, name, options=options, in_parts=11)


def test_backends_are_exact(subtests: pytest.Subtests) -> None:
    model = make("Llama")
    for backend in ["reference", "sdpa", "cascade"]:
        with subtests.test(backend=backend):
            check_exact(model, sample_rows(2), "grpo", backend=backend)


def test_a_model_that_takes_a_view_of_attention_runs_on_backends_with_windows(
    subtests: pytest.Subtests,
) -> None:
    pytest.importorskip("triton", reason="needs triton")
    model = make("Afmoe", head_dim=16)
    for backend in ["reference", "sdpa", "triton"] if IS_NIGHT else ["reference", "triton"]:
        with subtests.test(backend=backend):
            check_exact(model, sample_rows(2), "grpo", backend=backend)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = make("Qwen3")
    model.activation_checkpointing_enable()
    check_exact(model, sample_rows(), "grpo")
    check_exact(model, sample_rows(), "grpo", in_parts=11)


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


def test_models_that_would_not_be_exact_are_refused(subtests: pytest.Subtests) -> None:
    for family, options, words in [
        ("Qwen3", {"attention_dropout": 0.1}, "Qwen3ForCausalLM has attention_dropout 0.1; set it"),
        ("SeedOss", {"residual_dropout": 0.1}, "SeedOssForCausalLM has residual_dropout 0.1; set"),
        ("Mixtral", {"router_jitter_noise": 0.1, "num_local_experts": 4}, "jitter_noise 0.1; set"),
        ("Phi", {"resid_pdrop": 0.1}, r"PhiForCausalLM has dropout 0.1 at 'model.layers.0"),
        ("Qwen3Moe", {"output_router_logits": True}, "asks for the router's loss"),
    ]:
        with subtests.test(family=family), pytest.raises(ValueError, match=words):
            forward_backward(
                make(family, **options), pack(sample_rows(), max_tokens=60), loss("sft")
            )


def test_what_is_no_model_of_transformers_is_refused() -> None:
    with pytest.raises(ValueError, match="not a model of transformers: Linear"):
        forward_backward(torch.nn.Linear(1, 1), pack(sample_rows(), max_tokens=60), loss("sft"))


def test_the_registered_attention_runs_on_forests_alone() -> None:
    import katgym_trainer.models.hugging_face  # noqa: F401 - registers it

    model = make("Qwen3")
    model.set_attn_implementation("katgym_tree")
    with pytest.raises(ValueError, match="runs on packed forests alone"):
        model(input_ids=torch.tensor([[3, 4]]))


def joined(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.float().flatten() for part in parts.values()])


EVERY = list(itertools.product(["Qwen3", "Llama", "Gemma2"], ["sft", "grpo", "gspo"]))
WIDER = [("Mamba2", "sft"), ("Llama4Text", "sft")]
"""Whose residual, or whose factor of the queries, is float32 in a model of bfloat16."""


@pytest.mark.parametrize(("family", "name"), [*some_of(EVERY, 3), *WIDER])
def test_a_forest_in_bfloat16_is_as_near_to_float32_as_rows_are(family: str, name: str) -> None:
    one_expert = {"num_local_experts": 1} if family == "Llama4Text" else {}  # none to flip
    exact = make(family, attn_implementation="eager", **one_expert)
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


def test_stock_attention_reads_positions_of_a_tree_as_packed_sequences() -> None:
    for attention in ["eager", "sdpa"]:
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
