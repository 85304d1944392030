"""Expected values are hidden wherever nothing but an equality reads them, and nowhere else."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from katgym.errors import UsageError
from katgym_envs.swe.canaries.blind import hide_expected

MODULE = '''\
import pytest
import unittest

TABLE = [("a", 1), pytest.param("b", 2, id="b")]
SHARED = [("c", 3)]

def test_plain():
    assert f(1) == 2
    assert (3,
            4) == f(2) and g(5) == "six"

@pytest.mark.parametrize("given, wanted", TABLE)
@pytest.mark.parametrize(("more",), [(7,)])
def test_table(given, wanted, more):
    assert f(given, more) == wanted

@pytest.mark.parametrize("given, wanted", SHARED)
def test_one_way(given, wanted):
    assert f(given) == wanted

@pytest.mark.parametrize("given, wanted", SHARED)
def test_other_way(given, wanted):
    assert f(wanted) == given

def test_names():
    wanted = "\\n".join(["x", "y"]) + """
z"""
    used = 8
    assert f(used) == wanted
    assert f(0) == used
    for given, result in [(1, 9), (2, 10)]:
        assert f(given) == result

class TestIt(unittest.TestCase):
    def test_methods(self):
        self.assertListEqual(f(3), [11, 12])
        self.assertEqual(set([13]), f(4))
        self.assertNotEqual(f(5), 14)

def test_left_alone():
    assert f(6) == 15 or f(7) == 16
    assert not f(8) == 17
    assert f(9) != 18
    assert 19 == 19
    assert f(10) == float("nan")
    assert f(11) == h(20)
'''


def test_what_only_equalities_read_is_hidden() -> None:
    blind = hide_expected(MODULE.encode(), first=100)
    assert blind.values == (
        1, 2, 2, (3, 4), "six", "x\ny\nz", 9, 10, [11, 12], {13},
    )  # fmt: skip
    text = blind.source.decode()
    assert [int(part.split("\n")[0].split(")")[0]) for part in text.split("hidden(")[1:]] == list(
        range(100, 110)
    )
    assert not blind.is_complete
    assert "assertListEqual" not in text
    lines = text.splitlines()
    assert lines[4] == 'SHARED = [("c", 3)]'
    assert "used = 8" in text
    assert "\n".join(lines[-7:]) == "\n".join(MODULE.splitlines()[-7:])
    ast.parse(text)


def test_what_is_made_of_hidden_values_and_what_has_to_be_the_same_is_hidden() -> None:
    source = dedent("""\
        def test_a(given):
            lines = ["a", "b"]
            wanted = "-".join(lines)
            wanted = wanted.strip() + "!"
            assert f(given) == wanted
            assert g(given) is None and h(
                given) is (True)

        def test_b():
            word = "c"
            wanted = f"<{word}>"
            assert f(word) == wanted
            assert f(0) == "|".join([word, "d"])
        """)
    blind = hide_expected(source.encode())
    assert blind.values == (["a", "b"], "a-b", "a-b!", None, True, "<c>", "c|d")
    text = blind.source.decode()
    assert 'word = "c"' in text
    assert "is" not in text.split()
    ast.parse(text)


def test_tests_that_do_not_run_are_taken_out_unless_something_uses_them() -> None:
    source = dedent("""\
        TABLE = [("a", 1)]

        @pytest.mark.parametrize("given, wanted", TABLE)
        def test_a(given, wanted):
            assert f(given) == wanted

        @pytest.mark.parametrize("given, wanted", TABLE)
        def test_back(given, wanted):
            assert g(wanted) == given

        def test_used(): assert f("b") > 2

        class TestIt:
            @skip_if("@")
            def test_c(self):
                assert f("c") == 3
            def test_d(self):
                test_used()
                assert f("d") is (
                    4)
        """)
    blind = hide_expected(source.encode(), functions=["test_a", "TestIt::test_d"])
    assert blind.values == (1, 4)
    text = blind.source.decode()
    for gone in ("test_back", "test_c", "skip_if"):
        assert gone not in text
    assert "def test_used" in text
    scope = {"f": lambda x: x, "katgym_hidden": lambda n: n, "pytest": pytest}
    exec(blind.source, scope)
    assert not blind.is_complete  # what is used asserts more
    assert hide_expected(source.encode(), functions=["test_a"]).values == (1,)


def one(body: str) -> bytes:
    """Return a module with one test."""
    return f"def test_a():\n    {body}\n".encode()


def test_a_module_is_complete_if_all_it_asserts_is_hidden() -> None:
    wanted = {
        "assert f() == 1": True,
        "assert f() == 1 and g() is True": True,
        "self.assertListEqual(f(), [1])": True,
        "f()": False,
        "assert f() == 1\n    assert g()": False,
        "assert f() == 1\n    assert g() == h()": False,
        "assert f() == 1\n    self.assertIn(2, g())": False,
        "assert f() == 1\n    with pytest.raises(ValueError): g()": False,
    }
    assert {body: hide_expected(one(body)).is_complete for body in wanted} == wanted


def test_a_hidden_module_runs_and_what_it_compares_is_noted() -> None:
    blind = hide_expected(b"def test_a():\n    assert f(1) == 2\n    assert f(2) == 3\n")
    noted: list[tuple[int, object]] = []

    class Hidden:
        def __init__(self, number: int) -> None:
            self.number = number

        def __eq__(self, other: object) -> bool:
            noted.append((self.number, other))
            return True

        __hash__ = object.__hash__

    scope = {"katgym_hidden": Hidden, "f": lambda x: -x}
    exec(blind.source, scope)
    scope["test_a"]()  # type: ignore[operator]
    assert noted == [(0, -1), (1, -2)]


def test_what_else_is_read_or_cannot_be_told_stays() -> None:
    bodies = (
        "wanted = 1\n    wanted += 1\n    assert f() == wanted",
        "wanted = 1\n    print(wanted)\n    assert f() == wanted",
        "wanted = f(2)\n    assert f() == wanted",
        "for wanted in make():\n        assert f() == wanted",
        "with open('x') as wanted:\n        assert f() == wanted",
        "assert any(x == 1 for x in f())",
        "assert f() == g() == 1",
        "assert f() is g()",
        "assert f() is not None",
        'wanted = f"{g()}"\n    assert f() == wanted',
        "wanted = ['x']\n    print(wanted)\n    assert f() == wanted",
        "assert f() == 'a' * 10**9\n    assert f() == 'a' * 99999999",  # hostile
    )
    indirect = (
        b'@pytest.mark.parametrize("wanted", [1], indirect=True)\n'
        b"def test_a(wanted):\n    assert f() == wanted\n"
    )
    sources = [*map(one, bodies), indirect]
    assert [hide_expected(source).source for source in sources] == sources
    with pytest.raises(UsageError, match="not a Python test module"):
        hide_expected(b"def")
