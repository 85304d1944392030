"""A product, a test module with every kind of assertion, and a pytest run over many modules."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

PRODUCT = b"""\
def add(a, b):
    return a + b

def greet(name):
    return f"Hello, {name}!"

def evens(n):
    return list(range(0, n, 2))

def count(words):
    return {word: words.count(word) for word in words}

def find(key):
    return {"first": 1}.get(key)

def parse(text):
    if not text.isdigit():
        raise ValueError(f"not a number: {text!r}")
    return int(text)
"""
TESTS = b'''\
"""Tests of the shop."""
import unittest

import pytest

from shop import add, count, evens, find, greet, parse

TABLE = [("1", 1), ("22", 22)]  # text, number


def check(text, number):
    assert parse(text) == number


@pytest.fixture
def words():
    return ["b", "a", "b"]


def test_number():
    assert add(2, 3) == 5


def test_text():
    assert greet("Ada") == "Hello, Ada!"


def test_list():
    assert evens(7) == [0, 2, 4, 6]


def test_dict(words):
    """Count words."""
    assert count(words) == {"b": 2, "a": 1}  # twice b


def test_in():
    assert "Ada" in greet("Ada")


def test_not_in():
    assert 3 not in evens(7)


def test_is_none():
    assert find("x") is None


def test_truth():
    assert parse("4")


def test_not():
    assert not evens(0)


def test_less():
    assert add(1, 1) < 3


def test_raises():
    with pytest.raises(ValueError, match="not a number: 'x'"):
        parse("x")


def test_raises_only():
    with pytest.raises(ValueError):
        parse("x")


def test_approx():
    assert add(0.1, 0.2) == pytest.approx(0.3)


@pytest.mark.parametrize(("a", "b", "total"), [(1, 2, 3), pytest.param(-1, 1, 0, id="zero")])
def test_parametrized(a, b, total):
    assert add(a, b) == total


def test_module_table():
    for text, number in TABLE:
        assert parse(text) == number


def test_own_check():
    check("17", 17)


def test_expected_variable():
    expected = "Hello, Bo!"
    assert greet("Bo") == expected


def test_text_again():
    test_text()


class TestUnit(unittest.TestCase):
    """Of unittest."""

    def setUp(self):
        self.limit = 5

    def test_equal(self):
        self.assertEqual(add(1, 1), 2)

    def test_true(self):
        self.assertTrue(parse("1"))

    def test_in(self):
        self.assertIn(4, evens(self.limit))

    def test_is_none(self):
        self.assertIsNone(find("x"))

    def test_almost(self):
        self.assertAlmostEqual(add(0.1, 0.2), 0.3)

    def test_raises(self):
        with self.assertRaises(ValueError):
            parse("x")

    def test_raises_regex(self):
        self.assertRaisesRegex(ValueError, "not a number", parse, "x")

    def test_true_again(self):
        self.test_true()
'''


def run_modules(folder: Path, modules: Mapping[str, bytes]) -> dict[str, dict[str, list[str]]]:
    """Return module -> `Class::function` -> outcomes of its cases, with the correct product."""
    (folder / "shop.py").write_bytes(PRODUCT)
    for name, source in modules.items():
        (folder / f"{name}.py").write_bytes(source)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".",
               "-p", "no:cacheprovider", "--tb=no", "--assert=plain", "--junitxml=junit.xml",
               *(f"{name}.py" for name in modules)]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    outcomes: dict[str, dict[str, list[str]]] = {name: {} for name in modules}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        module, *classes = case.attrib["classname"].split(".")
        qualname = "::".join([*classes, case.attrib["name"].split("[")[0]])
        outcome = "passed" if len(case) == 0 else case[0].tag
        outcomes[module].setdefault(qualname, []).append(outcome)
    return outcomes
