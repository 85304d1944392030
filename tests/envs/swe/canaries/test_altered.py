"""Which tests an edit of a module alters: rows of tables, bodies, what several tests use."""

import subprocess
import sys
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym_envs.swe.canaries.altered import altered_tests
from katgym_envs.swe.hidden import TestFunction

SOURCE = """
import pytest

PAIRS = [("city", "cities"), ("news", "newses"), ("day", "days")]
BY_NAME = {"a": 10, "b": 11}
LIMIT = 77
LOW, HIGH = [[21, 22], [23, 24]]


@pytest.mark.parametrize(("one", "many"), PAIRS)
def test_plural(one, many):
    assert plural(one) == many or "never"


@pytest.mark.parametrize(("one", "many"), PAIRS)
def test_plural_again(one, many):
    assert plural(many) == many


def test_all():
    for one, many in PAIRS:
        assert plural(one) == many


@pytest.mark.parametrize("pair", BY_NAME.items())
def test_names(pair):
    assert pair[1] < LIMIT


@pytest.mark.parametrize("letter", ["u", "v"])
@pytest.mark.parametrize("number", [501, 502, 503])
def test_product(letter, number):
    assert letter


@pytest.mark.parametrize("low", LOW)
def test_low(low):
    assert low


@pytest.mark.parametrize("scoped", [601, 602], scope="module")
def test_scoped(scoped):
    assert scoped


@pytest.mark.parametrize("cut", [PAIRS[:2], PAIRS[1:]])
def test_cut(cut):
    assert cut


@pytest.mark.parametrize(argnames="word", argvalues=["first", *BY_NAME])
def test_starred(word):
    assert word


class TestGroup:
    @pytest.mark.parametrize("number", (901, 902))
    def test_method(self, number):
        assert number < 1_000

    def test_other(self):
        assert LIMIT
"""
FUNCTIONS = [
    TestFunction(path="t.py", qualname=name, case_ids=cases)
    for name, cases in {
        "test_plural": ("city-cities", "news-newses", "day-days"),
        "test_plural_again": ("city-cities", "news-newses", "day-days"),
        "test_all": ("",),
        "test_names": ("pair0", "pair1"),
        "test_product": ("501-u", "501-v", "502-u", "502-v", "503-u", "503-v"),
        "test_low": ("21", "22"),
        "test_scoped": ("601", "602"),
        "test_cut": ("cut0", "cut1"),
        "test_starred": ("first", "a", "b"),
        "TestGroup::test_method": ("901", "902"),
        "TestGroup::test_other": ("",),
    }.items()
]


def altered(*texts: str) -> set[str]:
    """Return what edits of some texts, each there once, alter: without the path."""
    assert all(SOURCE.count(text) == 1 for text in texts)
    spans = [(SOURCE.index(text), SOURCE.index(text) + len(text)) for text in texts]
    found = altered_tests(SOURCE.encode(), spans, FUNCTIONS)
    return {node.removeprefix("t.py::") for node in found}


def nodes(*qualnames: str) -> set[str]:
    """Return all cases of some functions."""
    found = [n for f in FUNCTIONS if f.qualname in qualnames for n in f.node_ids()]
    return {node.removeprefix("t.py::") for node in found}


CUT = nodes("test_cut")


def test_a_row_of_a_table_alters_the_cases_of_its_number_in_every_test_of_the_table() -> None:
    news = {"test_plural[news-newses]", "test_plural_again[news-newses]", "test_all"}
    assert altered('"newses"') == news | CUT  # whose cases are not the table's rows
    both = {name.replace("news-newses", "city-cities") for name in news}
    assert altered('"newses"', '"city"') == news | both | CUT


def test_a_pair_of_a_dict_is_a_row() -> None:
    assert altered("11") == {"test_names[pair1]", *nodes("test_starred")}
    assert altered('"a"') == {"test_names[pair0]", *nodes("test_starred")}


def test_a_row_beside_the_test_alters_the_cases_that_are_made_of_it() -> None:
    assert altered("902") == {"TestGroup::test_method[902]"}
    assert altered("502") == {"test_product[502-u]", "test_product[502-v]"}
    assert altered('"v"') == {f"test_product[{number}-v]" for number in (501, 502, 503)}
    assert altered('"first"') == nodes("test_starred")
    assert altered("22") == nodes("test_low")  # of what is taken apart the rows are not known
    assert altered("602") == nodes("test_scoped")  # nor the order of what another scope has


def test_cases_are_numbered_as_pytest_collects_them(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "t.py"], cwd=tmp_path, capture_output=True, text=True)
    collected = [line for line in done.stdout.splitlines() if line.startswith("t.py::")]
    assert collected == [node for function in FUNCTIONS for node in function.node_ids()]


def test_any_other_edit_alters_all_cases_of_whoever_uses_it() -> None:
    assert altered('"never"') == nodes("test_plural")
    assert altered("77") == nodes("test_names", "TestGroup::test_other")
    assert altered("1_000") == nodes("TestGroup::test_method")


def test_what_no_test_uses_alters_nothing() -> None:
    assert altered("import pytest") == set()
    with pytest.raises(UsageError, match="not a Python"):
        altered_tests(b"def (:", [(0, 1)], FUNCTIONS)
