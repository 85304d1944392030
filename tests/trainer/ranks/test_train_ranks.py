"""What ranks compute beside one process; `torchrun -m katgym train sft` killed and gone on with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from byte_tokenizer import byte_tokenizer
from rl_play import metrics
from started_ranks import (
    ON_RANKS,
    assert_close,
    start,
    start_each,
    wait_for_checkpoints,
)
from tiny_qwen import tiny_qwen

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_trainer import LOSSES
from katgym_trainer.runs.pipeline_run import pipeline_run

CASES = Path(__file__).parent / "rank_cases.py"
CONFIG = """
[model]
path = "{model}"

[data.oracle]
envs = ["katgym/Arithmetic-v1?level=1"]
num_tasks = 12

[train]
num_steps = {steps}
batch_rollouts = 6
learning_rate = 1e-2
epsilon = 1e-2
seed = 3

[checkpoint]
every_steps = 2
max_checkpoints = 9
"""
NAMES = ("train/loss", "train/num_trained_tokens")


def write_config(folder: Path) -> Path:
    """Write a random model, and the file of a run that trains it; return the file."""
    tokenizer = byte_tokenizer()
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = tiny_qwen(vocab_size=len(tokenizer), max_position_embeddings=1024, **ends)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    config = folder / "tiny.toml"
    config.write_text(CONFIG.format(model=folder / "model", steps=8))
    return config


@pytest.mark.slow  # 2 minutes: six Pythons with torch and transformers
def test_two_and_then_four_ranks_compute_what_one_process_does(tmp_path: Path) -> None:
    for num_ranks in (2, 4):  # four read the checkpoints of two
        command = [*ON_RANKS, str(num_ranks), str(CASES), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads((tmp_path / "found.json").read_text())
        assert len(found) == 2 * len(LOSSES) + 44
        halves = [found.pop(name) for name in list(found) if "halves" in name]
        assert {name: error for name, error in found.items() if not isinstance(error, float)} == {}
        assert {name: error for name, error in found.items() if error > 5e-6} == {}
        # bfloat16 rounds other sums, as it does between two budgets of one process.
        assert max(halves) < 0.06


@pytest.mark.slow  # 40 s: more than ranks wait for one that hangs
def test_a_late_rank_is_waited_for_longer_than_one_that_hangs() -> None:
    runs = start_each(2, "late_rank.py", "33")
    told = [run.communicate(timeout=600) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert [out for out, _ in told] == ["[0, 1]\n", "[0, 1]\n"]


@pytest.mark.slow
def test_one_rank_is_one_process_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums have one order
    config = write_config(tmp_path)
    for name, command in {"torchrun": [*ON_RANKS, "1"], "alone": [sys.executable]}.items():
        train = ["-m", "katgym", "train", "sft", str(config), "--steps", "3"]
        done = subprocess.run(
            [*command, *train, "--out", str(tmp_path / name)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("torchrun", "alone")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow  # 2 minutes: nine Pythons with torch and transformers
def test_a_run_on_ranks_is_that_of_one_process_and_goes_on(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert main(["train", "sft", str(config), "--out", str(tmp_path / "one")]) == 0

    # A rank is killed in mid run: the other says so and ends.
    out = tmp_path / "two"
    more = ("--set", "train.num_steps=100000", "--set", "checkpoint.max_checkpoints=99999")
    command = ("train", "sft", str(config), "--out", str(out))
    run, other = start_each(2, "rl_process.py", *command, *more)
    wait_for_checkpoints(run, out)
    other.kill()
    other.communicate()
    _, told = run.communicate(timeout=600)
    assert run.returncode != 0
    told = " ".join(told.split())
    assert "rank 0 of 2: rank 1 died or does not answer within 1800 s" in told
    assert "goes on from the last checkpoint" in told

    # The same command goes on, from an early checkpoint here, and ends as one process does.
    for path in (out / "checkpoints").iterdir():
        if path.name != "step-000002":
            shutil.rmtree(path)
    run = start(2, "sft", config, out, "--steps", "4", "--json")
    printed, told = run.communicate(timeout=600)
    assert run.returncode == 0, told
    result = json.loads(printed)  # of the first rank alone
    assert (result["resumed_from"], result["step"]) == (2, 4)
    shutil.copytree(out, tmp_path / "four")

    # One process goes on with what two made, and four do.
    shutil.rmtree(out / "model")
    assert main(["train", "sft", str(config), "--out", str(out)]) == 0
    assert_close(out, tmp_path / "one", names=NAMES, limit=1e-4)
    run = start(4, "sft", config, tmp_path / "four")
    _, told = run.communicate(timeout=600)
    assert run.returncode == 0, told
    assert_close(tmp_path / "four", tmp_path / "one", names=NAMES, limit=1e-4)
    assert metrics(tmp_path / "four")[-1]["train/rank_balance"] < 2


def test_stages_are_of_one_process_and_say_so_under_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder, nothing = tmp_path / "run", cast(Any, None)  # nothing is looked at before
    with pytest.raises(UsageError, match="torchrun started 2 processes, and stages are run by one"):
        pipeline_run(nothing, folder, config_text="", observer=nothing)
    assert not folder.exists()
