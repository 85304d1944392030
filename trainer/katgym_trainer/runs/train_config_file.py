"""Reads the TOML file of a training run; what is wrong is named with its section.

Not here: what the sections mean (`train_run_config.py`), reading any section (`toml_sections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym_trainer.runs.toml_file import read_toml
from katgym_trainer.runs.toml_sections import check_keys, names, section, table
from katgym_trainer.runs.train_run_config import (
    CheckpointConfig,
    CollectConfig,
    DataConfig,
    LoopConfig,
    ModelConfig,
    OracleConfig,
    TrackConfig,
    TrainKind,
    TrainRunConfig,
)
from katgym_trainer.trainer_config import TrainerConfig

SECTIONS = ("model", "data", "train", "checkpoint", "track")


def read_config(
    path: Path, kind: TrainKind, *, num_steps: int | None = None, settings: Sequence[str] = ()
) -> TrainRunConfig:
    """Return the run that a TOML file describes; `UsageError` says what is wrong in it.

    num_steps: in place of the file's `num_steps` and `num_epochs`.
    settings: `KEY=VALUE`, in place of the file's (`toml_file.py`).
    """
    raw = read_toml(path, settings)
    if num_steps is not None and isinstance(raw.setdefault("train", {}), dict):
        raw["train"].pop("num_epochs", None)
        raw["train"]["num_steps"] = num_steps
    return parse_config(raw, kind, name=path.name)


def parse_config(raw: Mapping[str, Any], kind: TrainKind, *, name: str) -> TrainRunConfig:
    """Return the run that a file's content describes.

    name: what errors call the file.
    """
    check_keys(raw, SECTIONS, f"section of {name}")
    for wanted in ("model", "data"):
        if wanted not in raw:
            raise UsageError(f"{name} has no section [{wanted}]")
    data = dict(table(raw["data"], f"{name} [data]"))
    if "oracle" in data:
        data["oracle"] = section(OracleConfig, data["oracle"], f"{name} [data.oracle]")
    if "collect" in data:
        data["collect"] = section(CollectConfig, data["collect"], f"{name} [data.collect]")
    where = f"{name} [train]"
    train = table(raw.get("train", {}), where)
    of_loop, of_trainer = names(LoopConfig), names(TrainerConfig)
    check_keys(train, {*of_loop, *of_trainer}, f"key of {where}")
    config = TrainRunConfig(
        kind=kind,
        model=section(ModelConfig, raw["model"], f"{name} [model]"),
        data=section(DataConfig, data, f"{name} [data]"),
        loop=section(LoopConfig, {k: v for k, v in train.items() if k in of_loop}, where),
        trainer={k: v for k, v in train.items() if k not in of_loop},
        checkpoint=section(CheckpointConfig, raw.get("checkpoint", {}), f"{name} [checkpoint]"),
        track=trackers(raw.get("track", []), f"{name} [[track]]"),
    )
    try:
        config.identity()
    except ValueError as e:
        raise UsageError(f"{where}: {e}") from e
    return config


def trackers(raw: object, where: str) -> tuple[TrackConfig, ...]:
    """Return the [[track]] sections."""
    if not isinstance(raw, list):
        raise UsageError(f"{where} is a list of tables, each begun by [[track]], got {raw!r}")
    found = []
    for item in raw:
        options = dict(table(item, where))
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise UsageError(f"{where}: name is the name of a tracker, got {name!r}")
        found.append(TrackConfig(name=name, options=options))
    return tuple(found)
