"""`katgym train sft`, then two steps of `katgym train rl`, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from katgym.cli.main import main

pytestmark = pytest.mark.proof

ENV = "katgym/Arithmetic-v1?level=1"
SFT = f"""
[model]
path = "new-model"
[data.oracle]
envs = ["{ENV}"]
num_tasks = 128
[train]
num_steps = 30
batch_rollouts = 16
optimizer = "muon"
learning_rate = 8e-3
"""
RL = f"""
[model]
path = "sft/model"
[[envs]]
id = "{ENV}"
[policy]
max_tokens = 64
max_context_tokens = 1024
[rollouts]
num_groups = 8
group_size = 8
max_turns = 3
[train]
num_steps = 2
learning_rate = 1e-3
"""


def test_a_new_model_imitates_and_is_then_reinforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sft.toml").write_text(SFT)
    Path("rl.toml").write_text(RL)
    assert main(["train", "new-model", "new-model", "--envs", ENV]) == 0
    assert main(["train", "sft", "sft.toml", "--out", "sft"]) == 0
    assert main(["train", "rl", "rl.toml", "--out", "rl"]) == 0
    losses = [line["train/loss"] for line in metrics("sft")]
    assert len(losses) == 30 and losses[-1] < losses[0] / 4  # 6.0 to below 1
    steps = metrics("rl")
    assert [(step["rollout/num_rollouts"], step["rollout/num_invalid"]) for step in steps] == [
        (64, 0), (64, 0)
    ]  # fmt: skip
    assert all(step["train/num_trained_tokens"] > 0 for step in steps)
    before, after = (load_file(f"{run}/model/model.safetensors") for run in ("sft", "rl"))
    assert any((before[name] != after[name]).any() for name in before)


def metrics(run: str) -> list[dict[str, float]]:
    """Return what a run told of its steps."""
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
