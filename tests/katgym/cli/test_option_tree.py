"""All commands together: every option has help, and one name means one thing."""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from katgym.cli.main import build_parser
from katgym.cli.options import SHARED

Leaf = tuple[str, argparse.ArgumentParser]


def leaves(parser: argparse.ArgumentParser) -> Iterator[Leaf]:
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in nested:
        for sub in action.choices.values():
            yield from leaves(sub)
    if not nested:
        yield parser.prog, parser


@pytest.fixture(scope="module")
def commands() -> list[Leaf]:
    return list(leaves(build_parser()))


def nodes(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from nodes(sub)


def test_every_command_shows_an_example_of_itself() -> None:
    without = [
        parser.prog
        for parser in nodes(build_parser())
        if not re.search(rf"example:\n(.*\n)*  {parser.prog}\b", str(parser.description))
    ]
    assert without == []


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]


def test_no_parser_takes_abbreviations(commands: list[Leaf]) -> None:
    assert [prog for prog, parser in commands if parser.allow_abbrev] == []


def test_every_argument_has_help(commands: list[Leaf]) -> None:
    bare = [
        f"{prog} {action.dest}"
        for prog, parser in commands
        for action in parser._actions
        if not action.help
    ]
    assert bare == []


def test_an_option_has_one_type_and_one_meaning_in_all_commands(commands: list[Leaf]) -> None:
    found = defaultdict(list)
    for prog, parser in commands:
        for action in options(parser):
            found[action.option_strings[-1].removeprefix("--")].append((prog, action))
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


def test_what_is_shared_is_shared(commands: list[Leaf]) -> None:
    names = [a.option_strings[-1] for _, parser in commands for a in options(parser)]
    assert [name for name in SHARED if names.count(f"--{name}") < 2] == []
