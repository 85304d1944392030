"""Test files without the functions that are graded."""

from __future__ import annotations

import pytest

from katgym_plugin_swe_factory.making.visible_tests import HiddenTestError, without_functions

TESTS = b'''"""Tests."""
import pytest

TABLE = [(1, 2)]
OTHER = [3]

# about a
@pytest.mark.parametrize("x", TABLE)
def test_a(x):
    assert x


def test_b():
    assert OTHER


class TestC:
    def test_d(self):
        pass
'''


def test_hidden_functions_go_with_the_tables_only_they_use() -> None:
    changed = without_functions({"t.py": TESTS}, [("t.py", "test_a")])["t.py"]
    assert b"test_a" not in changed and b"\nTABLE" not in changed
    assert b"OTHER = [3]" in changed and b"def test_b():\n    assert OTHER\n" in changed
    kept = without_functions({"t.py": TESTS, "u.py": b"from t import TABLE"}, [("t.py", "test_a")])
    assert b"\nTABLE" in kept["t.py"]


def test_a_class_without_its_last_test_stays_a_class() -> None:
    changed = without_functions({"t.py": TESTS}, [("t.py", "TestC::test_d")])["t.py"]
    compile(changed, "t.py", "exec")
    assert b"test_d" not in changed and b"test_a" in changed


def test_a_function_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(HiddenTestError, match="no definition of test 'test_z'"):
        without_functions({"t.py": TESTS}, [("t.py", "test_z")])
