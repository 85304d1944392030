"""JSON Schemas of the TOML files of `katgym train`, derived from the config classes.

`docs/make_schemas.py` writes them to `katgym_trainer/schemas/`. Not here: the schema of one table
(`katgym.config.json_schema`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from katgym.config.json_schema import DIALECT, Schema, table_schema, value_schema
from katgym.config.sections import default_of
from katgym_trainer.config.pipeline_config import NAME
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.rules import field_rules
from katgym_trainer.config.run_config import ModelConfig, RunConfig, TrackConfig
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.trainer_config import TrainerConfig


def make_schemas() -> dict[str, Schema]:
    """Return file name -> schema of each kind of TOML file."""
    kinds: dict[str, tuple[type[RunConfig], tuple[str, ...]]] = {
        **{str(kind): (TrainRunConfig, ("kind",)) for kind in TrainKind},
        "rl": (RlConfig, ()),
    }
    schemas = {kind: _run_schema(cls, given) for kind, (cls, given) in kinds.items()}
    files = {
        f"train-{kind}.json": {"title": f"katgym train {kind}", **schema}
        for kind, schema in schemas.items()
    }
    files["train-stages.json"] = {
        "title": "katgym train rl, with stages",
        **_stages_schema(schemas),
    }
    return {name: {"$schema": DIALECT, **schema} for name, schema in files.items()}


def _run_schema(cls: type[RunConfig], given: Sequence[str]) -> Schema:
    """Return the schema of a run's file; given: fields that the file does not tell."""
    rules = field_rules(cls)
    sections = {
        item.name: _track_schema() if item.name == "track" else value_schema(rules[item.name])
        for item in dataclasses.fields(cls)
        if item.name not in ("loop", "trainer", "ranks", *given)
    }
    launch = {"type": "object", "additionalProperties": False}
    sections["trainer"] = {**launch, "properties": {"ranks": value_schema(rules["ranks"])}}
    train = table_schema(rules["loop"])
    options = table_schema(TrainerConfig)["properties"]
    train["properties"] |= {
        name: options[name] for name in cls.trainer_options() if name not in train["properties"]
    }
    required = [
        item.name
        for item in dataclasses.fields(cls)
        if item.name in sections and default_of(item) is dataclasses.MISSING
    ]
    return {
        "type": "object",
        "properties": {**sections, "train": train},
        "required": required,
        "additionalProperties": False,
    }


def _stages_schema(kinds: Mapping[str, Schema]) -> Schema:
    """Return the schema of a file of [[stage]] tables, which are files without [model] each."""
    stages = []
    for kind, schema in kinds.items():
        sections = {name: s for name, s in schema["properties"].items() if name != "model"}
        head = {"kind": {"const": kind}, "name": {"type": "string", "pattern": f"^{NAME}$"}}
        stages.append(
            {
                **schema,
                "properties": {**head, **sections},
                "required": ["kind", *(name for name in schema["required"] if name != "model")],
            }
        )
    return {
        "type": "object",
        "properties": {
            "model": table_schema(ModelConfig),
            "stage": {"type": "array", "items": {"oneOf": stages}, "minItems": 1},
            "track": _track_schema(),
        },
        "required": ["model", "stage"],
        "additionalProperties": False,
    }


def _track_schema() -> Schema:
    """Return the schema of [[track]] tables, whose other keys are the tracker's."""
    found = table_schema(TrackConfig)
    del found["properties"]["options"]
    return {"type": "array", "items": {**found, "additionalProperties": True}}
