"""Tables as dataclasses: types, nested tables, nearest names."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from katgym.config.sections import section
from katgym.errors import UnknownNameError, UsageError


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    weight: float
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise UsageError(f"weight is >= 0, got {self.weight!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    name: str
    main: Part = field(default_factory=lambda: Part(weight=1.0))
    parts: tuple[Part, ...] = ()
    folder: Path | None = None
    labels: tuple[str, ...] = ()


def test_tables_inside_a_table_are_read_as_their_dataclasses():
    raw = {
        "name": "x",
        "main": {"weight": 2, "colour": "green"},
        "parts": [{"weight": 1.5}],
        "folder": "a/b",
        "labels": ["p", "q"],
    }
    assert section(Whole, raw, "f.toml") == Whole(
        name="x",
        main=Part(weight=2.0, colour=Colour.GREEN),
        parts=(Part(weight=1.5),),
        folder=Path("a/b"),
        labels=("p", "q"),
    )
    assert section(Whole, {"name": "x", "folder": Path("c")}, "f.toml").folder == Path("c")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({}, "f.toml has no 'name'"),
        ({"nme": "x"}, "unknown key of f.toml 'nme'. Did you mean 'name'?"),
        ({"name": 3}, "f.toml name: Expected `str`, got `int`, got 3"),
        ({"name": "x", "main": {"weigth": 1}}, "unknown key of f.toml main 'weigth'"),
        ({"name": "x", "parts": [{"weight": -1}]}, "f.toml parts.0: weight is >= 0, got -1.0"),
        ({"name": "x", "main": {"weight": 1, "colour": "gren"}}, "Did you mean 'green'?"),
        ([], "f.toml is a table of keys and values, got []"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(raw, told):
    with pytest.raises(UsageError) as error:
        section(Whole, raw, "f.toml")
    assert told in str(error.value)
    assert isinstance(error.value, UnknownNameError) == ("unknown" in told or "mean" in told)
