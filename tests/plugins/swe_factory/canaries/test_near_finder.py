"""Near canaries: the expected literal is found wherever a test keeps it, and nothing else is."""

from __future__ import annotations

import ast

from katgym_envs.swe.canaries import render
from katgym_plugin_swe_factory.canaries import BaseFailure, NearFinder

TESTS = """\
import unittest
import pytest
from words import plural, split

TABLE = [("day", "days"), ("city", "cities")]


@pytest.mark.parametrize("word, wanted", [("day", "days"), ("fly", "flies")])
def test_rows(word, wanted):
    assert plural(word) == wanted


def test_loop():
    for word, wanted in TABLE:
        assert plural(word) == wanted


def test_name():
    expected = {"a": 1, "b": 2}
    found = split("a=1 b=2")
    assert found == expected


def check(given, wanted):
    assert plural(given) == wanted


def test_check():
    check("pony", "ponies")


def test_called_with():
    assert len(plural("cities")) == plural("cities")


class TestUnit(unittest.TestCase):
    def test_first(self):
        self.assertEqual("toys", plural("toy"))

    def test_lines(self):
        self.assertEqual(
            split("a b"),
            ["a",
             "b"],
        )
"""
SOURCE = TESTS.encode()
FINDER = NearFinder(SOURCE)


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(TESTS.splitlines(), 1) if text in line)


def lines_changed(qualname: str, place: str, left: str, right: str, **more: object) -> set[int]:
    """Return the lines that the candidates change, having checked that lines stay lines."""
    failure = BaseFailure(qualname=qualname, place=place, left=left, right=right)
    found = FINDER.find(failure, **more)  # type: ignore[arg-type]
    lines: set[int] = set()
    for canary in found:
        changed = render(SOURCE, [canary.spec]).decode()
        ast.parse(changed)
        pairs = zip(TESTS.splitlines(), changed.splitlines(), strict=True)
        lines |= {number for number, (a, b) in enumerate(pairs, 1) if a != b}
        assert canary.kind.startswith("near_") and qualname in canary.tests
    return lines


def test_the_expected_literal_is_changed() -> None:
    """Literals are found in a table, a variable, an argument and one of several lines."""
    wanted = {
        ("test_loop", "wanted\n\n\ndef test_name", "'citys'", "'cities'"): "TABLE = [",
        ("test_name", "assert found ==", "{'a': 1, 'b': 4}", "{'a': 1, 'b': 2}"): "expected = {",
        ("TestUnit::test_first", '"toys", plural', "'toys'", "'toies'"): '"toys", plural',
        ("TestUnit::test_lines", "self.assertEqual(\n", "['a', 'd']", "['a', 'b']"): '"b"],',
    }
    found = {}
    for name, text, left, right in wanted:
        line = TESTS[: TESTS.index(text)].count("\n") + 1
        found[name, text, left, right] = lines_changed(name, f"{line}:1", left, right)
    assert found == {case: {line_of(text)} for case, text in wanted.items()}


def test_an_argument_of_the_tests_own_check_is_changed() -> None:
    called, failing = line_of('check("pony"'), line_of("assert plural(given)")
    place = f"{called}:1>{failing}:1"
    assert lines_changed("test_check", place, "'ponys'", "'ponies'") == {called}


def test_only_the_row_of_the_case_is_changed() -> None:
    rows = [SOURCE.index(b'("day", "days"), ("fly"'), SOURCE.index(b'("fly"')]
    ends = [rows[1], SOURCE.index(b"])\ndef test_rows")]

    def row_of(site: tuple[int, int]) -> int | None:
        inside = [rows[i] <= site[0] < ends[i] for i in range(2)]
        return inside.index(True) if True in inside else None

    failure = {"qualname": "test_rows", "place": f"{line_of('assert plural(word)')}:1",
               "left": "'flys'", "right": "'flies'"}  # fmt: skip
    found = FINDER.find(BaseFailure(**failure, ordinal=1), row_of=row_of)
    assert found and all(rows[1] <= c.site[0] < ends[1] for c in found)
    assert FINDER.find(BaseFailure(**failure, ordinal=0), row_of=row_of) == ()


def test_what_the_product_is_called_with_is_left_alone() -> None:
    place = f"{line_of('len(plural')}:1"
    assert lines_changed("test_called_with", place, "5", "'cities'") == set()


def test_there_are_no_more_than_asked_for() -> None:
    place = str(line_of('"toys", plural'))
    failure = BaseFailure(
        qualname="TestUnit::test_first", place=f"{place}:1", left="'toys'", right="'toies'"
    )
    assert len(FINDER.find(failure, limit=3)) == 3
    assert FINDER.find(failure, limit=3) == FINDER.find(failure)[:3]
