"""Parts of making a task: edits of files, visible tests, the search for leaks, progress."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.hidden import HiddenTests, TestFunction
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.sources.spec_format import FileEdit, apply_edits
from katgym_envs.swe.swe_task import Workspace
from katgym_plugin_swe_factory.checking.leak_search import find_shown_tests, find_wanted
from katgym_plugin_swe_factory.making import trial
from katgym_plugin_swe_factory.making.byte_edits import edits_between
from katgym_plugin_swe_factory.making.make_progress import MakeProgress
from katgym_plugin_swe_factory.making.mutant_trial import TrialOutcome
from katgym_plugin_swe_factory.making.trial import Trial
from katgym_plugin_swe_factory.making.visible_tests import HiddenTestError, without_functions

LINES = st.lists(st.sampled_from([b"a\n", b"ab\n", b"\xe9\r\n", b"\n", b"b", b"\xff\x00\n"]))


@given(before=LINES, after=LINES)
def test_edits_of_any_bytes_give_the_other_version(before: list[bytes], after: list[bytes]) -> None:
    old, new = b"".join(before), b"".join(after)
    edits = edits_between(old, new)
    assert apply_edits(old, edits) == new
    assert (edits == ()) is (old == new)


def test_an_edit_holds_only_what_differs() -> None:
    old = b"def f(a, b):\n    return a < b\n"
    assert edits_between(old, old.replace(b"<", b"<=")) == (FileEdit(27, 27, "="),)
    assert edits_between(b"x = 1\ny = 2\nz = 3\n", b"x = 1\nz = 3\n") == (FileEdit(6, 12, ""),)


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
    without_method = without_functions({"t.py": TESTS}, [("t.py", "TestC::test_d")])["t.py"]
    compile(without_method, "t.py", "exec")  # the class has a body yet
    assert b"test_d" not in without_method and b"test_a" in without_method
    with pytest.raises(HiddenTestError, match="'test_z'"):
        without_functions({"t.py": TESTS}, [("t.py", "test_z")])


SOURCE = b"""
class Base:
    def test_shared(self):
        assert self.double(4) == 8

class TestIt(Base):
    def test_own(self):
        assert self.double(5) == 10
"""


def make_task(
    base_files: Mapping[str, bytes],
    source: bytes = SOURCE,
    names: Sequence[str] = ("TestIt::test_shared", "TestIt::test_own"),
) -> GradedTask:
    functions = tuple(TestFunction(path="t.py", qualname=name) for name in names)
    hidden = HiddenTests(
        instance_id="x",
        gold_patch="",
        fail_to_pass=tuple(n for f in functions for n in f.node_ids()),
        pass_to_pass=(),
        files={"t.py": source},
        functions=functions,
    )
    return GradedTask(
        hidden=hidden,
        base=base_files,
        workspace=Workspace(layer=None, python=None),
        env=EnvironmentRecipe(requirements=()),
    )


def test_leaks_are_searched_for_by_lines_and_whole_functions() -> None:
    """Not lines of the base state; an inherited test is not searched for whole."""
    assert find_wanted(make_task({})).lines == {
        "assert self.double(4) == 8": "a line of a hidden test",
        "assert self.double(5) == 10": "a line of a hidden test",
    }
    assert find_wanted(make_task({"copy.py": SOURCE})).lines == {}
    assert find_shown_tests(make_task({"copy.py": SOURCE})) == [
        "hidden test 't.py::TestIt::test_own' can be read in 'copy.py'"
    ]


TABLE_TEST = """
import pytest
ROWS = [("a", 1), ("b", 2)]
@pytest.mark.parametrize("name, number", ROWS)
def test_numbers(name, number):
    assert number_of_name(name) == number
"""


@pytest.mark.parametrize(
    ("old", "new", "is_shown"),
    [
        ("", "", True),
        ("test_numbers", "test_others", True),
        ("ROWS)", '[("b", 2)])', True),
        ("ROWS)", '[("c", 1)])', True),
        ('("a", 1), ("b", 2)', '("c", 1)', False),
        ('[("a", 1), ("b", 2)]', '(("c", 1), ("d", 2))', False),
        ("ROWS)", "read_rows())", True),
        ('("a", 1), ("b", 2)', '("c", 1), pytest.param("a", 1)', False),
        ("ROWS = [", "ROWS = [(", True),
    ],
)
def test_a_body_without_a_row_of_its_table_shows_nothing(
    old: str, new: str, is_shown: bool
) -> None:
    shown = TABLE_TEST.replace(old, new)
    task = make_task({"t.py": shown.encode()}, TABLE_TEST.encode(), ["test_numbers"])
    assert find_shown_tests(task) == (
        ["hidden test 't.py::test_numbers' can be read in 't.py'"] if is_shown else []
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ROWS)", "read_rows())"),
        ("ROWS)", 'ROWS)\n@pytest.mark.parametrize("other", [1])'),
        ("@pytest.mark.parametrize", "@fill"),
    ],
)
def test_rows_that_are_not_known_are_not_asked_for(old: str, new: str) -> None:
    hidden = TABLE_TEST.replace(old, new).encode()
    shown = TABLE_TEST.replace('("a", 1), ("b", 2)', '("c", 1)').encode()
    assert find_shown_tests(make_task({"t.py": shown}, hidden, ["test_numbers"]))


VALID: Trial[object] = Trial(outcome=trial.VALID)
SURVIVED: Trial[object] = Trial(outcome=TrialOutcome.SURVIVED)


def test_a_file_gets_a_line_now_and_then() -> None:
    text = io.StringIO()
    with MakeProgress(Console(file=text, width=200), 10, line_every_s=0) as progress:
        progress("a-1", VALID, False)
        progress("b-2", SURVIVED, False)
        progress.note("choosing canaries of a-1")
    first, second, third = text.getvalue().splitlines()
    assert first.startswith("1 tasks, 1 mutants tried, ") and first.endswith(" at a-1")
    assert second.startswith("1 tasks, 2 mutants tried, ") and second.endswith(" at b-2")
    assert third == "1 tasks, choosing canaries of a-1"


def test_the_rate_counts_this_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    progress = MakeProgress(Console(file=io.StringIO()), None)
    for _ in range(50):
        progress("a-1", VALID, True)
    now[0] += 60
    progress("a-1", VALID, False)
    progress("a-1", VALID, False)
    assert progress.num_valid == 52
    assert progress.line("a-1") == "52 mutants tried, 2 tasks/min, at a-1"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    text = io.StringIO()
    with MakeProgress(Console(file=text, force_terminal=True, width=120), 3) as progress:
        progress("a-1", VALID, False)
    shown = text.getvalue()
    assert "1/3" in shown and "1 mutants tried" in shown
