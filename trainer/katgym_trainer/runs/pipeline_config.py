"""A run of several stages, told by one TOML file: each [[stage]] trains what the one before made.

    [model]
    path = "models/tiny"

    [[stage]]
    kind = "sft"
    [stage.data.oracle]
    envs = ["katgym/Arithmetic-v0?level=1"]

    [[stage]]
    kind = "rl"
    [[stage.envs]]
    id = "katgym/Arithmetic-v0?level=3"

Not here: running it (`pipeline_run.py`), what a stage's sections mean (`train_run_config.py`,
`rl/rl_config.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym_trainer.rl.rl_config import RlConfig
from katgym_trainer.rl.rl_config_file import parse_rl_config
from katgym_trainer.runs.toml_sections import check_keys, section, table
from katgym_trainer.runs.train_config_file import parse_config, trackers
from katgym_trainer.runs.train_run_config import ModelConfig, TrainKind, TrainRunConfig

SECTIONS = ("model", "stage", "track")
KINDS = (*TrainKind, "rl")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """One stage; its model's path is known when the stage before has made it."""

    name: str
    config: TrainRunConfig | RlConfig

    @property
    def kind(self) -> str:
        """`sft`, `rft` or `rl`."""
        return "rl" if isinstance(self.config, RlConfig) else str(self.config.kind)

    def of_model(self, path: Path) -> TrainRunConfig | RlConfig:
        """Return the stage's configuration for a model that an earlier stage made."""
        model = dataclasses.replace(self.config.model, path=str(path), tokenizer="")
        return dataclasses.replace(self.config, model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """All stages, in their order.

    Example:
        PipelineConfig(stages=(StageConfig(name="sft", config=...), StageConfig(name="rl", ...)))
    """

    stages: tuple[StageConfig, ...]


def parse_pipeline(raw: Mapping[str, Any], *, name: str) -> PipelineConfig:
    """Return the stages that a file's content describes; `UsageError` says what is wrong in it.

    name: what errors call the file.
    """
    check_keys(raw, SECTIONS, f"section of {name}, which has stages")
    if "model" not in raw:
        raise UsageError(f"{name} has no section [model]")
    section(ModelConfig, raw["model"], f"{name} [model]")
    trackers(raw.get("track", []), f"{name} [[track]]")
    if not isinstance(raw["stage"], list):
        raise UsageError(f"{name} [[stage]] is a list of tables, got {raw['stage']!r}")
    stages = tuple(_stage(item, raw, number, name) for number, item in enumerate(raw["stage"], 1))
    names = [stage.name for stage in stages]
    for stage in names:
        if names.count(stage) > 1:
            raise UsageError(f"{name}: two stages are called {stage!r}; give them names")
    return PipelineConfig(stages=stages)


def _stage(raw: object, whole: Mapping[str, Any], number: int, name: str) -> StageConfig:
    where = f"{name} stage {number}"
    told = dict(table(raw, where))
    kind = told.pop("kind", None)
    if kind not in KINDS:
        raise UnknownNameError(unknown_name(f"kind of {where}", str(kind), KINDS))
    stage_name = told.pop("name", kind)
    if not isinstance(stage_name, str) or not _NAME.fullmatch(stage_name):
        raise UsageError(
            f"{where}: name is of letters, digits, - and _ (at most 40), got {stage_name!r}"
        )
    if "model" in told:
        raise UsageError(f"{where}: the model is that of the stage before; [model] is the first's")
    told = {"model": whole["model"], "track": whole.get("track", []), **told}
    where = f"{where} ({stage_name})"
    if kind == "rl":
        return StageConfig(name=stage_name, config=parse_rl_config(told, name=where))
    return StageConfig(name=stage_name, config=parse_config(told, TrainKind(kind), name=where))
