"""The configurations that come with the trainer can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from katgym_trainer.rl.rl_config_file import parse_rl_config
from katgym_trainer.runs.pipeline_config import parse_pipeline
from katgym_trainer.runs.train_config_file import parse_config
from katgym_trainer.runs.train_run_config import TrainKind

EXAMPLES = Path(__file__).parents[3] / "trainer/examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_a_run(path: Path) -> None:
    raw = tomllib.loads(path.read_text())
    if path.stem == "stages":
        config = parse_pipeline(raw, name=path.name)
        assert [stage.kind for stage in config.stages] == ["sft", "rl"]
    elif path.stem == "rl":
        assert len(parse_rl_config(raw, name=path.name).envs[0].lessons) == 3
    else:
        kind = TrainKind(path.stem)
        assert parse_config(raw, kind, name=path.name).kind is kind
