"""`katgym train` as a user meets it: a tiny model learns from the oracle, stops, goes on.

At the end: on a full disk; that of `rl` is in `rl/test_full_disk.py`.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_disk import fill, small_disk
from waiting import wait_until

from katgym import Reward
from katgym.cli.main import main
from katgym.errors import DiskFullError
from katgym.rollout_store import RolloutStore
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.runs.train_run import TrainRun

CONFIG = """
[model]
path = "{model}"

[data.oracle]
envs = ["katgym/Arithmetic-v1?level=1"]
num_tasks = 10

[train]
num_steps = 10
batch_rollouts = 4
learning_rate = 1e-2
seed = 3

[checkpoint]
every_steps = 4
max_checkpoints = 9
"""


@pytest.fixture
def config(tiny_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(CONFIG.format(model=tiny_folder))
    return path


@pytest.fixture(scope="module")
def whole_run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten steps that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(CONFIG.format(model=tiny_folder))
    assert main(["train", "sft", str(folder / "tiny.toml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return what was measured, without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


@pytest.mark.slow
def test_a_run_leaves_a_better_model_and_everything_about_it(whole_run: Path) -> None:
    lines = metrics(whole_run)
    assert [line["step"] for line in lines] == list(range(1, 11))
    # 10 rollouts in steps of 4, 4 and 2
    assert [round(line["data/epoch"], 4) for line in lines[:3]] == [0.3333, 0.6667, 1.0]
    assert lines[-1]["train/loss"] < 0.8 * lines[0]["train/loss"]
    names = {path.name for path in whole_run.iterdir()} - {".guard"}
    assert names == {
        "config.toml", "lock.json", "metrics.jsonl", "checkpoints", "model", "model.json", "plots",
        "oracle", "train.log",
    }  # fmt: skip
    steps = sorted(path.name for path in (whole_run / "checkpoints").iterdir())
    assert steps == ["step-000004", "step-000008", "step-000010"]
    assert (whole_run / "plots" / "loss.png").stat().st_size > 10_000
    lock = json.loads((whole_run / "lock.json").read_text())
    assert lock["data"]["num_rollouts"] == 10 and len(lock["data"]["rows_sha256"]) == 64
    assert "steps 0 to 10 on 10 rollouts" in (whole_run / "train.log").read_text()


def test_the_model_loads_with_its_tokenizer(whole_run: Path, tiny_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict()
    after = AutoModelForCausalLM.from_pretrained(whole_run / "model").state_dict()
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)
    assert AutoTokenizer.from_pretrained(whole_run / "model").encode("a") == [64]


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    whole_run: Path, config: Path, tmp_path: Path
) -> None:
    """What a kill in step 8 leaves: a checkpoint of step 4, and lines behind it."""
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    for gone in ("model", "plots", "checkpoints/step-000008", "checkpoints/step-000010"):
        shutil.rmtree(run / gone)
    text = (run / "metrics.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:7]) + lines[7][:30])
    assert main(["train", "sft", str(config), "--out", str(run)]) == 0
    assert metrics(run) == metrics(whole_run)
    assert (run / "model" / "config.json").exists()


class Interrupter:
    """An observer that presses Ctrl-C when a step is done, before its checkpoint."""

    def __init__(self, at: int) -> None:
        self.at = at

    def say(self, text: str) -> None:
        """Nobody listens."""

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        assert num_steps == 10
        if step == self.at:
            self.act()

    def act(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_finishes_the_step_and_the_run_goes_on_from_it(
    whole_run: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result = TrainRun.execute(
        TrainRunConfig.read(config, kind=TrainKind.SFT),
        run,
        config_text=config.read_text(),
        observer=Interrupter(at=6),
    )
    assert (result.step, result.exit_code, result.model) == (6, 130, None)
    assert [line["step"] for line in metrics(run)] == [1, 2, 3, 4, 5, 6]
    assert (run / "checkpoints" / "step-000006").exists() and not (run / "model").exists()
    capsys.readouterr()
    command = ["train", "sft", str(config), "--out", str(run), "--resume", "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["resumed_from"], told["num_rollouts"]) == (10, 6, 10)
    assert metrics(run) == metrics(whole_run)


@pytest.mark.slow
def test_a_finished_run_does_nothing_more_unless_steps_are_added(
    whole_run: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    command = ["train", "sft", str(config), "--out", str(run), "--resume"]
    assert main(command) == 0
    assert metrics(run) == metrics(whole_run)
    assert main([*command, "--steps", "12"]) == 0
    assert [line["step"] for line in metrics(run)] == list(range(1, 13))
    assert metrics(run)[:10] == metrics(whole_run)
    assert "12 of 12 steps, loss " in capsys.readouterr().out
    assert main([*command, "--steps", "11"]) == 2
    assert "has taken 12 steps already, and was to take 11" in capsys.readouterr().err
    assert len(metrics(run)) == 12


def test_another_run_in_the_folder_is_refused_and_harms_nothing(
    whole_run: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in whole_run.rglob("*") if path.is_file()}
    assert main(["train", "rft", str(config), "--out", str(whole_run)]) == 2
    assert 'holds another run (kind: there "sft", here "rft")' in capsys.readouterr().err
    assert {path: path.read_bytes() for path in whole_run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_rft_learns_from_recorded_rollouts_that_succeeded(
    whole_run: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tmp_path / "recorded"
    shutil.copytree(whole_run / "oracle", recorded)
    with RolloutStore.open(recorded) as store:
        for record in store.sessions()[:4]:
            store.update_session(record.session_id, reward=Reward(value=0.0))
    before, after = config.read_text().split("[data.oracle]")
    after = after.partition("[train]")[2]
    config.write_text(f'{before}[data]\nrollouts = ["{recorded}"]\n[train]{after}')
    run = tmp_path / "run"
    assert main(["train", "rft", str(config), "--out", str(run), "--steps", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_rollouts"] == 6 and told["num_left_out"] == {"reward too low": 4}
    assert (told["kind"], told["step"], told["exit_code"]) == ("rft", 3, 0)
    assert told["metrics"]["train/loss"] == metrics(run)[-1]["train/loss"]


@pytest.mark.slow
def test_plot_draws_in_the_terminal_and_prints_the_files(
    whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "plot", str(whole_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    paths = [Path(line) for line in lines if line.startswith("/")]
    assert paths[-1] == whole_run / "plots" / "overview.png" and all(p.exists() for p in paths)
    shown = {line.split()[0]: line.split() for line in lines if line not in map(str, paths)}
    losses = [line["train/loss"] for line in metrics(whole_run)]
    assert shown["loss"][1] == f"{losses[0]:.4g}" and len(shown["loss"][2]) == 10
    assert shown["loss"][3:] == [f"{x:.4g}" for x in (losses[-1], min(losses), max(losses))]
    assert main(["train", "plot", str(tmp_path)]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err


@pytest.mark.slow
def test_mistakes_in_the_file_are_named_and_can_be_mended(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    good = config.read_text()
    command = ["train", "sft", str(config), "--out", str(tmp_path / "run"), "--steps", "1"]
    for old, new, words in [
        ("level=1", "level=one", "level"),
        ("katgym/Arithmetic", "katgym/Arithmetik", "Did you mean 'katgym/Arithmetic-v1'"),
        ("num_tasks", "num_task", "Did you mean 'num_tasks'?"),
        ("[train]", '[[track]]\nname = "wanbd"\n[train]', "Did you mean 'wandb'?"),
        ('path = "', 'path = "/no/such', "[model]: there is no folder '/no/such"),
    ]:
        with subtests.test(new=new):
            config.write_text(good.replace(old, new))
            assert main(command) == 2
            assert words in capsys.readouterr().err
    config.write_text(good)
    assert main(command) == 0


@pytest.mark.slow
def test_settings_take_the_place_of_the_files_and_are_kept(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["train", "sft", str(config), "--out", str(run), "--steps", "1"]
    assert main([*command, "--set", "train.learning_rate=0.125"]) == 0
    assert "\n# --set train.learning_rate=0.125\n" in (run / "config.toml").read_text()
    (line,) = (run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["train/learning_rate"] == 0.125
    assert main([*command, "--set", "train.learning_rat=0.125"]) == 2
    assert "Did you mean 'learning_rate'?" in capsys.readouterr().err


@pytest.mark.slow
def test_a_budget_that_is_too_small_is_told_at_the_start_or_kept_in_parts(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text().replace("seed = 3", "max_tokens = 20\nseed = 3")
    config.write_text(text)
    command = ["train", "sft", str(config), "--out", str(tmp_path / "run"), "--steps", "1"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "the longest rollout has" in told and "[train] max_tokens is 20: raise it, or" in told
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    config.write_text(text.replace("max_tokens = 20", "max_tokens = 20\nshould_split = true"))
    assert main(command) == 0


def test_a_step_that_cannot_be_taken_says_why(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("seed = 3", "max_trained = 1\nseed = 3"))
    assert main(["train", "sft", str(config), "--out", str(tmp_path / "run")]) == 2
    assert "step 1 cannot be taken: row " in capsys.readouterr().err


def test_wrong_usage_is_exit_code_2(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert main(["train", "sft"]) == 2
    assert main(["train", "sft", str(config), "--steps", "0"]) == 2
    assert "--steps is an int >= 1, got 0" in capsys.readouterr().err
    assert main(["train", "sft", "none.toml"]) == 2
    assert "cannot read 'none.toml'" in capsys.readouterr().err


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "train sft", "train rft", "train rl", "train plot"):
        assert main([*command.split(), "--help"]) == 0
        assert f"katgym {command} " in capsys.readouterr().out.partition("example:")[2]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_says_how_to_continue(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", "sft", str(config), "--out", str(run), "--steps", "5000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "katgym", *command], stderr=subprocess.PIPE, text=True
    )
    with process:
        wait_until(lambda: has_steps(run) or process.poll() is not None, "two steps")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    num = len(metrics_text(run))
    assert f"stopped after step {num}; go on with: katgym {' '.join(command)}" in err
    assert (run / "checkpoints" / f"step-{num:06}").exists()


def has_steps(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and len(metrics_text(run)) >= 2


def metrics_text(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


class Filling(Interrupter):
    """An observer that fills a disk when a step is done, before its checkpoint."""

    def __init__(self, disk: Path, at: int) -> None:
        super().__init__(at)
        self.disk = disk

    def act(self) -> None:
        fill(self.disk)


@pytest.mark.slow
def test_a_run_whose_disk_was_full_goes_on_to_the_same_losses(
    whole_run: Path, config: Path, tmp_path: Path
) -> None:
    text = config.read_text()
    with small_disk(tmp_path / "disk", size="32m") as disk:
        run = disk / "run"
        read = TrainRunConfig.read(config, kind=TrainKind.SFT)
        with pytest.raises(DiskFullError) as caught:
            TrainRun.execute(read, run, config_text=text, observer=Filling(disk, at=8))
        assert caught.value.path == str(run / "checkpoints" / "step-000008")
        assert f"'{run}/checkpoints/step-000004' (step 4), is whole" in str(caught.value)
        (disk / "filler").unlink()
        assert main(["train", "sft", str(config), "--out", str(run)]) == 0
        assert metrics(run) == metrics(whole_run)
