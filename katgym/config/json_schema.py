"""JSON Schemas of TOML tables, derived from config classes.

Names, types, bounds (`limits` of what annotates a type) and defaults are the fields', descriptions
their documentation. An editor with a TOML language server (taplo, VS Code's Even Better TOML)
completes and checks a file that begins with `#:schema URL-OR-PATH`. What a schema cannot say (keys
that exclude each other, names of envs) is checked when the file is read. `docs/make_schemas.py`
writes the files.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from katgym.config.field_docs import field_docs
from katgym.config.sections import default_of

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KEYWORDS = {
    ">=": "minimum",
    ">": "exclusiveMinimum",
    "<=": "maximum",
    "<": "exclusiveMaximum",
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def table_schema(cls: type) -> Schema:
    """Return the schema of a table that is a dataclass."""
    hints, docs = typing.get_type_hints(cls, include_extras=True), field_docs(cls)
    properties: dict[str, Schema] = {}
    required = []
    for item in dataclasses.fields(cls):
        default = default_of(item)
        found = value_schema(hints[item.name])
        if item.name in docs:
            found["description"] = docs[item.name]
        if default is dataclasses.MISSING:
            required.append(item.name)
        elif default is not None and not dataclasses.is_dataclass(default):
            found["default"] = list(default) if isinstance(default, tuple) else default
        properties[item.name] = found
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": required} if required else found


def value_schema(hint: Any) -> Schema:
    """Return the schema of a value's type, None left out: TOML has none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        schema, bounds = value_schema(args[0]), args[1]
        if schema["type"] in ("string", "array"):
            ((_, least),) = bounds.limits
            return {**schema, "minLength" if schema["type"] == "string" else "minItems": least}
        return {**schema, **{_KEYWORDS[sign]: limit for sign, limit in bounds.limits}}
    if origin in (typing.Union, types.UnionType):
        (part,) = (part for part in args if part is not types.NoneType)
        return value_schema(part)
    if origin is Literal:
        return {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"enum": [str(member) for member in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return table_schema(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": value_schema(args[0])}
    if hint is datetime.date:
        return {"type": "string", "format": "date"}  # as editors see a date of TOML
    return {"type": _TYPES[hint]}
