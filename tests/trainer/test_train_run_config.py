"""The TOML file of a run: what it becomes, and how each mistake in it is named.

At the end: settings of the trainer: what is allowed, and the words for what is not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym_trainer.algorithms import ALGORITHMS, resolve_algorithm
from katgym_trainer.config.run_config import CheckpointConfig, TrackConfig
from katgym_trainer.config.train_run_config import (
    LoopConfig,
    OracleRolloutsConfig,
    TrainKind,
    TrainRunConfig,
    Weights,
)
from katgym_trainer.losses import LOSSES
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
DATA = {"rollouts": ["a"]}
SMALL = {"model": {"path": "m"}, "data": DATA}


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


def test_the_example_is_right(subtests: pytest.Subtests) -> None:
    for kind in TrainKind:
        with subtests.test(kind=kind):
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
    config = TrainRunConfig.read(tmp_path / "b.toml", kind=TrainKind.SFT, num_steps=4)
    assert config.loop.num_steps == 4


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


def test_mistakes_are_named_with_their_section(subtests: pytest.Subtests) -> None:
    nan = float("nan")
    for section, value, words in [
        ("modle", {}, r"unknown section of a.toml 'modle'. Did you mean 'model'\?"),
        ("model", {"pth": "m"}, r"unknown key of a.toml \[model\] 'pth'. Did you mean 'path'\?"),
        ("model", {}, r"a.toml \[model\] has no 'path'"),
        ("model", 3, r"a.toml \[model\] is a table of keys and values, got 3"),
        ("model", {"path": 3}, r"a.toml \[model\] path: Expected `str`, got `int`, got 3"),
        ("data", {}, r"a.toml \[data\]: there is nothing to train on: name rollouts, teachers"),
        ("data", {**DATA, "weights": "task"}, r"a.toml \[data\] weights 'task'.* mean 'tasks'\?"),
        ("data", {**DATA, "masks": ["no_such"]}, r"unknown a.toml \[data\] masks 'no_such'"),
        ("data", {**DATA, "teacher_weight": 0}, r"\[data\]: teacher_weight is .* > 0, got 0"),
        ("data", {**DATA, "min_reward": nan}, r"\[data\]: min_reward is a finite .*, got nan"),
        ("data", {"oracle": {"env": ["e"]}}, r"\[data\] oracle 'env'. Did you mean 'envs'\?"),
        (
            "data",
            {"oracle": {"envs": ["e"], "num_tasks": 0}},
            r"a.toml \[data\] oracle: num_tasks is an int >= 1, got 0",
        ),
        ("train", {"learning_rat": 1}, r"\[train\] 'learning_rat'. .* mean 'learning_rate'\?"),
        ("train", {"num_stesp": 1}, r"Did you mean 'num_steps'\?"),
        ("train", {"learning_rate": -1.0}, r"\[train\]: learning_rate is a .* > 0, got -1\.0"),
        ("train", {"momentum": 0.5}, r"a.toml \[train\]: momentum=0.5 changes nothing; it needs"),
        ("train", {"num_steps": 0}, r"\[train\]: num_steps is an int >= 1, or None, got 0"),
        ("train", {"num_steps": "3"}, r"a.toml \[train\] num_steps: Expected .*, got '3'"),
        ("train", {"num_steps": 3, "num_epochs": 4}, "num_steps = 3 and num_epochs = 4 say the"),
        ("checkpoint", {"every_steps": 0}, r"\[checkpoint\]: every_steps is .* >= 1, got 0"),
        ("track", {"name": "wandb"}, r"a.toml \[\[track\]\] is a list of tables, each begun by"),
        ("track", [{}], r"a.toml \[\[track\]\] 0 has no 'name'"),
    ]:
        with subtests.test(words=words), pytest.raises(UsageError, match=words):
            TrainRunConfig.of({**SMALL, section: value}, kind=TrainKind.SFT, name="a.toml")
    for section in ["model", "data"]:
        rest = {name: value for name, value in SMALL.items() if name != section}
        words = rf"a.toml has no section \[{section}\]"
        with subtests.test(words=words), pytest.raises(UsageError, match=words):
            TrainRunConfig.of(rest, kind=TrainKind.SFT, name="a.toml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read '.*none.toml': No such file"):
        TrainRunConfig.read(tmp_path / "none.toml", kind=TrainKind.SFT)
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(UsageError, match=r"'.*bad.toml' is not TOML: "):
        TrainRunConfig.read(tmp_path / "bad.toml", kind=TrainKind.SFT)


OFFLOADED = {"should_offload_activations": True}


def test_settings_that_cannot_work_are_refused(subtests: pytest.Subtests) -> None:
    for options, words in [
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
        (OFFLOADED, "should_offload_activations=True changes nothing; it needs should_checkpoint"),
        (
            {**OFFLOADED, "should_checkpoint_activations": True, "should_compile": True},
            "should_compile compiles layers with what they keep; choose one",
        ),
        ({"num_steps": 9}, "num_steps=9 changes nothing; it needs schedule='linear' or 'cosine'"),
        ({"final_fraction": 0.1}, r"final_fraction=0\.1 changes nothing"),
        ({"lora_alpha": 8}, "lora_alpha=8 changes nothing; it needs lora_rank >= 1"),
        ({"lora_targets": ["q_proj"]}, r"lora_targets=\('q_proj',\) changes nothing"),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=words):
            TrainerConfig.of(options)
    with pytest.raises(UnknownNameError):
        TrainerConfig.of({"lr": 1})


def test_json_and_back_is_the_same() -> None:
    config = TrainerConfig(
        optimizer="muon", momentum=0.9, schedule="cosine", num_steps=10, num_warmup_steps=3,
        lora_rank=8, lora_targets=("q_proj",), loss={"clip_high": 0.3}, max_grad_norm=None,
    )  # fmt: skip
    assert TrainerConfig.of(json.loads(json.dumps(config.to_json()))) == config
    assert TrainerConfig.of({}) == TrainerConfig()
    options = {"clip_high": 0.3}
    config = TrainerConfig(loss=options)
    options["clip_high"] = 9.0
    assert config.loss == {"clip_high": 0.3}  # its own


def test_algorithms_name_losses_that_there_are() -> None:
    options = {"dr_grpo": {"max_completion_tokens": 8}}
    for name, algorithm in ALGORITHMS.items():
        config = TrainerConfig(loss=options.get(name, {}))
        found, loss = resolve_algorithm(name, config)
        assert found == algorithm and type(loss) is LOSSES[algorithm.loss]
        assert loss.has_other_terms == (name in ("sft", "dpo"))


def test_algorithms_take_another_advantage_and_options() -> None:
    config = TrainerConfig(advantage="rloo", loss={"clip_high": 0.5})
    found, loss = resolve_algorithm("dapo", config)
    assert (found.advantage, loss.clip_high) == ("rloo", 0.5)


def test_algorithms_that_are_not_known(subtests: pytest.Subtests) -> None:
    for name, options, words in [
        ("grop", {}, r"unknown algorithm 'grop'\. Did you mean 'grpo'"),
        ("sft", {"advantage": "grpo"}, "advantage='grpo' changes nothing; algorithm 'sft'"),
        ("grpo", {"advantage": "rlo"}, r"unknown advantage 'rlo'\. Did you mean 'rloo'"),
        ("sft", {"loss": {"clip_high": 1}}, "loss 'sft' has no option 'clip_high'"),
        ("grpo", {"loss": {"clip_hi": 1}}, r"no option 'clip_hi'\. Did you mean 'clip_high'"),
    ]:
        with subtests.test(name=name, options=options), pytest.raises(ValueError, match=words):
            resolve_algorithm(name, TrainerConfig.of(options))
