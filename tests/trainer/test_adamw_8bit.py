"""AdamW with 8-bit moments: it learns what AdamW learns, in a quarter of the state, and resumes.

pip install 'katgym[low-bit]' && python -m pytest tests/trainer/test_adamw_8bit.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_qwen import FAST, same, supervised, tiny_qwen, weights

from katgym_trainer import Row
from katgym_trainer.optimization.optimizers import make_optimizer
from katgym_trainer.saving.checkpoints import CheckpointError
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig

pytest.importorskip("torchao", reason="torchao is missing: pip install 'katgym[low-bit]'")

SIZES = {"hidden_size": 64, "intermediate_size": 128}
"""Of a model whose projections have 4,096 numbers and more."""
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "stochastic": {"dtype": "bfloat16", "rounding": "stochastic"},
    "lora": {"lora_rank": 64, "max_grad_norm": 0.1},
}


def rows_of(step: int) -> list[Row]:
    return [Row([3, 10 + i, 20 + step, 30 + i, 40 + i], [0, 0, 1, 1, 1]) for i in range(4)]


@pytest.mark.parametrize("kind", ["float32", "stochastic", "lora"])
def test_it_learns_what_adamw_learns(kind: str) -> None:
    args = {**FAST, "learning_rate": 3e-3, **KINDS[kind]}
    losses = {}
    for name in ("adamw", "adamw_8bit"):
        trainer = Trainer(tiny_qwen(**SIZES), "sft", args={**args, "optimizer": name})
        losses[name] = [trainer.step_rows(supervised())["train/loss"] for _ in range(25)]
        state = trainer._optimizer.state_dict()
        assert (torch.uint8 in {value.dtype for value in state.values()}) == (name == "adamw_8bit")
    assert losses["adamw"][0] == losses["adamw_8bit"][0] > 3.5
    assert losses["adamw"][-1] < losses["adamw"][0] - 1
    assert losses["adamw_8bit"] == pytest.approx(losses["adamw"], abs=0.1)


def test_moments_take_a_byte_each_and_their_scales() -> None:
    matrix = torch.zeros(64, 128, requires_grad=True)
    vector = torch.zeros(100, requires_grad=True)
    named = [("m", matrix), ("v", vector)]
    optimizer = make_optimizer(named, TrainerConfig(optimizer="adamw_8bit", learning_rate=0.01))
    matrix.grad, vector.grad = torch.ones(64, 128), torch.ones(100)
    optimizer.set_learning_rate(0.5)
    optimizer.step()
    state = optimizer.state_dict()
    assert {key: (value.dtype, *value.shape) for key, value in state.items()} == {
        "m.step": (torch.float32,), "v.step": (torch.float32,),
        "m.exp_avg_codes": (torch.uint8, 64, 128), "m.exp_avg_scale": (torch.float32, 32),
        "m.exp_avg_sq_codes": (torch.uint8, 64, 128), "m.exp_avg_sq_scale": (torch.float32, 32),
        "v.exp_avg": (torch.float32, 100), "v.exp_avg_sq": (torch.float32, 100),
    }  # fmt: skip
    # The first update is the learning rate's, whatever the gradient: it is computed in float32.
    assert matrix.unique().tolist() == pytest.approx([-0.5], rel=1e-6)
    assert vector.unique().tolist() == pytest.approx([-0.5], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_step_after_a_checkpoint_is_the_same(kind: str, tmp_path: Path) -> None:
    args = {**FAST, "weight_decay": 0.1, **KINDS[kind], "optimizer": "adamw_8bit"}
    trainer = Trainer(tiny_qwen(**SIZES), "sft", args=args)
    for step in range(2):
        trainer.step_rows(rows_of(step))
    trainer.save_checkpoint(tmp_path)
    trainer.step_rows(rows_of(2))
    other = Trainer(tiny_qwen(**SIZES), "sft", args=args)
    other.load_checkpoint(tmp_path)
    assert not same(weights(other.model), weights(trainer.model))
    other.step_rows(rows_of(2))
    assert same(weights(other.model), weights(trainer.model))
    assert same(other._optimizer.state_dict(), trainer._optimizer.state_dict())
    plain = Trainer(tiny_qwen(**SIZES), "sft", args={**args, "optimizer": "adamw"})
    with pytest.raises(CheckpointError, match="made with optimizer='adamw_8bit', this trainer has"):
        plain.load_checkpoint(tmp_path)


def test_codes_of_other_blocks_are_refused() -> None:
    parameter = torch.zeros(64, 64, requires_grad=True)
    optimizer = make_optimizer([("m", parameter)], TrainerConfig(optimizer="adamw_8bit"))
    parameter.grad = torch.ones(64, 64)
    optimizer.step()
    state = {**optimizer.state_dict(), "m.exp_avg_scale": torch.zeros(32)}
    with pytest.raises(ValueError, match=r"'m.exp_avg_scale' has shape \[32\], the parameter's is"):
        optimizer.load_state_dict(state)
