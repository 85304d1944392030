"""A run that was stopped and taken up again is the run that was never stopped, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import TinyModel
from tiny_qwen import group_of_rows, same, tiny_qwen, weights

from katgym_trainer import Row
from katgym_trainer.saving.checkpoints import CheckpointError
from katgym_trainer.trainer import Trainer

ARGS: dict[str, Any] = {
    "learning_rate": 0.01, "weight_decay": 0.1, "schedule": "cosine", "num_steps": 9,
    "num_updates": 2, "max_tokens": 20,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw bfloat16": {"dtype": "bfloat16"},
    "adamw lora": {"lora_rank": 3},
    "adamw lora bfloat16": {"lora_rank": 3, "dtype": "bfloat16", "lora_targets": ["q_proj"]},
    "adamw stochastic": {"dtype": "bfloat16", "rounding": "stochastic"},
    "adamw stochastic lora": {"dtype": "bfloat16", "rounding": "stochastic", "lora_rank": 3},
    "muon": {"optimizer": "muon"},
    "muon stochastic": {"optimizer": "muon", "dtype": "bfloat16", "rounding": "stochastic"},
    "muon bfloat16": {"optimizer": "muon", "dtype": "bfloat16"},
    "muon lora": {"optimizer": "muon", "lora_rank": 3},
}


def rows_of(step: int) -> list[Row]:
    return [
        row
        for number in range(2)
        for row in group_of_rows([1.0, -1.0], name=f"g{number}", seed=10 * step + number)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_step_is_the_same(kind: str, tmp_path: Path) -> None:
    args = {**ARGS, **KINDS[kind]}
    trainer = Trainer(tiny_qwen(), "grpo", args=args)
    first = weights(trainer.model)
    for step in range(2):
        trainer.step_rows(rows_of(step))
    path = trainer.save_checkpoint(tmp_path, cursor={"next": 2})
    stopped = weights(trainer.model)
    metrics = trainer.step_rows(rows_of(2))
    assert path.name == "step-000002"

    other = Trainer(tiny_qwen(), "grpo", args=args)
    assert same(weights(other.model), first)
    torch.rand(3)  # another place in the global stream
    assert other.load_checkpoint(tmp_path) == {"next": 2}
    assert other.num_steps == 2 and same(weights(other.model), stopped)
    found = other.step_rows(rows_of(2))
    assert same(weights(other.model), weights(trainer.model))
    assert same(dict(other._masters.named()), dict(trainer._masters.named()))
    assert not same(weights(other.model), stopped)
    for name in ("train/loss", "train/grad_norm", "train/learning_rate"):
        assert found[name] == metrics[name]


@pytest.mark.slow
def test_a_new_process_goes_on_the_same(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "grpo", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1], [0, -2, -2], a, group=0) for a in (1.0, -0.5)]
    trainer.step_rows(rows)
    trainer.save_checkpoint(tmp_path)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tiny_model import TinyModel
from katgym_trainer import Row
from katgym_trainer.trainer import Trainer
trainer = Trainer(TinyModel(), "grpo", args={{"learning_rate": 0.1}})
trainer.load_checkpoint({str(tmp_path)!r})
rows = [Row([1, 2, 3], [0, 1, 1], [0, -2, -2], a, group=0) for a in (1.0, -0.5)]
trainer.step_rows(rows)
trainer.save_checkpoint({str(tmp_path)!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    trainer.step_rows(rows)
    wanted = weights(trainer.model)
    trainer.load_checkpoint(tmp_path / "step-000002")
    assert same(weights(trainer.model), wanted)


def test_random_numbers_go_on(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft")
    before = torch.get_rng_state()
    try:
        trainer.save_checkpoint(tmp_path)
        wanted = torch.rand(3)
        trainer.load_checkpoint(tmp_path)
        assert torch.equal(torch.rand(3), wanted)
    finally:
        torch.set_rng_state(before)


def test_damage_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft", args={"learning_rate": 0.1})
    rows = [Row([1, 2, 3], [0, 1, 1])]
    trainer.save_checkpoint(tmp_path)
    trainer.step_rows(rows)
    path = trainer.save_checkpoint(tmp_path)
    (path / "optimizer.safetensors").write_bytes(b"")
    trainer.step_rows(rows)
    before = weights(trainer.model)
    with pytest.raises(CheckpointError, match=r"'optimizer.safetensors' is not .*step-000000'$"):
        trainer.load_checkpoint(tmp_path)
    assert same(weights(trainer.model), before) and trainer.num_steps == 2
    trainer.load_checkpoint(tmp_path / "step-000000")
    assert trainer.num_steps == 0


@pytest.mark.parametrize(
    ("model", "args", "words"),
    [
        ({}, {"optimizer": "muon"}, "made with optimizer='adamw', this trainer has 'muon'"),
        ({}, {"dtype": "bfloat16"}, "made with dtype='float32', this trainer has 'bfloat16'"),
        ({"lora": 1}, {}, "made with lora_rank=0, this trainer has 2"),
        ({"num_hidden_layers": 1}, {}, r"the checkpoint alone has 'model.layers.1.input_layernorm"),
        ({"intermediate_size": 32}, {}, r"'model.layers.0.mlp.gate_proj.weight' has shape \[48, 3"),
    ],
)
def test_checkpoints_of_others_are_refused(
    model: dict[str, Any], args: dict[str, Any], words: str, tmp_path: Path
) -> None:
    Trainer(tiny_qwen(), "sft").save_checkpoint(tmp_path)
    if model.pop("lora", None):
        args = {"lora_rank": 2}
    other = Trainer(tiny_qwen(**model), "sft", args=args)
    before = weights(other.model)
    with pytest.raises(CheckpointError, match=words):
        other.load_checkpoint(tmp_path)
    assert same(weights(other.model), before)


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    Trainer(tiny_qwen(), "sft", args={"lora_rank": 2}).save_checkpoint(tmp_path)
    other = Trainer(tiny_qwen(seed=1), "sft", args={"lora_rank": 2})
    with pytest.raises(CheckpointError, match="the weights that are not trained differ"):
        other.load_checkpoint(tmp_path)


def test_settings_that_may_change_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Trainer(TinyModel(), "sft", args={"learning_rate": 0.1}).save_checkpoint(tmp_path)
    other = Trainer(TinyModel(), "reinforce", args={"learning_rate": 0.2})
    other.load_checkpoint(tmp_path)
    assert "was made with learning_rate=0.1; going on with 0.2" in caplog.text
    assert "was made with algorithm='sft'; going on with 'reinforce'" in caplog.text
    assert "max_tokens" not in caplog.text


def test_old_checkpoints_go(tmp_path: Path) -> None:
    trainer = Trainer(TinyModel(), "sft")
    for _ in range(4):
        trainer.step_rows([Row([1, 2], [0, 1])])
        trainer.save_checkpoint(tmp_path, max_checkpoints=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000004"]
