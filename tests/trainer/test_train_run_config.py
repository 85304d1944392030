"""The TOML file of a run: what it becomes, and how each mistake in it is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym_trainer.config.run_config import CheckpointConfig, TrackConfig
from katgym_trainer.config.train_run_config import (
    LoopConfig,
    OracleRolloutsConfig,
    TrainKind,
    TrainRunConfig,
    Weights,
)
from katgym_trainer.rollouts.turn_errors import TurnError
from katgym_trainer.trainer_config import TrainerConfig

EXAMPLES = Path(__file__).parents[2] / "trainer" / "examples"
ERROR = next(iter(TurnError))
WHOLE = f"""
[model]
path = "models/tiny"
tokenizer = "models/other"

[data]
rollouts = ["runs/a", "b.jsonl"]
weights = "rollouts"
masks = ["{ERROR}"]
[data.oracle]
envs = ["katgym/Arithmetic-v1?level=1"]
num_tasks = 7

[train]
num_steps = 30
batch_rollouts = 5
learning_rate = 0.5
dtype = "bfloat16"

[checkpoint]
every_steps = 9

[[track]]
name = "wandb"
mode = "offline"
"""
SMALL = {"model": {"path": "m"}, "data": {"rollouts": ["a"]}}


def test_a_whole_file_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(WHOLE)
    config = TrainRunConfig.read(tmp_path / "a.toml", kind=TrainKind.SFT)
    assert (config.model.path, config.model.tokenizer) == ("models/tiny", "models/other")
    assert config.data.rollouts == ("runs/a", "b.jsonl")
    assert config.data.oracle == OracleRolloutsConfig(
        envs=("katgym/Arithmetic-v1?level=1",), num_tasks=7
    )
    assert (config.data.masks, config.weights) == ((ERROR,), Weights.ROLLOUTS)
    assert config.loop == LoopConfig(num_steps=30, batch_rollouts=5)
    assert config.trainer == {"learning_rate": 0.5, "dtype": "bfloat16"}
    assert config.make_trainer_config(30) == TrainerConfig(learning_rate=0.5, dtype="bfloat16")
    assert config.checkpoint == CheckpointConfig(every_steps=9, max_checkpoints=2)
    assert config.track == (TrackConfig(name="wandb", options={"mode": "offline"}),)


@pytest.mark.parametrize("kind", TrainKind)
def test_the_example_is_right(kind: TrainKind) -> None:
    config = TrainRunConfig.read(EXAMPLES / f"{kind}.toml", kind=kind)
    assert config.data.oracle is not None and config.loop.batch_rollouts > 0


def test_the_guide_shows_the_example() -> None:
    guide = EXAMPLES.parents[1] / "docs" / "guides" / "train.md"
    shown = guide.read_text().split("```toml\n")[1].partition("```")[0]
    assert (EXAMPLES / "sft.toml").read_text().endswith(f"\n{shown}")


def test_steps_of_the_command_line_replace_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(WHOLE.replace("num_steps = 30", "num_epochs = 2"))
    assert TrainRunConfig.read(tmp_path / "a.toml", kind=TrainKind.SFT).loop.num_epochs == 2
    config = TrainRunConfig.read(tmp_path / "a.toml", kind=TrainKind.SFT, num_steps=4)
    assert (config.loop.num_steps, config.loop.num_epochs) == (4, None)
    (tmp_path / "b.toml").write_text('[model]\npath = "m"\n[data]\nrollouts = ["a"]\n')
    assert (
        TrainRunConfig.read(tmp_path / "b.toml", kind=TrainKind.SFT, num_steps=4).loop.num_steps
        == 4
    )


def test_sft_takes_all_and_rft_the_best_with_tasks_alike() -> None:
    sft = TrainRunConfig.of(SMALL, kind=TrainKind.SFT, name="a.toml")
    rft = TrainRunConfig.of(SMALL, kind=TrainKind.RFT, name="a.toml")
    assert (sft.min_reward, sft.weights) == (None, Weights.TOKENS)
    assert (rft.min_reward, rft.weights) == (1.0, Weights.TASKS)
    told = {**SMALL, "data": {"rollouts": ["a"], "min_reward": 0.5, "weights": "tokens"}}
    rft = TrainRunConfig.of(told, kind=TrainKind.RFT, name="a.toml")
    assert (rft.min_reward, rft.weights) == (0.5, Weights.TOKENS)


def test_steps_are_those_of_the_epochs_unless_they_are_given() -> None:
    assert LoopConfig().total_steps(7) == 7
    assert LoopConfig(num_epochs=3).total_steps(7) == 21
    assert LoopConfig(num_steps=5).total_steps(7) == 5


def test_a_learning_rate_that_falls_does_so_over_the_whole_run() -> None:
    falling = {**SMALL, "train": {"schedule": "cosine", "num_epochs": 3, "seed": 5}}
    config = TrainRunConfig.of(falling, kind=TrainKind.SFT, name="a.toml")
    assert config.make_trainer_config(21) == TrainerConfig(schedule="cosine", num_steps=21, seed=5)
    constant = TrainRunConfig.of(SMALL, kind=TrainKind.SFT, name="a.toml")
    assert constant.make_trainer_config(21) == TrainerConfig()


def test_the_identity_is_plain_json_without_what_may_change() -> None:
    raw = {
        **SMALL,
        "train": {"num_steps": 3, "batch_rollouts": 2},
        "checkpoint": {"every_steps": 1},
    }
    one = TrainRunConfig.of(raw, kind=TrainKind.SFT, name="a.toml").identity()
    other = TrainRunConfig.of(
        {**SMALL, "train": {"batch_rollouts": 2, "learning_rate": 1e-6}},  # the default
        kind=TrainKind.SFT,
        name="b.toml",
    ).identity()
    assert one == other and json.loads(json.dumps(one))["loop"] == {"batch_rollouts": 2, "seed": 0}
    assert one != TrainRunConfig.of(raw, kind=TrainKind.RFT, name="a.toml").identity()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modle": {}}, r"unknown section of a.toml 'modle'. Did you mean 'model'\?"),
        ({"model": {"pth": "m"}}, r"unknown key of a.toml \[model\] 'pth'. Did you mean 'path'\?"),
        ({"model": {}}, r"a.toml \[model\] has no 'path'"),
        ({"model": 3}, r"a.toml \[model\] is a table of keys and values, got 3"),
        ({"model": {"path": 3}}, r"a.toml \[model\] path: Expected `str`, got `int`, got 3"),
        ({"data": {}}, r"a.toml \[data\]: there is nothing to train on: name rollouts, teachers"),
        (
            {"data": {"rollouts": ["a"], "weights": "task"}},
            r"unknown a.toml \[data\] weights 'task'. Did you mean 'tasks'\?",
        ),
        (
            {"data": {"rollouts": ["a"], "masks": ["nothing_like_it"]}},
            r"unknown a.toml \[data\] masks 'nothing_like_it'",
        ),
        (
            {"data": {"rollouts": ["a"], "teacher_weight": 0}},
            r"a.toml \[data\]: teacher_weight is a number > 0, got 0",
        ),
        (
            {"data": {"rollouts": ["a"], "min_reward": float("nan")}},
            r"a.toml \[data\]: min_reward is a finite number, or None, got nan",
        ),
        (
            {"data": {"oracle": {"env": ["e"]}}},
            r"unknown key of a.toml \[data\] oracle 'env'. Did you mean 'envs'\?",
        ),
        (
            {"data": {"oracle": {"envs": ["e"], "num_tasks": 0}}},
            r"a.toml \[data\] oracle: num_tasks is an int >= 1, got 0",
        ),
        (
            {"train": {"learning_rat": 1}},
            r"unknown key of a.toml \[train\] 'learning_rat'. Did you mean 'learning_rate'\?",
        ),
        ({"train": {"num_stesp": 1}}, r"Did you mean 'num_steps'\?"),
        (
            {"train": {"learning_rate": -1.0}},
            r"a.toml \[train\]: learning_rate is a number > 0, got -1\.0",
        ),
        ({"train": {"momentum": 0.5}}, r"a.toml \[train\]: momentum=0.5 changes nothing; it needs"),
        (
            {"train": {"num_steps": 0}},
            r"\[train\]: num_steps is an int >= 1, or None, got 0",
        ),
        ({"train": {"num_steps": "3"}}, r"a.toml \[train\] num_steps: Expected .*, got '3'"),
        (
            {"train": {"num_steps": 3, "num_epochs": 4}},
            "num_steps = 3 and num_epochs = 4 say the same thing twice; give one",
        ),
        ({"checkpoint": {"every_steps": 0}}, r"\[checkpoint\]: every_steps is an int >= 1, got 0"),
        ({"track": {"name": "wandb"}}, r"a.toml \[\[track\]\] is a list of tables, each begun by"),
        ({"track": [{}]}, r"a.toml \[\[track\]\] 0 has no 'name'"),
    ],
)
def test_mistakes_are_named_with_their_section(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TrainRunConfig.of({**SMALL, **change}, kind=TrainKind.SFT, name="a.toml")


@pytest.mark.parametrize("section", ["model", "data"])
def test_sections_that_are_needed_are_asked_for(section: str) -> None:
    raw = {name: value for name, value in SMALL.items() if name != section}
    with pytest.raises(UsageError, match=rf"a.toml has no section \[{section}\]"):
        TrainRunConfig.of(raw, kind=TrainKind.SFT, name="a.toml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read '.*none.toml': No such file"):
        TrainRunConfig.read(tmp_path / "none.toml", kind=TrainKind.SFT)
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(UsageError, match=r"'.*bad.toml' is not TOML: "):
        TrainRunConfig.read(tmp_path / "bad.toml", kind=TrainKind.SFT)
