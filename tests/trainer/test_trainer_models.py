"""Models of the trainer: which it takes; widened, frozen, checkpointed and compiled ones."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import TinyModel
from tiny_qwen import FAST, group_of_rows, same, supervised, tiny_qwen, weights

from katgym_trainer import forward_backward, loss, pack
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.models.pretrained import checkpoint_activations
from katgym_trainer.ranks.ranks import Ranks
from katgym_trainer.trainer import Trainer


def test_what_cannot_be_trained_is_refused(subtests: pytest.Subtests) -> None:
    linear, frozen = torch.nn.Linear(1, 1), TinyModel().requires_grad_(False)
    own = TinyModel()  # a tree model, which brings its own
    for model, args, words in [
        (3, {}, r"a model to train is a torch.nn.Module, got int"),
        (linear, {}, "not a model of transformers: Linear"),
        (linear, {"lora_rank": 2}, "not a model of transformers: Linear"),
        (tiny_qwen(attention_dropout=0.1), {}, "Qwen3ForCausalLM has attention_dropout 0.1; set"),
        (frozen, {}, "there is no parameter to train"),
        (own, {"lora_rank": 4}, "lora_rank=4 is for models of transformers; TinyModel brings its"),
        (own, {"should_compile": True}, "should_compile=True is for models of transformers"),
        (own, {"should_checkpoint_activations": True}, "checkpoint_activations=True is for"),
        (own, {"dtype": "bfloat16"}, "'bfloat16', and TinyModel has no parameter of bfloat16"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            Trainer(model, "sft", args=args)
    with pytest.raises(ValueError, match=r"unknown algorithm 'gpro'\. Did you mean 'grpo'"):
        Trainer(TinyModel(), "gpro")


def test_a_model_that_comes_in_less_is_widened_and_buffers_stay() -> None:
    model = tiny_qwen().bfloat16()
    model.eval()
    trainer = Trainer(model, "sft", args=FAST)
    assert trainer.model is model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    lowered = tiny_qwen()
    frequencies = lowered.model.rotary_emb.inv_freq.clone()
    Trainer(lowered, "sft", args={**FAST, "dtype": "bfloat16"})
    assert torch.equal(lowered.model.rotary_emb.inv_freq, frequencies)
    trainer.step_rows(supervised())
    assert not model.training  # as it was


def test_frozen_parameters_stay() -> None:
    model = tiny_qwen()
    model.model.embed_tokens.weight.requires_grad_(False)
    before = weights(model)
    Trainer(model, "sft", args=FAST).step_rows(supervised())
    after = weights(model)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == after.keys() - {"model.embed_tokens.weight"}


def test_checkpointing_activations_changes_nothing() -> None:
    trainers = [
        Trainer(tiny_qwen(), "sft", args={**FAST, "should_checkpoint_activations": does})
        for does in (False, True)
    ]
    runs = []
    for trainer in trainers:
        calls: list[int] = []
        trainer.model.eval()
        trainer.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, c=calls: c.append(1))
        trainer.step_rows(supervised())
        runs.append(len(calls))
    assert runs == [1, 2]  # once more in the backward
    assert same(*(weights(trainer.model) for trainer in trainers))


# TODO(peft>0.21): drop when peft asks for `is_activation_checkpointing`.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_a_step_of_the_guide_to_adapters_is_that_of_rows(backend: str) -> None:
    """The file's own settings, but for float32 where Triton's interpreter has no bfloat16."""
    file = Path(__file__).parents[2] / "trainer/examples/lora.toml"
    raw = tomllib.loads(file.read_text())
    config = RlConfig.of(raw, name=file.name).trainer_config()
    assert config.should_checkpoint_activations and config.lora_rank and config.backend == "auto"
    rows = group_of_rows([1.0, -0.5, 0.25, -0.75])
    if backend == "triton":
        pytest.importorskip("triton", reason="needs triton")
        rows = rows[:2]  # the interpreter is slow
        config = dataclasses.replace(config, backend=backend, dtype="float32")
    plain = dataclasses.replace(
        config, backend="reference", should_checkpoint_activations=False,
        should_share_prefixes=False,
    )  # fmt: skip
    found = []
    for settings in (config, plain):
        trainer = Trainer(tiny_qwen(head_dim=16), raw["train"]["algorithm"], args=settings)
        metrics = trainer.step_rows(rows)
        found.append([metrics[name] for name in ("train/loss", "train/grad_norm")])
        assert metrics["train/num_updates"] == 1 and found[-1][1] > 0
    allowed = 1e-5 if config.dtype == "float32" else 2e-2
    assert found[0] == pytest.approx(found[1], rel=allowed, abs=1e-6)


def test_a_model_may_name_its_device_with_an_index_or_without() -> None:
    class Named(TinyModel):
        @property
        def device(self) -> torch.device:
            return torch.device("cpu:0")

    (whole,) = pack(supervised(), max_tokens=64)
    for forest in (whole, whole.in_parts(4)):
        found = []
        for make in (TinyModel, Named):
            model = make(vocabulary=60)
            forward_backward(model, [forest], loss("sft"))
            found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        assert same(*found) and found[0]


def test_inputs_of_layers_wait_on_the_cpu_and_change_nothing() -> None:
    found = []
    for should_offload in (False, True):
        model = tiny_qwen()
        checkpoint_activations(model, should_offload=should_offload)
        model.train()
        inputs: list[weakref.ref[torch.Tensor]] = []
        is_alive: list[bool] = []
        for layer in model.model.layers:
            layer.register_forward_pre_hook(
                lambda _, args, i=inputs: i.append(weakref.ref(args[0]))
            )
        model.model.norm.register_forward_pre_hook(
            lambda _, args, i=inputs, a=is_alive: a.extend(each() is not None for each in i)
        )
        forests = pack(supervised(), max_tokens=64)
        forward_backward(model, forests, loss("sft"))
        assert len(inputs) == 2
        # The decoder's own forward holds the first layer's input, which is the embeddings.
        assert is_alive == [True, not should_offload]
        found.append({name: p.grad for name, p in model.named_parameters()})
    assert same(*found)


def test_what_a_machine_or_several_ranks_do_not_take_is_refused_before_loading() -> None:
    offload = {"should_checkpoint_activations": True, "should_offload_activations": True}
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="spares a GPU's memory; there is no GPU here"):
            Trainer("no/such-model", "sft", args=offload)
    if find_spec("torchao") is None:
        with pytest.raises(
            ValueError, match=r"needs torchao. Hint: pip install 'katgym\[low-bit\]'"
        ):
            Trainer("no/such-model", "sft", args={"optimizer": "adamw_8bit"})
    for args, words in (
        ({"optimizer": "adamw_8bit"}, "optimizer='adamw_8bit' is for one process, here are 2"),
        ({"rounding": "stochastic", "dtype": "bfloat16"}, "ranks divide the float32 masters"),
    ):
        with pytest.raises(ValueError, match=words):
            Trainer("no/such-model", "sft", args=args, ranks=Ranks(0, 2))


@pytest.mark.slow
def test_weights_rounded_at_random_learn_what_masters_learn() -> None:
    found = {}
    for rounding in ("nearest", "stochastic"):
        args = {**FAST, "dtype": "bfloat16", "rounding": rounding, "learning_rate": 3e-3}
        trainer = Trainer(tiny_qwen(), "sft", args=args)
        losses = [trainer.step_rows(supervised())["train/loss"] for _ in range(40)]
        assert {p.dtype for p in trainer.model.parameters()} == {torch.bfloat16}
        found[rounding] = losses
    assert found["nearest"][0] == found["stochastic"][0] > 3.5
    assert found["nearest"][-1] < 0.7
    assert found["stochastic"] == pytest.approx(found["nearest"], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"should_checkpoint_activations": True, "lora_rank": 4}])
def test_compiled_layers_learn_the_same(more: dict[str, Any], tmp_path: Path) -> None:
    script = Path(__file__).with_name("compiled_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(more)],
        capture_output=True, text=True, check=False,
        env={**environment, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *steps, num_compiled = map(json.loads, done.stdout.splitlines())
    assert (len(steps), num_compiled) == (3, 2)
    for wanted, found in steps:
        assert found[0] == pytest.approx(wanted[0], rel=1e-4)
        assert found[1] == pytest.approx(wanted[1], rel=1e-3)
