"""`katgym train sft` on a full disk; that of `rl` is in `rl/test_full_disk.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from small_disk import fill, small_disk
from tiny_qwen import tiny_qwen

from katgym.cli.main import main
from katgym.errors import DiskFullError
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.runs.train_run import TrainRun

CONFIG = """
[model]
path = "{model}"

[data.oracle]
envs = ["katgym/Arithmetic-v1?level=1"]
num_tasks = 10

[train]
num_steps = 5
batch_rollouts = 4
learning_rate = 1e-2
seed = 3

[checkpoint]
every_steps = 2
"""


class Filling:
    """An observer that fills a disk when a step is done, before its checkpoint."""

    def __init__(self, disk: Path, step: int) -> None:
        self.disk, self.at = disk, step

    def say(self, text: str) -> None:
        pass

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        if step == self.at:
            fill(self.disk)


def save_tiny(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    shape: dict[str, Any] = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    model = tiny_qwen(vocab_size=len(tokenizer), max_position_embeddings=1024, **shape)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    return [line["train/loss"] for line in lines]


@pytest.mark.slow
def test_a_run_whose_disk_was_full_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    path.write_text(CONFIG.format(model=save_tiny(tmp_path / "model")))
    config = TrainRunConfig.read(path, kind=TrainKind.SFT)
    assert main(["train", "sft", str(path), "--out", str(tmp_path / "whole")]) == 0
    with small_disk(tmp_path / "disk", size="32m") as disk:
        run = disk / "run"
        with pytest.raises(DiskFullError) as caught:
            TrainRun.execute(config, run, config_text=path.read_text(), observer=Filling(disk, 4))
        assert caught.value.path == str(run / "checkpoints" / "step-000004")
        assert f"'{run}/checkpoints/step-000002' (step 2), is whole" in str(caught.value)
        (disk / "filler").unlink()
        assert main(["train", "sft", str(path), "--out", str(run)]) == 0
        assert losses(run) == losses(tmp_path / "whole")
