"""Options from config classes: names, types, defaults, help, settings; those of all commands."""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from katgym.cli.main import build_parser
from katgym.cli.options import SHARED, ConfigOptions, add_option
from katgym.cli.parser import Parser
from katgym.errors import UnknownNameError, UsageError


class Mode(StrEnum):
    NONE = ""
    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    rate: float = 0.5
    """Share, 100 % being 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    names: tuple[str, ...]
    """Names of things."""
    num_things: int
    """Things to make."""
    mode: Mode = Mode.NONE
    """How it is done."""
    is_loud: bool = False
    """Says more."""
    timeout_s: float | None = None
    """Until it ends."""
    folder: Path | None = None
    """Where it is."""
    tags: tuple[int, ...] = ()
    """URL-like numbers."""
    inner: Inner = field(default_factory=Inner)
    free: Mapping[str, Any] = field(default_factory=dict)
    """Anything."""
    secret: str = ""


OPTIONS = ConfigOptions(
    Config,
    positional=("names",),
    flags=("num_things", "mode", "is_loud", "timeout_s", "tags", "inner.rate"),
    names={"names": "name", "tags": "tag"},
    hidden=("secret",),
    defaults={"timeout_s": 9.0},
)


def parser():
    made = Parser(prog="make")
    OPTIONS.add(made)
    return made


def config(*arguments, **values):
    return OPTIONS.config(parser().parse_args(arguments), **values)


def test_options_have_names_types_and_defaults_of_their_fields():
    assert config("a", "--things", "3") == Config(names=("a",), num_things=3, timeout_s=9.0)
    told = ["a", "b", "--things=3", "--mode", "fast", "--loud", "--timeout", "1.5", "--tag=1"]
    told += ["--tag", "2", "--rate", "0.25", "--set", "folder=x/y", "--set", "free.k=1.0"]
    assert config(*told, secret="s") == Config(
        names=("a", "b"),
        num_things=3,
        mode=Mode.FAST,
        is_loud=True,
        timeout_s=1.5,
        folder=Path("x/y"),
        tags=(1, 2),
        inner=Inner(rate=0.25),
        free={"k": 1.0},
        secret="s",
    )


def test_help_is_the_documentation_with_the_default():
    text = " ".join(parser().format_help().split())
    for part in (
        "NAME names of things",
        "--things N things to make ",
        "--mode {fast,exact} how it is done",
        "--timeout SECONDS until it ends (9)",
        "--tag N URL-like numbers; repeat",
        "--rate X share, 100 % being 1 (0.5)",
        "folder: where it is",
    ):
        assert part in text, part
    assert "secret" not in text


def test_a_setting_that_is_none_is_named(subtests: pytest.Subtests) -> None:
    for setting, told in {
        "foldr=x": "unknown setting 'foldr'. Did you mean 'folder'?",
        "inner.rate=1": "--set inner.rate=...: this has an option of its own, --rate",
        "secret=x": "unknown setting 'secret'",
        "names=x": "unknown setting 'names'",
        "folder": "a setting is KEY=VALUE",
        "folder=3": "Config folder: ",
    }.items():
        with subtests.test(setting=setting):
            with pytest.raises(UsageError) as error:
                config("a", "--things", "3", "--set", setting)
            assert told in str(error.value)


def test_wrong_options_exit_2_and_name_the_nearest(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for arguments, told in {
        "a --thing 3": "unknown option of make '--thing'. Did you mean '--things'?",
        "a --things 3 --mod=x": "unknown option of make '--mod'",
        "a --things 3 --mode fst": "unknown choice 'fst'. Did you mean 'fast'?",
        "a": "the following arguments are required: --things",
        "a --things many": "argument --things: invalid int value: 'many'",
    }.items():
        with subtests.test(arguments=arguments):
            with pytest.raises(SystemExit) as exit:
                parser().parse_args(arguments.split())
            assert exit.value.code == 2
            assert told in " ".join(capsys.readouterr().err.split())


def test_what_follows_two_dashes_is_no_option():
    made = Parser(prog="make")
    made.add_argument("text", nargs="*")
    assert made.parse_args(["--", "--thing"]).text == ["--thing"]


def test_a_field_that_is_not_there_or_not_documented_is_refused():
    with pytest.raises(UnknownNameError, match="unknown field of Config 'tag'"):
        ConfigOptions(Config, flags=("tag",))
    with pytest.raises(UsageError, match=r"Config\.secret has no documentation"):
        ConfigOptions(Config)


def test_a_shared_option_means_the_same_with_a_detail_behind_it():
    made = argparse.ArgumentParser(prog="make")
    assert add_option(made, "out", "a file").help == "where to write: a file"
    assert add_option(made, "json").help == "print JSON"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from parsers(sub)


def test_all_commands_have_help_and_one_name_means_one_thing() -> None:
    found = defaultdict(list)
    for parser in parsers(build_parser()):
        prog = parser.prog
        assert not parser.allow_abbrev, prog
        assert re.search(rf"example:\n(.*\n)*  {prog}\b", str(parser.description)), prog
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (prog, action)
            if action.option_strings and not isinstance(action, argparse._HelpAction):
                found[action.option_strings[-1].removeprefix("--")].append((prog, action))
    assert [name for name in SHARED if len(found[name]) < 2] == []
    for name, uses in found.items():
        kinds = {(type(a), a.type, a.nargs, a.metavar) for _, a in uses if not a.choices}
        assert len(kinds) <= 1, (name, kinds)
        assert len({(type(a), a.type, a.nargs) for _, a in uses}) == 1, name
        if len(uses) == 1:
            continue
        meaning = SHARED.get(name, {}).get("help")
        texts = {str(action.help).partition(" (")[0] for _, action in uses}
        assert len(texts) == 1 or meaning, f"--{name} is not in SHARED: {texts}"
        for prog, action in uses:
            assert not meaning or str(action.help).startswith(meaning), (prog, name, action.help)
