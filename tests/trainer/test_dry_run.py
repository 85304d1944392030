"""`katgym train ... --dry-run`: what a run would do, with nothing written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from tiny_qwen import tiny_qwen

from katgym.cli.main import main
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.dry_run.memory import ModelShape, policy_memory, trainer_memory
from katgym_trainer.trainer import Trainer
from katgym_trainer.trainer_config import TrainerConfig

GIB = 2**30
QWEN3 = ModelShape(
    parameters=600_000_000, layers=28, width=1024, heads=16, key_heads=8, head_size=128,
    mlp_width=3072, vocabulary=151_936,
)  # fmt: skip
SFT = """
kind = "sft"
[stage.data.oracle]
envs = ["katgym/Arithmetic-v1?level=1", "katgym/Arithmetic-v1?level=2"]
num_tasks = 5
[stage.train]
num_epochs = 2
batch_rollouts = 4
"""
RL = """
kind = "rl"
[[stage.envs]]
id = "katgym/Arithmetic-v1?level=1"
[stage.policy]
max_tokens = 16
max_context_tokens = 2048
[stage.rollouts]
num_groups = 3
group_size = 4
[stage.train]
num_steps = 5
[stage.evaluate]
every_steps = 2
num_tasks = 6
"""

RL_ALONE = RL.replace('kind = "rl"', "").replace("stage.", "")


def test_memory_of_adapters_is_what_the_guide_computes_by_hand() -> None:
    """P 0.6e9, rank 32, forests of 16,384 tokens: docs/guides/train-lora.md, first row."""
    config = TrainerConfig(
        dtype="bfloat16", lora_rank=32, max_tokens=16384, should_checkpoint_activations=True
    )
    assert QWEN3.adapter_parameters(32) == 28 * 32 * (4 * 1024 + 2 * 2048 + 2 * 1024 + 3 * 4096)
    found = {name: size / GIB for name, size in trainer_memory(QWEN3, config).items()}
    adapters = QWEN3.adapter_parameters(32) / GIB
    assert found["weights"] == pytest.approx(2 * 0.6e9 / GIB + 2 * adapters)
    assert found["gradients, masters, moments"] == pytest.approx(16 * adapters)
    assert found["forest of 16,384 tokens"] == pytest.approx(0.9 + 1.2, abs=0.1)
    assert found["blocks of logits"] == 0.5


def test_memory_of_weights_and_their_state_is_what_a_trainer_holds(
    subtests: pytest.Subtests,
) -> None:
    for dtype in ["float32", "bfloat16"]:
        with subtests.test(dtype=dtype):
            trainer = Trainer(tiny_qwen(), "sft", args={"dtype": dtype})
            trainer.rehearse()
            num = sum(parameter.numel() for parameter in trainer.model.parameters())
            told = trainer_memory(dataclasses.replace(QWEN3, parameters=num), trainer.config)
            size = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
            masters = sum(master.numel() * 4 for _, master in trainer._masters.named())
            masters -= num * 4 if dtype == "float32" else 0  # the weights themselves
            assert told["weights"] == size
            assert told["gradients, masters, moments"] == (4 + 8) * num + masters
            trainer.close()


def test_memory_of_a_policy_here_is_keys_and_values_and_a_copy() -> None:
    raw = {"model": {"path": "m"}, "envs": [{"id": "katgym/Arithmetic-v1"}]}
    rollouts = {"num_groups": 2, "group_size": 4, "max_staleness": 1}
    config = RlConfig.of({**raw, "rollouts": rollouts}, name="rl.toml")
    keys = 2 * 28 * 8 * 128 * 4 * 16 * 4096
    assert policy_memory(QWEN3, config) == {
        "keys and values of 16 rollouts": keys,
        "copy that plays": 4 * 600_000_000,
    }
    config = RlConfig.of({**raw, "policy": {"uri": "vllm"}}, name="rl.toml")
    assert policy_memory(QWEN3, config) == {}


def test_stages_are_told_and_nothing_is_written(
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "stages.toml"
    file.write_text(f'[model]\npath = "{tiny_folder}"\n[[stage]]{SFT}[[stage]]{RL}')
    assert main(["train", "rl", "stages.toml", "--dry-run", "--json"]) == 0
    sft, rl = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == [file]
    assert sft["title"].startswith("sft in runs/stages/01-sft (new)")
    assert sft["steps"] == [
        "6 steps of 4 rollouts, 3 an epoch, of at most 10 rollouts (those without reward are left"
        " out)"
    ]
    assert "of its tokens trained" in sft["prompt"]["title"]
    assert rl["steps"] == [
        "5 steps of 3 groups of 4: 60 rollouts of at most 2,048 tokens",
        "4 evaluations of 6 rollouts, before and every 2 steps",
    ]
    ids = rl["prompt"]["token_ids"]
    assert rl["prompt"]["text"] == byte_tokenizer().decode(ids)
    assert "calculator" in rl["prompt"]["text"]
    assert rl["device"] == "CPU" and rl["device_bytes"] > GIB
    assert "rollouts/: what was played" in rl["writes"]


def test_recorded_rollouts_are_counted_and_shown(
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    env = "katgym/Arithmetic-v1?level=1"
    assert main(["eval", env, "--policy", "oracle", "--tasks", "3", "--out", "run"]) == 0
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "sft.toml").write_text(
        f'[model]\npath = "{tiny_folder}"\n[data]\nteachers = ["run"]\n[train]\nnum_steps = 2\n'
    )
    capsys.readouterr()
    assert main(["train", "sft", "sft.toml", "--dry-run", "--out", "sft"]) == 0
    text = capsys.readouterr().out
    assert "estimated: 0." in text and "GiB: fits" in text
    assert "2 steps of 8 rollouts, 1 an epoch, of at most 3 rollouts" in text
    assert "first rollout of katgym/Arithmetic-v1, task L01-test-" in text
    after = [path for path in sorted(tmp_path.rglob("*")) if path.name != "sft.toml"]
    assert after == before


def test_a_card_is_one_of_the_known_and_goes_with_a_dry_run(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(f'[model]\npath = "{tiny_folder}"\n{RL_ALONE}')
    assert main(["train", "rl", str(file), "--card", "h100"]) == 2
    assert "--card h100" in capsys.readouterr().err
    assert main(["train", "rl", str(file), "--dry-run", "--card", "h10"]) == 2
    assert "'h100'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_on_a_card_is_predicted(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(f'[model]\npath = "{tiny_folder}"\n{RL_ALONE}')
    command = ["train", "rl", str(file), "--dry-run", "--card", "l40s", "--json"]
    assert main(command) == 0
    (told,) = json.loads(capsys.readouterr().out)
    prediction = told["prediction"]
    assert (prediction["card"], prediction["num_tokens"]) == ("NVIDIA L40S", 8192)
    assert prediction["fit"]["has_room"] and prediction["fit"]["launches"] > 100
    settings = ["--set", "train.lora_rank=4", "--set", "train.lora_targets=['nothing']"]
    assert main([*command, *settings]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["prediction"]["fit"] is None and "nothing" in told["prediction"]["reason"]
