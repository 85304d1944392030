"""Settings: files and what a command line replaces in them, tables as dataclasses, field docs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from katgym.config.field_docs import field_docs
from katgym.config.sections import section
from katgym.config.toml_files import kept_text, read_toml
from katgym.errors import UnknownNameError, UsageError
from katgym.play.limits import Limits

TEXT = '[train]\nlearning_rate = 1.0\n\n[[envs]]\nid = "a"\n\n[[envs]]\nid = "b"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "run.toml"
    found.write_text(TEXT)
    return found


def test_a_setting_takes_the_place_of_the_files(path: Path) -> None:
    rate, first, second = {"learning_rate": 1.0}, {"id": "a"}, {"id": "b"}
    whole = {"train": rate, "envs": [first, second]}
    assert read_toml(path) == whole
    wanted = {
        "train.learning_rate=3e-4": {"train": {"learning_rate": 3e-4}},
        "train.seed = 1": {"train": rate | {"seed": 1}},
        "train.schedule=cosine": {"train": rate | {"schedule": "cosine"}},
        'train.schedule="a=b"': {"train": rate | {"schedule": "a=b"}},
        "train.loss={clip = 0.3}": {"train": rate | {"loss": {"clip": 0.3}}},
        "train.loss.clip=0.3": {"train": rate | {"loss": {"clip": 0.3}}},
        "evaluate.should_keep_best=false": {"evaluate": {"should_keep_best": False}},
        "envs.1.weight=2.0": {"envs": [first, second | {"weight": 2.0}]},
        'envs.0={id = "c"}': {"envs": [{"id": "c"}, second]},
    }
    found = {setting: read_toml(path, [setting]) for setting in wanted}
    assert found == {setting: whole | changed for setting, changed in wanted.items()}
    assert read_toml(path, ["train.seed=1", "train.seed=2"])["train"]["seed"] == 2
    assert kept_text(path) == TEXT
    settings = ["train.seed=1", "a=b"]
    assert kept_text(path, settings) == TEXT + "\n# --set train.seed=1\n# --set a=b\n"


def test_settings_that_fit_nowhere_are_refused(path: Path, subtests: pytest.Subtests) -> None:
    for setting, told in {
        "train.seed": r"KEY=VALUE, such as train.learning_rate=3e-4; got 'train.seed'",
        "=1": r"a setting is KEY=VALUE",
        "train..seed=1": r"a setting is KEY=VALUE",
        "envs.2.weight=1": r"--set envs.2.weight=1: an array of 2 is there, from 0; got '2'",
        "envs.id=1": r"an array of 2 is there, from 0; got 'id'",
        "train.learning_rate.high=1": r"before 'learning_rate' comes a table, not 1.0",
    }.items():
        with subtests.test(setting=setting), pytest.raises(UsageError, match=told):
            read_toml(path, [setting])


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


def test_what_is_wrong_is_named_with_its_place(subtests: pytest.Subtests) -> None:
    gren = {"name": "x", "main": {"weight": 1, "colour": "gren"}}
    for raw, told in (
        ({}, "f.toml has no 'name'"),
        ({"nme": "x"}, "unknown key of f.toml 'nme'. Did you mean 'name'?"),
        ({"name": 3}, "f.toml name: Expected `str`, got `int`, got 3"),
        ({"name": "x", "main": {"weigth": 1}}, "unknown key of f.toml main 'weigth'"),
        ({"name": "x", "parts": [{"weight": -1}]}, "f.toml parts.0: weight is >= 0, got -1.0"),
        (gren, "Did you mean 'green'?"),
        ([], "f.toml is a table of keys and values, got []"),
    ):
        with subtests.test(raw=raw):
            with pytest.raises(UsageError) as error:
                section(Whole, raw, "f.toml")
            assert told in str(error.value)
            is_unknown = "unknown" in told or "mean" in told
            assert isinstance(error.value, UnknownNameError) == is_unknown


@dataclass(frozen=True)
class Base:
    size: int = 3
    """Of a thing,
    in metres."""
    bare: int = 0
    kind: str = "a"
    """Base's."""


@dataclass(frozen=True)
class Child(Base):
    kind: str = "b"
    """Child's."""

    @dataclass(frozen=True)
    class Inner:
        depth: int = 1
        """Of the inner one."""


def test_docs_are_one_line_inherited_and_read_once_wherever_the_class_is() -> None:
    @dataclass
    class Local:
        x: int = 0
        """Of the local one."""

    assert field_docs(Base) == {"size": "Of a thing, in metres.", "kind": "Base's."}
    assert field_docs(Child) == {"size": "Of a thing, in metres.", "kind": "Child's."}
    assert field_docs(Child.Inner) == {"depth": "Of the inner one."}
    assert field_docs(Local) == {"x": "Of the local one."}
    docs = field_docs(Limits)  # it has slots
    assert docs["max_tokens"] == "Sampled tokens, summed over model calls."
    assert field_docs(Limits) is docs
