"""Rules of config fields: types with bounds, checked when a config is made.

    learning_rate: Positive = 1e-6      # Annotated[float, Bounds(...)]
    schedule: Literal["constant", "linear"] = "constant"

    def __post_init__(self) -> None:
        check_fields(self)

    check_value("num_ranks", num_ranks, Count)      # of an argument

The same annotations become keywords of JSON Schemas (`json_schema.py`). Imports nothing but the
standard library: the options of losses have rules too.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What a number has to be, or how many items a text or list needs at least.

    Example:
        Bounds(((">=", 0), ("<", 1)), "a number >= 0 and < 1")
    """

    limits: tuple[tuple[str, float], ...]
    """Signs of comparisons, and what is compared with."""
    text: str
    """In words, behind "is"."""
    can_be_infinite: bool = False
    """Whether infinity is inside as well: a limit that then holds nothing back."""

    def allow(self, value: Any) -> bool:
        """Return whether a value of the right type is inside."""
        number = len(value) if isinstance(value, str | tuple | list) else value
        return all(_COMPARE[sign](number, limit) for sign, limit in self.limits)


Count = Annotated[int, Bounds(((">=", 1),), "an int >= 1")]
CountOrZero = Annotated[int, Bounds(((">=", 0),), "an int >= 0")]
Pair = Annotated[int, Bounds(((">=", 2),), "an int >= 2")]
"""Where one alone could not be compared with anything."""
Positive = Annotated[float, Bounds(((">", 0),), "a number > 0")]
PositiveOrInf = Annotated[float, Bounds(((">", 0),), "a number > 0, or infinity", True)]
NotNegative = Annotated[float, Bounds(((">=", 0),), "a number >= 0")]
NotNegativeOrInf = Annotated[float, Bounds(((">=", 0),), "a number >= 0, or infinity", True)]
AtLeastOne = Annotated[float, Bounds(((">=", 1),), "a number >= 1")]
BelowOne = Annotated[float, Bounds(((">=", 0), ("<", 1)), "a number >= 0 and < 1")]
Share = Annotated[float, Bounds(((">=", 0), ("<=", 1)), "a number from 0 to 1")]
Decay = Annotated[float, Bounds(((">", 0), ("<=", 1)), "a number > 0 and <= 1")]
Name = Annotated[str, Bounds(((">=", 1),), "a name")]
Names = Annotated[tuple[Name, ...], Bounds(((">=", 1),), "a list of names")]


def split_list(text: str) -> list[str]:
    """Return what a value with commas lists; nothing of ""."""
    return [part.strip().rstrip("/") for part in text.split(",") if part.strip()]


def check_fields(config: Any, error: type[ValueError] = ValueError) -> None:
    """Raise `error` for the first field whose value its annotation does not allow.

    config: a dataclass. Numbers are finite; a bool is no number.
    """
    for name, hint in field_rules(type(config)).items():
        check_value(name, getattr(config, name), hint, error)


def check_value(name: str, value: object, rule: Any, error: type[ValueError] = ValueError) -> None:
    """Raise `error` for a value that a rule, such as `Count`, does not allow."""
    if not _allow(rule, value):
        raise error(f"{name} is {_describe(rule)}, got {value!r}")


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """Return those of some fields that have another value than their default."""
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    return [name for name in names if getattr(config, name) != fields[name]]


def field_rules(cls: type) -> Mapping[str, Any]:
    """Return field -> its annotation, with bounds, names in it resolved."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _allow(hint: Any, value: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds: Bounds = args[1]
        if bounds.can_be_infinite and value == math.inf:
            return True
        return _allow(args[0], value) and bounds.allow(value)
    if origin in (typing.Union, types.UnionType):
        return any(_allow(part, value) for part in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if hint is Any:
        return True
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, tuple) and all(_allow(args[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    return isinstance(value, origin or hint)


def _describe(hint: Any) -> str:
    """Return what a value may be, in words behind "is"."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return str(args[1].text)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join("None" if part is types.NoneType else _describe(part) for part in args)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return f"a {hint.__name__}, one of {', '.join(repr(str(member)) for member in hint)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping of options by name"
    words = {int: "an int", float: "a finite number", str: "a text", bool: "True or False"}
    return words.get(hint, f"a {getattr(hint, '__name__', hint)}")
