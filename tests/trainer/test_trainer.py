"""Steps of the trainer: what they learn of rows and of groups, and what they say.

Not here: updates (`test_trainer_updates.py`), models (`test_trainer_models.py`).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from made_rollouts import even_rollout
from tiny_model import TinyModel
from tiny_qwen import FAST, group_of_rows, supervised, tiny_qwen, weights

from katgym import RolloutGroup
from katgym_trainer import Row, pack, trainer_logprobs
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.trainer_metrics import METRICS


def row_logprob(model: Any, row: Row) -> float:
    """Return the log-prob of a row's trained tokens."""
    return float(trainer_logprobs(model, pack([row], max_tokens=64))[0].sum())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sft_learns_rows_by_heart(optimizer: str, dtype: str) -> None:
    args = {**FAST, "optimizer": optimizer, "dtype": dtype}
    trainer = Trainer(tiny_qwen(), "sft", args=args)
    losses = [trainer.step_rows(supervised())["train/loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(math.log(60), abs=0.3)  # nothing is known at first
    assert losses[-1] < 0.1
    assert trainer.num_steps == 40
    assert {p.dtype for p in trainer.model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo"])
def test_rows_with_an_advantage_become_likely_and_others_unlikely(name: str) -> None:
    loss = {"max_completion_tokens": 6} if name == "dr_grpo" else {}
    trainer = Trainer(tiny_qwen(), name, args={**FAST, "learning_rate": 1e-3, "loss": loss})
    rows = group_of_rows([1.0, -1.0, 1.0, -1.0])
    own = trainer_logprobs(trainer.model, pack(rows, max_tokens=99))
    fresh = []
    for place, row in enumerate(rows):
        logprobs = torch.zeros(len(row), dtype=torch.float64)
        logprobs[torch.from_numpy(row.loss_mask.copy())] = own[place]
        fresh.append(row.replace(policy_logprobs=logprobs.tolist()))
    before = [row_logprob(trainer.model, row) for row in rows]
    for _ in range(3):
        trainer.step_rows(fresh)
    moved = [row_logprob(trainer.model, row) - before[i] for i, row in enumerate(rows)]
    assert [value > 0 for value in moved] == [True, False, True, False]
    assert min(map(abs, moved)) > 0.01


def test_metrics_are_those_of_the_table() -> None:
    trainer = Trainer(tiny_qwen(), "grpo", args={"learning_rate": 1e-4, "max_tokens": 12})
    rows = group_of_rows([1.0, -1.0]) + group_of_rows([0.0, 0.0], name="idle", seed=1)
    metrics = trainer.step_rows(rows)
    optional = (
        "importance",
        "mismatch",
        "ref_kl",
        "reverse_kl",
        "preference",
        "kept",
        "logprob_hit_rate",
        "rank_balance",
        "route_difference",
        "rollout/",
        "data/",
    )
    expected = {name for name in METRICS if not name.removeprefix("train/").startswith(optional)}
    assert metrics.keys() == expected
    num_flat = len(rows[0]) + len(rows[1])
    assert metrics["train/num_rows"] == 4 and metrics["train/num_idle_rows"] == 2
    assert metrics["train/num_flat_tokens"] == num_flat
    assert metrics["train/num_forests"] == 2 and metrics["train/num_tokens"] == num_flat
    assert metrics["train/num_trained_tokens"] == num_flat - 10
    assert metrics["train/learning_rate"] == 1e-4 and metrics["train/num_updates"] == 1
    assert metrics["train/is_skipped"] == 0 and metrics["train/num_nonfinite_updates"] == 0
    assert metrics["train/por"] == 0 and metrics["train/grad_norm"] > 0
    parts = ("time/pack_s", "time/forward_backward_s", "time/optimizer_s")
    assert 0 < sum(metrics[part] for part in parts) <= metrics["time/step_s"]


def test_steps_on_groups_want_an_algorithm_with_advantages() -> None:
    with pytest.raises(ValueError, match="algorithm 'sft' makes no advantages of rewards: give"):
        Trainer(TinyModel(), "sft").step([])


def test_steps_on_groups_are_steps_on_their_rows() -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": 0.5}
    answers = {"a": [5, 6], "b": [5, 7, 8], "c": [9]}
    group = RolloutGroup(rollouts=[even_rollout(n, rewards[n], answers[n]) for n in rewards])
    trainer, other = (Trainer(tiny_qwen(), "grpo", args=FAST) for _ in range(2))
    found = trainer.step([group])
    rows = [  # the rewards' mean is 0.5 and their deviation 0.5
        Row([3, 4, *answers[n]], [0, 0] + [1] * len(answers[n]), [0, 0] + [-4.0] * len(answers[n]),
            (rewards[n] - 0.5) / (0.5 + 1e-6), group="g", rollout=n)
        for n in rewards
    ]  # fmt: skip
    wanted = other.step_rows(rows)
    assert found["train/num_rows"] == 3 and found["train/num_tokens"] == 7
    assert found["train/loss"] == pytest.approx(wanted["train/loss"], rel=1e-5)
    assert found["train/grad_norm"] == pytest.approx(wanted["train/grad_norm"], rel=1e-5)


def test_rows_that_share_nothing_learn_the_same() -> None:
    args = {**FAST, "max_tokens": 24, "optimizer": "muon"}
    shared, whole = (
        Trainer(tiny_qwen(), "grpo", args={**args, "should_share_prefixes": does})
        for does in (True, False)
    )
    rows = group_of_rows([1.0, -1.0, 1.0, -1.0])
    metrics = [trainer.step_rows(rows) for trainer in (shared, whole)]
    num_flat = sum(map(len, rows))
    assert [line["train/num_flat_tokens"] for line in metrics] == [num_flat, num_flat]
    assert metrics[0]["train/num_tokens"] < num_flat == metrics[1]["train/num_tokens"]
    assert metrics[0]["train/loss"] == pytest.approx(metrics[1]["train/loss"], abs=1e-6)
    assert metrics[0]["train/grad_norm"] == pytest.approx(metrics[1]["train/grad_norm"], rel=1e-4)
    for name, value in weights(shared.model).items():
        torch.testing.assert_close(value, weights(whole.model)[name], rtol=0, atol=1e-4)


def test_config_objects_and_mappings_are_the_same() -> None:
    one = Trainer(TinyModel(), "sft", args=TrainerConfig(learning_rate=0.5))
    assert one.config == Trainer(TinyModel(), "sft", args={"learning_rate": 0.5}).config
    assert Trainer(TinyModel(), "sft").config == TrainerConfig()
