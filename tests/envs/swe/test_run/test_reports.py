"""Reports of a process that may lie: whatever they hold, reading them ends in a result."""

import json

import pytest
from attacks.fuzz_reports import fuzz

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.test_run.reports import read_reports


def phases(call: str = "passed", **more: object) -> list[dict[str, object]]:
    return [
        {"when": "setup", "outcome": "passed", "duration": 0.1},
        {"when": "call", "outcome": call, "duration": 0.2, **more},
        {"when": "teardown", "outcome": "passed", "duration": 0.1},
    ]


HELLO = {"kind": "hello"}
COLLECTED = {"kind": "collected", "tests": [["t.py", "test_a", 0, "t.py::test_a"]]}
END = {"kind": "end", "exit_code": 0}
JUNIT = b'<testsuites><testsuite><testcase classname="t" name="test_a"/></testsuite></testsuites>'


ROT13 = b'<?xml version="1.0" encoding="rot13"?>'
CASE = b'<testcase classname="t" name="test_a"/>'
SKIPPED = b'<testcase classname="" name="other"><skipped/></testcase>'
FAILED_JUNIT = JUNIT.replace(b'"/>', b'"><failure/></testcase>')


def test(index: int = 0, **more: object) -> dict[str, object]:
    return {"kind": "test", "index": index, "phases": phases(), **more}


test.__test__ = False  # type: ignore[attr-defined]


def read(*lines: object, code: int = 0, junit: bytes | None = JUNIT):
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return read_reports(ExecResult(exit_code=code), data, junit)


def test_an_honest_run_agrees_and_one_that_said_nothing_was_not_started():
    run = read(HELLO, COLLECTED, test(), END)
    assert run.all_passed
    assert run.results[0].duration_s == pytest.approx(0.4)
    silent = read_reports(ExecResult(exit_code=1), b"", None)
    assert not silent.was_started
    assert silent.disagreements == ()


CONTRADICTIONS = (
    # lines, exit code, junit file; what is said of them
    ([HELLO, COLLECTED, test(), test(), END], 0, JUNIT, "a test more than once"),
    ([HELLO, HELLO, COLLECTED, test(), END], 0, JUNIT, "a step of the run more than once"),
    ([HELLO, COLLECTED, test(), END, END], 0, JUNIT, "more than once"),
    ([HELLO, COLLECTED, test(), test(1), END], 0, JUNIT, "was not collected"),
    ([HELLO, COLLECTED, END], 0, JUNIT, "tests that did not pass"),
    ([HELLO, COLLECTED, test()], 0, JUNIT, "before pytest came to its end"),
    ([HELLO, COLLECTED, test(), END], 1, JUNIT, "exit code 1, but the channel reports 0"),
    ([HELLO, COLLECTED, test(), {**END, "exit_code": 1}], 1, JUNIT, "no test that failed"),
    ([HELLO, COLLECTED, test(), END], 0, None, "without writing its junit"),
    ([HELLO, COLLECTED, test(), END], 0, b"<x", "unreadable"),
    ([HELLO, COLLECTED, test(), END], 0, b"<!DOCTYPE x><a/>", "unreadable"),
    ([HELLO, COLLECTED, test(), END], 0, b"<testsuites/>", "disagree about the tests"),
    ([HELLO, COLLECTED, test(), END], 0, FAILED_JUNIT, "disagree"),
    ([HELLO, COLLECTED, test(), END], 0, JUNIT.replace(b"test_a", b"test_b"), "disagree"),
    ([HELLO, COLLECTED, test(), END], 0, JUNIT.replace(CASE, CASE * 2), "disagree"),
    ([HELLO, COLLECTED, test(), END], 0, JUNIT.replace(CASE, CASE + SKIPPED), "disagree"),
    ([HELLO, COLLECTED, test(phases=phases("failed")), END], 0, JUNIT, "did not pass"),
    ([HELLO, {"kind": "other"}, END], 0, JUNIT, "no report"),
    ([HELLO, {"kind": "collected", "tests": [[1, 2, 3]]}, END], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(phases=[1]), END], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(index=0.5), END], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(phases=phases("odd")), END], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(), {**END, "exit_code": float("inf")}], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(), {**END, "exit_code": 10**4000}], 0, JUNIT, "no report"),
    ([HELLO, COLLECTED, test(), END], 0, ROT13 + FAILED_JUNIT, "disagree"),
    ([HELLO, COLLECTED, test(), END], 0, JUNIT.decode().encode("utf-16"), "unreadable"),
)  # fmt: skip


def test_reports_that_contradict_each_other(subtests: pytest.Subtests) -> None:
    for lines, code, junit, text in CONTRADICTIONS:
        with subtests.test(lines=lines, code=code, junit=junit):
            run = read(*lines, code=code, junit=junit)
            assert not run.all_passed
            assert any(text in problem for problem in run.disagreements), run.disagreements


def told(*outcomes: str) -> list[dict[str, object]]:
    """Return phases from "OUTCOME of WHEN"; "sub" is a subtest, "xfail" skipped as was expected."""
    found = []
    for outcome, _, when in (text.partition(" of ") for text in outcomes):
        found.append(
            {
                "when": "call" if when == "sub" else when,
                "outcome": outcome.replace("xfail", "skipped").replace("xpass", "passed"),
                "xfail": outcome in ("xfail", "xpass"),
                "subtest": when == "sub",
            }
        )
    return found


SET_UP, CALL, TEAR_DOWN = "passed of setup", "passed of call", "passed of teardown"
CALL_FAILS, TEAR_DOWN_FAILS = "failed of call", "failed of teardown"
AS_PYTEST_WRITES = (
    # phases; status, exit code; what is in each of the junit cases of the test
    ((SET_UP, CALL, TEAR_DOWN), "passed", 0, ("",)),
    ((SET_UP, CALL_FAILS, TEAR_DOWN), "failed", 1, ("failure",)),
    ((SET_UP, CALL_FAILS, TEAR_DOWN_FAILS), "failed", 1, ("failure", "error")),
    ((SET_UP, CALL, TEAR_DOWN_FAILS), "error", 1, ("error",)),
    (("failed of setup", TEAR_DOWN), "error", 1, ("error",)),
    (("failed of setup", TEAR_DOWN_FAILS), "error", 1, ("error error",)),
    (("skipped of setup", TEAR_DOWN), "skipped", 0, ("skipped",)),
    (("skipped of setup", TEAR_DOWN_FAILS), "error", 1, ("skipped error",)),
    ((SET_UP, "skipped of call", TEAR_DOWN), "skipped", 0, ("skipped",)),
    ((SET_UP, "skipped of call", "skipped of teardown"), "skipped", 0, ("skipped skipped",)),
    ((SET_UP, "skipped of call", TEAR_DOWN_FAILS), "error", 1, ("skipped error",)),
    ((SET_UP, CALL, "skipped of teardown"), "passed", 0, ("skipped",)),
    ((SET_UP, CALL_FAILS, "skipped of teardown"), "failed", 1, ("failure skipped",)),
    ((SET_UP, "xfail of call", TEAR_DOWN), "xfailed", 0, ("skipped",)),
    ((SET_UP, "xfail of call", TEAR_DOWN_FAILS), "error", 1, ("skipped error",)),
    ((SET_UP, "xpass of call", TEAR_DOWN), "xpassed", 0, ("",)),
    ((SET_UP, "xpass of call", "xfail of teardown"), "xpassed", 0, ("skipped",)),
    ((SET_UP, CALL, "xfail of teardown"), "passed", 0, ("skipped",)),
    (("xfail of setup", TEAR_DOWN), "xfailed", 0, ("skipped",)),
    ((SET_UP, "passed of sub", "skipped of sub", CALL, TEAR_DOWN), "passed", 0, ("skipped",)),
    ((SET_UP, "skipped of sub", "skipped of call", TEAR_DOWN), "skipped", 0, ("skipped skipped",)),
    ((SET_UP, "failed of sub", CALL, TEAR_DOWN), "failed", 1, ("failure",)),
    ((SET_UP, "failed of sub", "skipped of call", TEAR_DOWN), "failed", 1, ("failure skipped",)),
    (
        (SET_UP, "failed of sub", "skipped of sub", "failed of sub", CALL_FAILS, TEAR_DOWN_FAILS),
        "failed", 1, ("failure failure failure skipped", "error"),
    ),
    ((SET_UP, "failed of sub", CALL, TEAR_DOWN_FAILS), "failed", 1, ("failure", "error")),
    ((SET_UP,), "missing", 2, (None,)),  # ended during its call
    ((SET_UP, CALL), "missing", 2, ("",)),  # ended during its tear-down
    ((SET_UP, CALL_FAILS), "missing", 2, ("failure",)),
    ((), "missing", 2, ()),
)  # fmt: skip


def junit_of(cases: tuple[str | None, ...]) -> bytes:
    """Return a junit file; None is a case without a name."""
    text = ""
    for inside in cases:
        name = "" if inside is None else ' name="test_a[x]"'
        text += (
            f"<testcase{name}>{''.join(f'<{tag}/>' for tag in (inside or '').split())}</testcase>"
        )
    return f"<testsuites><testsuite>{text}</testsuite></testsuites>".encode()


@pytest.mark.parametrize(("outcomes", "status", "code", "cases"), AS_PYTEST_WRITES)
def test_a_test_has_the_status_and_the_junit_cases_that_pytest_gives_it(
    outcomes: tuple[str, ...], status: str, code: int, cases: tuple[str | None, ...]
) -> None:
    """Any other file says something else, so nobody can choose between two."""
    end = {**END, "exit_code": code, "is_interrupted": code == 2}
    tests = [test(phases=told(*outcomes))] if outcomes else []
    run = read(HELLO, COLLECTED, *tests, end, code=code, junit=junit_of(cases))
    assert run.disagreements == ()
    assert run.results[0].status.value == status
    wrong = []
    for other in {junit_of(row[3]) for row in AS_PYTEST_WRITES} - {junit_of(cases)}:
        if not read(HELLO, COLLECTED, *tests, end, code=code, junit=other).disagreements:
            wrong.append(other)
    assert wrong == []


def test_phases_that_no_test_has_are_missing() -> None:
    for outcomes in ((SET_UP, TEAR_DOWN), (CALL,), (SET_UP, CALL, CALL, TEAR_DOWN)):
        assert read(HELLO, COLLECTED, test(phases=told(*outcomes)), END).results[0].status is (
            TestStatus.MISSING
        )


OTHER_CASES = (
    # node that could not be collected, or None for an error of pytest; outcome; name, what it has
    ("tests/sub/test_a.py", "failed", "tests.sub.test_a", "error"),
    ("test_a.py", "skipped", "test_a", "skipped"),
    ("t.py::TestB", "failed", "TestB", "error"),
    ("d[1]/t.py", "failed", "d", "error"),
    ("t.py::Test\x07", "failed", "Test#x07", "error"),
    (None, "", "internal", "error"),
)


@pytest.mark.parametrize(("node", "outcome", "name", "tag"), OTHER_CASES)
def test_what_is_no_test_has_a_junit_case_as_well(
    node: str | None, outcome: str, name: str, tag: str
) -> None:
    code = {"failed": 1, "skipped": 0, "": 3}[outcome]
    line = {"kind": "uncollected", "node": node, "text": "", "outcome": outcome}
    lines = (HELLO, COLLECTED, {"kind": "internal"} if node is None else line, test())
    end = {**END, "exit_code": code}
    other = f'<testcase classname="c" name="{name}"><{tag}/></testcase></testsuite>'.encode()
    junit = JUNIT.replace(b"</testsuite>", other, 1)
    run = read(*lines, end, code=code, junit=junit)
    assert (run.disagreements, run.results[0].status) == ((), TestStatus.PASSED)
    assert run.collection_errors == ((node,) if outcome == "failed" else ())
    unsaid = read(HELLO, COLLECTED, test(), end, code=code, junit=junit)
    unwritten = read(*lines, end, code=code)
    for forged in (unsaid, unwritten):
        assert any("about the tests" in text for text in forged.disagreements)


def test_who_ends_the_tests_chooses_the_exit_code() -> None:
    for code in (0, 1, 2, 44):
        end = {**END, "exit_code": code, "is_interrupted": True}
        run = read(HELLO, COLLECTED, end, code=code, junit=b"<testsuites/>")
        assert (run.disagreements, run.results[0].status) == ((), TestStatus.MISSING)
        assert read(HELLO, COLLECTED, end, code=code + 1, junit=b"<testsuites/>").disagreements


def test_no_mutated_report_and_no_deep_nesting_breaks_the_reader():
    """Of the fuzzer's reports some; `fuzz_reports.py` reads a million."""
    assert fuzz(4_000, seed=7) > 1_000
    run = read_reports(ExecResult(exit_code=0), b"[" * 200_000, None)
    assert run.disagreements[0] == "the channel holds a line that is no report"
