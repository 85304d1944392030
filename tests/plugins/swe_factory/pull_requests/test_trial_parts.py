"""What six runs say of tests, and which lines a wrong variant of a fix may change."""

import pytest

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import split_node_id
from katgym_envs.swe.test_run import TestResult, TestRun
from katgym_plugin_swe_factory.history.changed_paths import sort_paths
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.mutation.wrong_variants import (
    find_changed_lines,
    wrong_variants,
)
from katgym_plugin_swe_factory.pull_requests.generated_tests import place_tests
from katgym_plugin_swe_factory.pull_requests.pull_filters import check_text
from katgym_plugin_swe_factory.pull_requests.repeated_runs import sort_tests


def run_of(**statuses: str) -> TestRun:
    """Return a run; `a=` is test_a, `a__1=` its case 1, "p", "f" or "s"."""
    known = {"p": TestStatus.PASSED, "f": TestStatus.FAILED, "s": TestStatus.SKIPPED}
    results = []
    for ordinal, (name, letter) in enumerate(statuses.items()):
        function, _, case = name.partition("__")
        node = f"t.py::test_{function}" + (f"[{case}]" if case else "")
        results.append(
            TestResult(
                path="t.py", qualname=f"test_{function}", ordinal=ordinal, node_id=node,
                status=known[letter],
            )
        )  # fmt: skip
    return TestRun(
        results=tuple(results),
        execution=ExecResult(exit_code=0),
        was_started=True,
        is_finished=True,
    )


def test_tests_are_sorted_by_what_they_do_on_both_sides() -> None:
    gold = [run_of(fix="p", keep="p", skip="s", lost="f", now="p", case__1="p", case__2="p")] * 3
    base = [
        run_of(fix="f", keep="p", skip="s", lost="p", now="p", case__1="f", case__2="p"),
        run_of(keep="p", skip="s", lost="p", now="f", case__1="f", case__2="p"),
        run_of(fix="f", keep="p", skip="s", lost="p", now="p", case__1="f", case__2="p"),
    ]
    found = sort_tests(base, gold)
    assert found.fail_to_pass == ("t.py::test_fix", "t.py::test_case[1]")
    assert found.pass_to_pass == ("t.py::test_keep", "t.py::test_case[2]")
    assert found.flaky == ("t.py::test_now",)
    assert found.failing == ("t.py::test_lost", "t.py::test_skip")
    assert [f.case_ids for f in found.functions] == [("",), ("",), ("1", "2")]


def test_one_unsound_case_takes_its_function_along() -> None:
    gold = [run_of(a__1="p", a__2=letter, b="p") for letter in "pfp"]
    found = sort_tests([run_of(a__1="f", a__2="f", b="p")] * 3, gold)
    assert found.fail_to_pass == ()
    assert found.flaky == ("t.py::test_a[2]",)
    assert found.pass_to_pass == ("t.py::test_b",)


def test_tests_found_flaky_later_are_left_out_with_their_function() -> None:
    runs = [run_of(a__1="p", a__2="p", b="p")] * 3
    found = sort_tests(runs, runs).without_flaky({"t.py::test_a[1]"})
    assert found.pass_to_pass == ("t.py::test_b",)
    assert found.flaky == ("t.py::test_a[1]",)


def test_a_case_is_what_stands_in_brackets() -> None:
    assert split_node_id("t.py::A::test_b[x[1]-y]") == ("t.py", "A::test_b", "x[1]-y")
    assert split_node_id("t.py::test_b") == ("t.py", "test_b", "")


def test_changed_lines_are_those_of_the_new_file_and_the_edges_of_a_deletion() -> None:
    assert find_changed_lines(b"a\nb\nc\n", b"a\nx\nc\ny\n") == {2, 4}
    assert find_changed_lines(b"a\nb\nc\n", b"a\nc\n") == {1, 2}
    assert find_changed_lines(b"", b"a\nb") == {1, 2}
    assert find_changed_lines(b"a\n", b"a\n") == frozenset()


def test_wrong_variants_change_only_what_the_fix_changed() -> None:
    before = b"def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x - 1\n"
    after = before.replace(b"x + 1", b"x + 2")
    found = wrong_variants({"m.py": before}, {"m.py": after}, limit=50, seed=0)
    assert len(found) > 1
    assert {path for path, _ in found} == {"m.py"}
    for _, content in found:
        assert content != after
        assert content.endswith(b"def g(x):\n    return x - 1\n")
    assert found[:1] == wrong_variants({"m.py": before}, {"m.py": after}, limit=1, seed=0)
    assert wrong_variants({}, {"m.py": b"def f(:\n", "d.txt": b"x"}, limit=9, seed=0) == []


def test_paths_are_sorted_by_whole_names() -> None:
    found = sort_paths(
        ["contest.py", "src/news.py", "tests/data/a.bin", "a/b_test.py", "NEWS", "CHANGES.txt",
         "docs/conf.py", "setup.cfg", "src/words.txt", "a/conftest.py", "x.rs"]
    )  # fmt: skip
    assert found.tests == ("a/b_test.py", "a/conftest.py", "tests/data/a.bin")
    assert found.product == ("contest.py", "src/news.py", "x.rs")
    assert found.documents == ("CHANGES.txt", "NEWS", "docs/conf.py")
    assert found.others == ("setup.cfg", "src/words.txt")
    assert found.python_share == 2 / 3


def test_generated_modules_are_put_beside_the_changed_tests_and_replace_nothing() -> None:
    known = {"a/tests/test_x.py", "a/tests/test_more_1.py", "test_y.py"}
    assert place_tests([b"1", b"2"], ["a/tests/test_x.py"], known) == {
        "a/tests/test_more_2.py": b"1",
        "a/tests/test_more_3.py": b"2",
    }
    assert place_tests([b"1"], [], known) == {"test_more_1.py": b"1"}
    assert place_tests([b"1"], [], ()) == {"tests/test_more_1.py": b"1"}


def test_a_text_that_names_a_test_is_refused() -> None:
    check_text("It fails.", ["return x"], frozenset({"test_a"}))
    with pytest.raises(Refused, match="test_in_text: the issue names a hidden test"):
        check_text("See test_a.", [], frozenset({"test_a"}))
