"""JSON Schemas of the TOML files of `katgym train`, derived from the config classes.

Names, types, bounds and defaults are the fields', descriptions their documentation. An editor with
a TOML language server (taplo, VS Code's Even Better TOML) completes and checks a file that begins
with `#:schema URL-OR-PATH`. What a schema cannot say (keys that exclude each other, names of envs)
is checked when the file is read. `docs/make_schemas.py` writes them to `katgym_trainer/schemas/`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from katgym.config.field_docs import field_docs
from katgym.config.sections import default_of
from katgym_trainer.config.pipeline_config import NAME
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.rules import field_rules
from katgym_trainer.config.run_config import ModelConfig, RunConfig, TrackConfig
from katgym_trainer.config.train_run_config import TrainKind, TrainRunConfig
from katgym_trainer.trainer_config import TrainerConfig

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KEYWORDS = {
    ">=": "minimum",
    ">": "exclusiveMinimum",
    "<=": "maximum",
    "<": "exclusiveMaximum",
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


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
    return {name: {"$schema": _DIALECT, **schema} for name, schema in files.items()}


def _run_schema(cls: type[RunConfig], given: Sequence[str]) -> Schema:
    """Return the schema of a run's file; given: fields that the file does not tell."""
    rules = field_rules(cls)
    sections = {
        item.name: _schema(rules[item.name])
        for item in dataclasses.fields(cls)
        if item.name not in ("loop", "trainer", *given)
    }
    train = _table_schema(rules["loop"])
    options = _table_schema(TrainerConfig)["properties"]
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
            "model": _table_schema(ModelConfig),
            "stage": {"type": "array", "items": {"oneOf": stages}, "minItems": 1},
            "track": _schema(tuple[TrackConfig, ...]),
        },
        "required": ["model", "stage"],
        "additionalProperties": False,
    }


def _table_schema(cls: type) -> Schema:
    """Return the schema of a table that is a dataclass."""
    rules, docs = field_rules(cls), field_docs(cls)
    properties: dict[str, Schema] = {}
    required = []
    for item in dataclasses.fields(cls):
        default = default_of(item)
        found = _schema(rules[item.name])
        if item.name in docs:
            found["description"] = docs[item.name]
        if default is dataclasses.MISSING:
            required.append(item.name)
        elif default is not None and not dataclasses.is_dataclass(default):
            found["default"] = list(default) if isinstance(default, tuple) else default
        properties[item.name] = found
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    if cls is TrackConfig:  # its other keys are the tracker's
        del properties["options"]
        found["additionalProperties"] = True
    return {**found, "required": required} if required else found


def _schema(hint: Any) -> Schema:
    """Return the schema of a value's type, None left out: TOML has none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        schema, bounds = _schema(args[0]), args[1]
        if schema["type"] in ("string", "array"):
            ((_, least),) = bounds.limits
            return {**schema, "minLength" if schema["type"] == "string" else "minItems": least}
        return {**schema, **{_KEYWORDS[sign]: limit for sign, limit in bounds.limits}}
    if origin in (typing.Union, types.UnionType):
        (part,) = (part for part in args if part is not types.NoneType)
        return _schema(part)
    if origin is Literal:
        return {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"enum": [str(member) for member in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _table_schema(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(args[0])}
    return {"type": _TYPES[hint]}
