"""Sections of a TOML file as frozen dataclasses; what is wrong is named with its section.

Not here: reading the file (`toml_file.py`); what the sections of a run mean
(`train_run_config.py`, `rl/rl_config.py`).
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from katgym.errors import UnknownNameError, UsageError, unknown_name

T = TypeVar("T")


def section(cls: type[T], raw: object, where: str) -> T:
    """Return a section as its dataclass, each value checked for its type."""
    found = table(raw, where)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    check_keys(found, fields, f"key of {where}")
    hints = typing.get_type_hints(cls)
    values = {key: _value(hints[key], value, f"{where} {key}") for key, value in found.items()}
    for name, field in fields.items():
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if name not in values and not has_default:
            raise UsageError(f"{where} has no {name!r}")
    try:
        return cls(**values)
    except UsageError as e:
        raise UsageError(f"{where}: {e}") from e


def _value(hint: Any, value: Any, where: str) -> Any:
    for part in (hint, *typing.get_args(hint)):
        if isinstance(part, type) and issubclass(part, enum.StrEnum):
            for item in value if isinstance(value, list) else [value]:
                if item not in list(part):
                    raise UnknownNameError(unknown_name(f"{where}", item, part))
    is_section = dataclasses.is_dataclass(value)
    if is_section or (isinstance(value, tuple) and all(map(dataclasses.is_dataclass, value))):
        return value  # read before; an array of TOML is a list
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as e:
        raise UsageError(f"{where}: {e}, got {value!r}") from e


def table(raw: object, where: str) -> Mapping[str, Any]:
    """Return a table; `UsageError` for anything else."""
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is a table of keys and values, got {raw!r}")
    return raw


def check_keys(raw: Mapping[str, Any], known: Iterable[str], kind: str) -> None:
    """Raise `UnknownNameError`, with the nearest name, for a key that is not known."""
    for key in raw:
        if key not in known:
            raise UnknownNameError(unknown_name(kind, key, known))


def names(cls: Any) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(cls)]
