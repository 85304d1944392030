"""Tables as frozen dataclasses; what is wrong is named with its place.

Not here: reading a file (`toml_files.py`); options of the command line (`katgym.cli.options`).
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from katgym.errors import UnknownNameError, UsageError, check_name, unknown_name

T = TypeVar("T")


def section(cls: type[T], raw: object, where: str) -> T:
    """Return a table as its dataclass, each value checked for its type.

    A field that is a dataclass, or a tuple of them, is read from a table, or an array of tables.
    where: what errors call the table. Raises `UsageError` for what is wrong, with the nearest name
    where a key is not known.
    """
    found = table(raw, where)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    check_keys(found, fields, f"key of {where}")
    hints = field_types(cls)
    values = {key: _read(hints[key], value, f"{where} {key}") for key, value in found.items()}
    for name, field in fields.items():
        if name not in values and default_of(field) is dataclasses.MISSING:
            raise UsageError(f"{where} has no {name!r}")
    try:
        return cls(**values)
    except UsageError as e:
        raise UsageError(f"{where}: {e}") from e


def _read(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) is typing.Literal and value not in typing.get_args(hint):
        raise UnknownNameError(unknown_name(where, value, typing.get_args(hint)))
    for part in (hint, *typing.get_args(hint)):
        if isinstance(part, type) and issubclass(part, enum.StrEnum):
            for item in value if isinstance(value, list) else [value]:
                if item not in list(part):
                    raise UnknownNameError(unknown_name(where, item, part))
        if dataclasses.is_dataclass(part) and isinstance(value, Mapping):
            return section(typing.cast(type, part), value, where)
        if dataclasses.is_dataclass(part) and isinstance(value, list):
            cls = typing.cast(type, part)
            return tuple(section(cls, item, f"{where}.{n}") for n, item in enumerate(value))
    if any(map(dataclasses.is_dataclass, value if isinstance(value, tuple) else (value,))):
        return value  # read before; an array of TOML is a list
    try:
        return msgspec.convert(value, hint, dec_hook=_read_path)
    except msgspec.ValidationError as e:
        raise UsageError(f"{where}: {e}, got {value!r}") from e


def _read_path(hint: type, value: object) -> object:
    if hint is not Path:
        raise NotImplementedError(f"no value of a config is a {hint!r}")
    if not isinstance(value, str | Path):
        raise ValueError("Expected a path in quotes")  # msgspec makes a ValidationError of it
    return Path(value)


def field_types(cls: type) -> Mapping[str, Any]:
    """Return field -> its type, names in it resolved."""
    return typing.get_type_hints(cls)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default; `dataclasses.MISSING` for none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def table(raw: object, where: str) -> Mapping[str, Any]:
    """Return a table; `UsageError` for anything else."""
    if not isinstance(raw, dict):
        raise UsageError(f"{where} is a table of keys and values, got {raw!r}")
    return raw


def check_keys(raw: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise `UnknownNameError`, with the nearest name, for a key that is not known."""
    for key in raw:
        check_name(kind, key, known)


def names(cls: Any) -> list[str]:
    """Return the names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(cls)]
