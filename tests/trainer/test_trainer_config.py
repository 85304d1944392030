"""Settings of the trainer: what is allowed, and the words for what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from katgym.errors import UnknownNameError
from katgym_trainer.algorithms import ALGORITHMS, resolve_algorithm
from katgym_trainer.losses import LOSSES
from katgym_trainer.trainer_config import TrainerConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rat": 1}, r"unknown trainer option 'learning_rat'\. Did you mean 'learning_"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"max_tokens": 8.5}, r"max_tokens is an int >= 1, got 8\.5"),
        ({"max_tokens": True}, "max_tokens is an int >= 1, got True"),
        ({"max_pairs": -1}, "max_pairs is an int >= 1, or None, got -1"),
        ({"temperature": 0}, "temperature is a number > 0, got 0"),
        ({"optimizer": "adam"}, "optimizer is one of 'adamw', 'adamw_8bit', 'muon', got 'adam'"),
        ({"learning_rate": "1e-6"}, "learning_rate is a number > 0, got '1e-6'"),
        ({"learning_rate": float("nan")}, "learning_rate is a number > 0, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate is a number > 0, got inf"),
        ({"weight_decay": -0.1}, r"weight_decay is a number >= 0, got -0\.1"),
        ({"beta2": 1.0}, r"beta2 is a number >= 0 and < 1, got 1\.0"),
        ({"final_fraction": 1.5}, r"final_fraction is a number from 0 to 1, got 1\.5"),
        ({"max_grad_norm": 0}, "max_grad_norm is a number > 0, or None, got 0"),
        ({"dtype": "float16"}, "dtype is one of 'float32', 'bfloat16', got 'float16'"),
        ({"lora_targets": "q_proj"}, "lora_targets is a list of names, or None, got 'q_proj'"),
        ({"lora_targets": []}, r"lora_targets is a list of names, or None, got \(\)"),
        ({"should_compile": 1}, "should_compile is True or False, got 1"),
        ({"loss": ["clip_low"]}, r"loss is a mapping of options by name, got \['clip_low'\]"),
        ({"backend": ""}, "backend is a name, got ''"),
        ({"schedule": "linear"}, "schedule 'linear' needs num_steps, got None"),
        (
            {"schedule": "cosine", "num_steps": 5, "num_warmup_steps": 5},
            r"num_steps is more than num_warmup_steps \(5\), got 5",
        ),
        ({"momentum": 0.9}, r"momentum=0\.9 changes nothing; it needs optimizer='muon'"),
        ({"rounding": "stochastic"}, r"rounding='stochastic' changes nothing; it needs dtype='bfl"),
        (
            {"should_offload_activations": True},
            "should_offload_activations=True changes nothing; it needs should_checkpoint_activati",
        ),
        (
            {
                "should_offload_activations": True,
                "should_checkpoint_activations": True,
                "should_compile": True,
            },
            "should_compile compiles layers with what they keep; choose one",
        ),
        ({"num_steps": 9}, "num_steps=9 changes nothing; it needs schedule='linear' or 'cosine'"),
        ({"final_fraction": 0.1}, r"final_fraction=0\.1 changes nothing"),
        ({"lora_alpha": 8}, "lora_alpha=8 changes nothing; it needs lora_rank >= 1"),
        ({"lora_targets": ["q_proj"]}, r"lora_targets=\('q_proj',\) changes nothing"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainerConfig.of(options)


def test_json_and_back_is_the_same() -> None:
    config = TrainerConfig(
        optimizer="muon", momentum=0.9, schedule="cosine", num_steps=10, num_warmup_steps=3,
        lora_rank=8, lora_targets=("q_proj",), loss={"clip_high": 0.3}, max_grad_norm=None,
    )  # fmt: skip
    assert TrainerConfig.of(json.loads(json.dumps(config.to_json()))) == config
    assert TrainerConfig.of({}) == TrainerConfig()


def test_options_of_the_loss_are_the_configs_own() -> None:
    options = {"clip_high": 0.3}
    config = TrainerConfig(loss=options)
    options["clip_high"] = 9.0
    assert config.loss == {"clip_high": 0.3}


def test_algorithms_name_losses_that_there_are() -> None:
    options = {"dr_grpo": {"max_completion_tokens": 8}}
    for name, algorithm in ALGORITHMS.items():
        config = TrainerConfig(loss=options.get(name, {}))
        found, loss = resolve_algorithm(name, config)
        assert found == algorithm and type(loss) is LOSSES[algorithm.loss]
        assert loss.has_other_terms == (name in ("sft", "dpo"))


def test_algorithms_take_another_advantage_and_options() -> None:
    found, loss = resolve_algorithm(
        "dapo", TrainerConfig(advantage="rloo", loss={"clip_high": 0.5})
    )
    assert found.advantage == "rloo" and getattr(loss, "clip_high") == 0.5  # noqa: B009 - a subclass's


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grop", {}, r"unknown algorithm 'grop'\. Did you mean 'grpo'"),
        ("sft", {"advantage": "grpo"}, "advantage='grpo' changes nothing; algorithm 'sft'"),
        ("grpo", {"advantage": "rlo"}, r"unknown advantage 'rlo'\. Did you mean 'rloo'"),
        ("sft", {"loss": {"clip_high": 1}}, "loss 'sft' has no option 'clip_high'"),
        ("grpo", {"loss": {"clip_hi": 1}}, r"no option 'clip_hi'\. Did you mean 'clip_high'"),
    ],
)
def test_algorithms_that_are_not_known(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resolve_algorithm(name, TrainerConfig.of(options))


def test_unknown_options_are_key_errors_as_well() -> None:
    with pytest.raises(UnknownNameError):
        TrainerConfig.of({"lr": 1})
