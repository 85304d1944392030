"""The TOML file of a run of several stages: each [[stage]] trains what the one before made.

    [model]
    path = "models/tiny"

    [[stage]]
    kind = "sft"
    [stage.data.oracle]
    envs = ["katgym/Arithmetic-v1?level=1"]

    [[stage]]
    kind = "rl"
    [[stage.envs]]
    id = "katgym/Arithmetic-v1?level=3"

Not here: running it (`pipeline_run.py`), what a stage's sections mean (`train_run_config.py`,
`config/rl_config.py`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.config.sections import check_keys, table
from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig

SECTIONS = ("model", "stage", "track")
KINDS = (*TrainKind, "rl")
NAME = r"[A-Za-z0-9_-]{1,40}"
"""Of a stage, as a regular expression."""


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

    @classmethod
    def of(cls, raw: Mapping[str, Any], *, name: str) -> PipelineConfig:
        """Return the stages that a file's content describes; `UsageError` says what is wrong in it.

        name: what errors call the file.
        """
        check_keys(raw, SECTIONS, f"section of {name}, which has stages")
        if "model" not in raw:
            raise UsageError(f"{name} has no section [model]")
        if not isinstance(raw["stage"], list):
            raise UsageError(f"{name} [[stage]] is a list of tables, got {raw['stage']!r}")
        stages = []
        for number, item in enumerate(raw["stage"], 1):
            where = f"{name} stage {number}"
            stage = dict(table(item, where))
            kind = stage.pop("kind", None)
            if kind not in KINDS:
                raise UnknownNameError(unknown_name(f"kind of {where}", str(kind), KINDS))
            stage_name = stage.pop("name", kind)
            if not isinstance(stage_name, str) or not re.fullmatch(NAME, stage_name):
                raise UsageError(
                    f"{where}: name is of letters, digits, - and _ (at most 40), got {stage_name!r}"
                )
            if "model" in stage:
                raise UsageError(
                    f"{where}: the model is that of the stage before; [model] is the first's"
                )
            stage = {"model": raw["model"], "track": raw.get("track", []), **stage}
            where = f"{where} ({stage_name})"
            config: TrainRunConfig | RlConfig
            if kind == "rl":
                config = RlConfig.of(stage, name=where)
            else:
                config = TrainRunConfig.of(stage, name=where, kind=TrainKind(kind))
            if config.cluster is not None and config.cluster.trainer_ranks:
                raise UsageError(
                    f"{where}: [cluster] trainer_ranks are of a run of one stage: give each stage a"
                    " file of its own, with the model of the one before"
                )
            stages.append(StageConfig(name=stage_name, config=config))
        names = [stage.name for stage in stages]
        for each in names:
            if names.count(each) > 1:
                raise UsageError(f"{name}: two stages are called {each!r}; give them names")
        return cls(stages=tuple(stages))
