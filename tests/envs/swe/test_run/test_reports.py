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


def test_statuses_of_phases():
    def status(*given: dict[str, object]) -> TestStatus:
        run = read(HELLO, COLLECTED, {"kind": "test", "index": 0, "phases": list(given)}, END)
        return run.results[0].status

    good = phases()
    assert status(*phases("failed")) is TestStatus.FAILED
    assert status(*phases("skipped")) is TestStatus.SKIPPED
    assert status(*phases("skipped", xfail=True)) is TestStatus.XFAILED
    assert status(*phases("passed", xfail=True)) is TestStatus.XPASSED
    assert status({**good[0], "outcome": "failed"}, good[2]) is TestStatus.ERROR
    assert status(good[0], good[1], {**good[2], "outcome": "failed"}) is TestStatus.ERROR
    assert status(good[0], good[2]) is TestStatus.MISSING
    assert status(good[1]) is TestStatus.MISSING
    assert status(*good, {**good[1], "subtest": True, "outcome": "failed"}) is TestStatus.FAILED


def test_no_mutated_report_and_no_deep_nesting_breaks_the_reader():
    """Of the fuzzer's reports some; `fuzz_reports.py` reads a million."""
    assert fuzz(4_000, seed=7) > 1_000
    run = read_reports(ExecResult(exit_code=0), b"[" * 200_000, None)
    assert run.disagreements[0] == "the channel holds a line that is no report"
