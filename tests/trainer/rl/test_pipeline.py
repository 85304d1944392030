"""Stages one after the other: each trains what the one before made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rl_play import ENV_ID, register_env

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.rl_config import RlConfig

SFT = {"kind": "sft", "data": {"oracle": {"envs": [ENV_ID], "num_tasks": 6}}}
RL = {"kind": "rl", "envs": [{"id": ENV_ID}]}
TEXT = """
[model]
path = "{model}"

[[stage]]
kind = "sft"
[stage.data.oracle]
envs = ["{env}"]
num_tasks = 6
[stage.train]
num_epochs = 2
learning_rate = 1e-2

[[stage]]
kind = "rl"
[[stage.envs]]
id = "{env}"
[stage.policy]
max_tokens = 12
[stage.rollouts]
num_groups = 2
group_size = 4
[stage.train]
num_steps = {steps}
learning_rate = 1e-3
"""


@pytest.fixture(autouse=True)
def _env() -> None:
    register_env()


def test_stages_are_named_and_get_the_model_of_the_one_before() -> None:
    config = PipelineConfig.of({"model": {"path": "m"}, "stage": [SFT, RL]}, name="a.toml")
    assert [(stage.name, stage.kind) for stage in config.stages] == [("sft", "sft"), ("rl", "rl")]
    assert [stage.config.model.path for stage in config.stages] == ["m", "m"]
    assert config.stages[1].of_model(Path("runs/01-sft/model")).model.path == "runs/01-sft/model"
    assert isinstance(config.stages[1].config, RlConfig)


def test_what_is_wrong_is_named_with_its_stage() -> None:
    def parse(*stages: object, **more: object) -> None:
        PipelineConfig.of({"model": {"path": "m"}, "stage": list(stages), **more}, name="a.toml")

    for stages, text in (
        (({"kind": "slf"},), r"unknown kind of a.toml stage 1 'slf'. Did you mean 'sft'"),
        ((SFT, {**RL, "rollout": {}}), r"section of a.toml stage 2 \(rl\) 'rollout'. Did you mean"),
        ((RL, {**RL, "model": {"path": "x"}}), r"stage 2: the model is that of the stage before"),
        ((RL, RL), r"two stages are called 'rl'; give them names"),
        (({**RL, "name": "a b"},), r"name is of letters, digits, - and _ .*, got 'a b'"),
    ):
        with pytest.raises(UsageError, match=text):
            parse(*stages)
    with pytest.raises(UsageError, match=r"unknown section of a.toml, which has stages 'train'"):
        parse(RL, train={})


@pytest.mark.slow
def test_all_stages_run_and_the_same_command_does_what_is_left(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "all.toml", tmp_path / "run"
    path.write_text(TEXT.format(model=model, env=ENV_ID, steps=2))
    command = ["train", "rl", str(path), "--out", str(run)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "stage 1 of 2: sft" in said.err and "stage 2 of 2: rl" in said.err
    assert "step 3/3" not in said.err and "step 2/2, loss " in said.err  # as sft alone shows it
    assert "step 2/2, reward " in said.err
    assert "02-rl: 2 of 2 steps, success 0.000" in said.out
    assert (run / "model").resolve() == (run / "02-rl" / "model").resolve()
    lock = json.loads((run / "02-rl" / "lock.json").read_text())
    assert lock["run"]["model"]["path"] == str(run / "01-sft" / "model")
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert weights != (run / "01-sft" / "model" / "model.safetensors").read_bytes()

    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["stages"], told["num_skipped"], told["model"]) == ([], 2, str(run / "model"))
    assert "stage 1 (sft) is done" in said.err
    assert (run / "model" / "model.safetensors").read_bytes() == weights

    path.write_text(TEXT.format(model=model, env=ENV_ID, steps=3))  # the last stage is prolonged
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(s["kind"], s["step"], s["resumed_from"]) for s in told["stages"]] == [("rl", 3, 2)]


@pytest.mark.slow
def test_a_stage_is_not_gone_on_with_once_the_one_before_has_another_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "all.toml", tmp_path / "run"
    text = TEXT.format(model=model, env=ENV_ID, steps=2)
    path.write_text(text)
    command = ["train", "rl", str(path), "--out", str(run)]
    assert main(command) == 0
    before = (run / "model" / "model.safetensors").read_bytes()
    path.write_text(text.replace("num_epochs = 2", "num_epochs = 3"))
    capsys.readouterr()
    assert main(command) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{str(run / '02-rl')!r} was begun with a model that the stage before it" in told
    assert (run / "model" / "model.safetensors").read_bytes() == before
    shutil.rmtree(run / "02-rl")
    assert main(command) == 0
    assert (run / "model" / "model.safetensors").read_bytes() != before


def test_a_mistake_in_a_later_stage_is_found_before_the_first_begins(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = tmp_path / "all.toml", tmp_path / "run"
    text = TEXT.format(model=model, env=ENV_ID, steps=2)
    for wrong, told in (
        (text.replace(f'id = "{ENV_ID}"', 'id = "rltest/Lwo-v0"'), "stage 2 (rl): unknown env"),
        (text.replace("max_tokens = 12", "max_tokens = 12\nmax_context_tokens = 20"),
         "stage 2 (rl): the first prompt of 'rltest/Low-v0' has"),
        (text.replace(f'envs = ["{ENV_ID}"]', 'envs = ["rltest/Lwo-v0"]'), "stage 1 (sft): "),
        (text.replace(str(model), "no/such/model"), "there is no folder 'no/such/model'"),
    ):  # fmt: skip
        path.write_text(wrong)
        assert main(["train", "rl", str(path), "--out", str(run)]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
        assert not run.exists()


def test_options_of_one_stage_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.toml"
    path.write_text(TEXT.format(model=model, env=ENV_ID, steps=2))
    assert main(["train", "rl", str(path), "--steps", "3"]) == 2
    assert "--steps is for a run of one stage; all.toml has stages" in capsys.readouterr().err
    setting = ["--set", "stage.1.train.num_stesp=3"]
    assert main(["train", "rl", str(path), *setting]) == 2
    assert "Did you mean 'num_steps'?" in capsys.readouterr().err
