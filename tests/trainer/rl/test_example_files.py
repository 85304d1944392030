"""The configurations that come with the trainer can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from katgym.config.toml_files import read_toml
from katgym_trainer.config.pipeline_config import PipelineConfig
from katgym_trainer.config.presets import PRESETS
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig

EXAMPLES = Path(__file__).parents[3] / "trainer/examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_is_a_run(path: Path) -> None:
    raw = tomllib.loads(path.read_text())
    if path.stem == "stages":
        config = PipelineConfig.of(raw, name=path.name)
        assert [stage.kind for stage in config.stages] == ["sft", "rl"]
    elif path.stem in ("rl", "lora"):
        assert len(RlConfig.of(raw, name=path.name).envs[0].lessons) == 3
    elif path.stem == "distil":
        teachers = RlConfig.of(raw, name=path.name).teachers
        assert [teacher.envs for teacher in teachers] == [("katgym/TreasureHunt-v1",), ()]
    else:
        kind = TrainKind(path.stem)
        assert TrainRunConfig.of(raw, kind=kind, name=path.name).kind is kind


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fits_the_file_of_adapters_to_a_machine(preset: str) -> None:
    file = EXAMPLES / "lora.toml"
    config = RlConfig.of(read_toml(file, PRESETS[preset]), name=file.name)
    trained = config.trainer_config()
    assert trained.lora_rank == 32
    found = {
        "cpu": ("", (), "float32", 4096),
        "gpu-24": ("vllm", ("--gpu-memory-utilization", "0.45"), "bfloat16", 8192),
        "gpu-80": ("vllm", ("--gpu-memory-utilization", "0.4"), "bfloat16", 16384),
    }[preset]
    policy = config.policy
    assert (policy.uri, policy.server_args, trained.dtype, trained.max_tokens) == found


def test_the_guide_shows_the_file_of_adapters() -> None:
    page = (EXAMPLES.parents[1] / "docs/guides/train-lora.md").read_text()
    shown = page.partition("```toml\n")[2].partition("```")[0]
    lines = (EXAMPLES / "lora.toml").read_text().splitlines(keepends=True)
    assert "".join(lines[3:]) == shown
