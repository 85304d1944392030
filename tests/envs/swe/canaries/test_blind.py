"""A blind module asserts nothing, notes what a test looks at, and shows no expected value."""

from __future__ import annotations

import ast
import random
import unittest
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from katgym.errors import UsageError
from katgym_envs.swe.canaries.blind import Raised, blind_module, function_names
from katgym_envs.swe.grading.rendering import RenderedRound, render_round
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.hidden import HiddenTests, TestFunction
from katgym_envs.swe.test_run import inside_program


def blinded(source: str, **options: Any) -> list[str]:
    """Return the lines of a blind module that are not as they were."""
    before = dedent(source).splitlines()
    after = blind_module(dedent(source).encode(), **options).source.decode().splitlines()
    return [line.strip() for line in after if line not in before]


def test_what_is_asserted_is_noted_and_the_test_side_of_it_is_gone() -> None:
    forms = {
        "assert f(1) == 2": "katgym_note(0, f(1))",
        "assert (3,\n    4) == f(2), 'why'": "katgym_note(0, f(2))",
        "assert f() is None": "katgym_note(0, f())",
        "assert f() == date(1, 2, 3)": "katgym_note(0, f())",
        "assert f() == ['a' * 3, T.NAME, Thing(4)]": "katgym_note(0, f())",
        "assert f(1) == g(2)": "katgym_note(0, f(1), g(2))",
        "assert f(1) is g(2)": "katgym_note(0, (f(1)) is (g(2)))",
        "assert id(f()) == x": "katgym_note(0, (id(f())) == (x))",
        "assert hash(f()) == hash(x)": "katgym_note(0, (hash(f())) == (hash(x)))",
        "assert f() == 1 and g(2)": "katgym_note(0, f()), katgym_note(1, not (g(2)))",
        "assert f()": "katgym_note(0, not (f()))",
        "assert not f()": "katgym_note(0, not (f()))",
        "assert f() != 1": "katgym_note(0, not ((f()) == (1)))",
        "assert 'a' not in f()": "katgym_note(0, not (('a') in (f())))",
        "assert f() >= 3": "katgym_note(0, not ((f()) < (3)))",
        "assert f() or g()": "katgym_note(0, not (f() or g()))",
        "assert f() == g() == 1": "katgym_note(0, f(), g()), katgym_note(1, g())",
        "assert False, 'not here'": "katgym_note(0)",
        "self.fail('not here')": "katgym_note(0)",
        "self.assertListEqual(f(3), [11], 'why')": "katgym_note(0, f(3))",
        "self.assertIsNone(f())": "katgym_note(0, f())",
        "self.assertTrue(f())": "katgym_note(0, not (f()))",
        "self.assertFalse(f())": "katgym_note(0, not (f()))",
        "self.assertNotEqual(f(), 14)": "katgym_note(0, not ((f()) == (14)))",
        "self.assertIn(2, g())": "katgym_note(0, not ((2) in (g())))",
        "self.assertNotIsInstance(f(), int)": "katgym_note(0, not (isinstance(f(), int)))",
        "m.get.assert_called_with(1)": "katgym_note(0, m.get.call_args)",
        "with pytest.raises(ValueError): f()": "with katgym_raises(0): f()",
        "self.assertRaises(ValueError, f, 1, key=2)": "katgym_raises(0, f, 1, key=2)",
    }
    head = "from datetime import date\nfrom product import T, Thing\ndef test_a(self, m, x):\n    "
    found = {form: blinded(head + form) for form in forms}
    assert found == {form: ["@katgym_quiet", wanted] for form, wanted in forms.items()}


def test_awaited_exceptions_are_told_by_name_and_pattern() -> None:
    blind = blind_module(
        dedent("""\
        def test_a(self, kind):
            with pytest.raises((KeyError, errors.Odd), match="no .*") as e:
                f()
            with self.assertRaisesRegex(TypeError, "len"):
                f()
            with pytest.raises(kind):
                f()
        """).encode()
    )
    assert blind.raised == {
        0: Raised(names=("KeyError", "Odd"), pattern="no .*"),
        1: Raised(names=("TypeError",), pattern="len"),
        2: Raised(),
    }
    assert b"KeyError" not in blind.source
    assert b"no .*" not in blind.source


def test_names_that_only_equalities_read_are_hidden_where_they_get_their_values() -> None:
    source = """\
        import pytest
        TABLE = [("a", 1), pytest.param("b", 2, id="b")]
        ANSWER = 42

        @pytest.mark.parametrize("given, wanted", TABLE)
        def test_table(given, wanted):
            assert f(given) == wanted

        def test_names():
            lines = ["x", "y"]
            wanted = "-".join(lines)
            used = 8
            assert f(used) == wanted
            assert f(0) == used
            for given, result in [(1, 9), (2, 10)]:
                assert f(given) == result
            table = {"k": "v"}
            for key, value in table.items():
                assert f(key) == value
            rows = [("r", 5)]
            for i, row in enumerate(f(1)):
                assert row == rows[i][0]
            assert f(7) == ANSWER

        def test_changed_by_the_product():
            doc = {"a": 1}
            f(doc)
            assert doc == {"a": 2}

        def check(given, wanted):
            assert f(given) == wanted

        def test_helper():
            check(11, 12)
        """
    blind = blind_module(dedent(source).encode())
    text = blind.source.decode()
    assert blind.is_complete
    for gone in ('("a", 1)', '"b", 2', '"x", "y"', "9", "10", '"v"', '"r"', "42", "12", "2}"):
        assert gone not in text, gone
    for kept in ("used = 8", "check(11, katgym_hidden)", "katgym_note(7, doc)"):
        assert kept in text, kept
    ast.parse(text)


def test_what_cannot_be_hidden_makes_a_module_incomplete() -> None:
    wanted = {
        "assert f() == 1": True,
        "check_it(f())": True,
        "assert_sound(f())": False,
        "assert_known(f())": True,
        "x.fail(f())": True,
        "with pytest.warns(UserWarning): f()": False,
        "with pytest.raises(ValueError, match=pattern): f()": False,
        "w = ['x']\n    w = w + ['y']\n    for x in w: assert f() == x": False,
    }
    found = {
        body: blind_module(
            f"def test_a(pattern):\n    {body}\n".encode(), helpers={"assert_known"}
        ).is_complete
        for body in wanted
    }
    assert found == wanted
    source = """\
        SHARED = [("c", 3)]
        @pytest.mark.parametrize("given, wanted", SHARED)
        def test_one_way(given, wanted): assert f(given) == wanted
        @pytest.mark.parametrize("given, wanted", SHARED)
        def test_other_way(given, wanted): assert f(wanted) == given
        """
    both = blind_module(dedent(source).encode())
    assert ("SHARED = [(" in both.source.decode(), both.is_complete) == (True, False)
    assert blind_module(dedent(source).encode(), functions=["test_one_way"]).is_complete
    with pytest.raises(UsageError, match="not a Python test module"):
        blind_module(b"def")


def test_tests_that_do_not_run_are_taken_out_unless_something_uses_them() -> None:
    source = dedent("""\
        def test_a(): assert f("a") == 1
        def test_back(): assert g(1) == "a"
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
    blind = blind_module(source.encode(), first=7, functions=["test_a", "TestIt::test_d"])
    text = blind.source.decode()
    assert blind.num_places == 3
    assert "katgym_note(7" in text
    assert not [gone for gone in ("test_back", "test_c", "skip_if") if gone in text]
    assert function_names(blind.source) == ({"test_a", "test_used", "test_d"}, set())


def test_hidden_files_that_are_no_modules_stay_and_what_others_import_is_kept() -> None:
    """Broken Python is data of a test; what is not in UTF-8 could assert, and is not made blind."""
    files = {
        "t.py": b"from h import test_shared\ndef test_a(): assert f() == 1\n",
        "h.py": b"def test_shared(): assert f() == 3\ndef test_gone(): assert f() == 4\n",
        "data/broken.py": b"def (",
        "data/old.py": b"print 'x'\n",
    }
    latin = {"l.py": "# coding: latin-1\nX = 'é'\n".encode("latin-1")}

    def rendered(files: dict[str, bytes]) -> RenderedRound:
        function = TestFunction(path="t.py", qualname="test_a")
        hidden = HiddenTests(
            instance_id="x", gold_patch="", fail_to_pass=("t.py::test_a",), pass_to_pass=(),
            files=files, functions=(function,),
        )  # fmt: skip
        chosen = Round(functions=frozenset({("t.py", "test_a")}), canaries=(), is_blind=True)
        return render_round(hidden, chosen, random.Random(0))

    found = rendered(files)
    assert (set(found.helpers), found.is_complete) == ({"h.py"}, True)
    assert b"test_shared" in found.helpers["h.py"]
    assert b"test_gone" not in found.helpers["h.py"]
    assert not rendered(files | latin).is_complete


@pytest.fixture
def notes() -> Iterator[list[tuple[int, list[str | None]]]]:
    inside_program._notes.clear()
    yield inside_program._notes
    inside_program._notes.clear()


def run_blind(source: str, **scope: Any) -> None:
    """Run every test of a blind module, as the program in the sandbox does."""
    names = {
        "katgym_note": inside_program.note,
        "katgym_raises": inside_program.Awaited,
        "katgym_quiet": inside_program.quiet,
        "katgym_hidden": inside_program.HiddenValue(),
        "pytest": pytest,
        "unittest": unittest,
        **scope,
    }
    exec(blind_module(dedent(source).encode()).source, names)
    for name, value in list(names.items()):
        if name.startswith("test_"):
            value()


def test_a_blind_module_passes_and_notes_whatever_the_product_does(
    notes: list[tuple[int, list[str | None]]],
) -> None:
    class Odd(list):  # type: ignore[type-arg]
        """Compares as a list."""

    def end(text: str) -> None:
        raise KeyError(text)

    source = """\
        def test_a():
            assert f(1) == 2
            assert f(Odd([1])) == [1]
            assert g() == f(g())
            assert f(5) > 9
            with pytest.raises(ValueError):
                end("wrong")
            with pytest.raises(ValueError):
                f(1)
            for n in range(2):
                assert f(n) == n
            end("ends here")
            assert f(0) == 0
        """
    run_blind(source, f=lambda x: x, g=object, end=end, Odd=Odd)
    assert notes == [
        (0, ["1"]),
        (1, ["[1]"]),
        (2, ["~<object object at 0x>", "~<object object at 0x>", "False"]),
        (3, ["True"]),
        (4, ["KeyError\nLookupError\nException\nBaseException\nobject", "'wrong'"]),
        (5, []),
        (6, ["0"]),
        (6, ["1"]),
        (inside_program.RAISED, ["KeyError"]),
    ]


def test_values_of_any_size_and_temper_have_a_text() -> None:
    class Liar:
        def __repr__(self) -> str:
            raise RuntimeError

    long = "a" * 9000
    told = [inside_program.told_text(value) for value in (long, long + "b", Liar(), {1: {2}}, 1j)]
    assert [text and len(text) for text in told[:2]] == [65, 65]
    assert told[0] != told[1]
    assert told[2:] == [None, "{1: {2}}", "1j"]
