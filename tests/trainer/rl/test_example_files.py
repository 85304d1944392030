"""The configurations that come with the trainer can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig

EXAMPLES = Path(__file__).parents[3] / "trainer/examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_a_run(path: Path) -> None:
    raw = tomllib.loads(path.read_text())
    if path.stem == "stages":
        config = PipelineConfig.of(raw, name=path.name)
        assert [stage.kind for stage in config.stages] == ["sft", "rl"]
    elif path.stem == "rl":
        assert len(RlConfig.of(raw, name=path.name).envs[0].lessons) == 3
    else:
        kind = TrainKind(path.stem)
        assert TrainRunConfig.of(raw, kind=kind, name=path.name).kind is kind
