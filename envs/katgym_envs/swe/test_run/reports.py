"""Reads the three reports of a run - private channel, exit code, junit - and compares them.

All three come from a process that untrusted code ran in, so every field is checked for its type
before it is used. Not here: what a disagreement means (`katgym_envs.swe.grading`).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.test_run.test_run_result import TestResult, TestRun

_EXIT_ALL_PASSED, _EXIT_SOME_FAILED, _EXIT_INTERRUPTED, _EXIT_NONE = 0, 1, 2, 5
_PLACE = re.compile(r"[0-9:>]*")
_MAX_TEXT = 4000
_BAD = (TestStatus.FAILED, TestStatus.ERROR)


class _Line(msgspec.Struct, tag_field="kind", tag=str.lower):
    """A line of the channel; the tag is the class's name."""


class Hello(_Line):
    """Our own program began."""


class Collected(_Line):
    """The cases: path, qualname, ordinal, node id."""

    tests: list[tuple[str, str, int, str]]


class TestPhase(msgspec.Struct):
    """Set-up, call or tear-down of a case, or a subtest of its call."""

    when: Literal["setup", "call", "teardown"]
    outcome: Literal["passed", "failed", "skipped"]
    xfail: bool = False
    duration: float = 0.0
    subtest: bool = False
    message: str = ""


class Test(_Line):
    """A case that came to its end."""

    index: int
    phases: list[TestPhase]
    exception: str = ""
    is_assertion: bool = False
    place: str = ""
    compared: tuple[str, str] | None = None
    noted: list[tuple[int, tuple[str | None, ...]]] = []


class Uncollected(_Line):
    """A module that could not be imported."""

    node: str
    text: str


class End(_Line):
    """Pytest came to its end."""

    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    reached: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=1000)] = []


_LINE = msgspec.json.Decoder(Hello | Collected | Test | Uncollected | End)


@dataclass
class _Reports:
    """The channel's lines, sorted by kind."""

    num_hello: int = 0
    collected: list[tuple[str, str, int, str]] = field(default_factory=list)
    num_collected: int = 0
    tests: dict[int, list[Test]] = field(default_factory=dict)
    uncollected: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    reached: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_reports(execution: ExecResult, reported: bytes, junit: bytes | None) -> TestRun:
    """Return what a run amounts to; never raises, whatever it reports."""
    reports = _sort_reports(reported)
    results = tuple(_result(reports, i, case) for i, case in enumerate(reports.collected))
    is_finished = len(reports.ends) == 1
    problems = list(reports.problems)
    problems += _duplicates(reports)
    problems += _exit_problems(execution, reports, results)
    if is_finished:
        problems += _junit_problems(junit, results)
    durations = [r.duration_s for r in results]
    return TestRun(
        results=results,
        execution=execution,
        was_started=reports.num_hello > 0,
        is_finished=is_finished,
        disagreements=tuple(problems),
        collection_errors=tuple(reports.uncollected),
        tests_s=sum(durations),
        session_s=execution.wall_s,
        reached=tuple((path[:_MAX_TEXT], what[:_MAX_TEXT]) for path, what in reports.reached),
    )


def _sort_reports(reported: bytes) -> _Reports:
    reports = _Reports()
    for text in reported.splitlines():
        try:
            line = _LINE.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            reports.problems.append("the channel holds a line that is no report")
            break
        match line:
            case Hello():
                reports.num_hello += 1
            case Collected(tests):
                reports.num_collected += 1
                reports.collected += tests
            case Test(index):
                reports.tests.setdefault(index, []).append(line)
            case Uncollected(node, why):
                reports.uncollected.append(f"{node}\n{why}".strip()[-_MAX_TEXT:])
            case End(exit_code, reached):
                reports.ends.append(exit_code)
                reports.reached += reached
    return reports


def _result(reports: _Reports, index: int, case: tuple[str, str, int, str]) -> TestResult:
    path, qualname, ordinal, node_id = case
    missing = TestResult(
        path=path, qualname=qualname, ordinal=ordinal, node_id=node_id, status=TestStatus.MISSING
    )
    told = reports.tests.get(index, [])
    if len(told) != 1:
        return missing
    [test] = told
    status, phase = _status(test.phases)
    done = replace(
        missing,
        status=status,
        duration_s=sum(p.duration for p in test.phases if 0 <= p.duration < 1e6),
        phase=phase,
        noted=tuple(test.noted),
        message=next((p.message for p in test.phases if p.outcome == "failed"), "")[-_MAX_TEXT:],
    )
    if status not in _BAD:
        return done
    place = test.place[:_MAX_TEXT]
    sides = test.compared
    return replace(
        done,
        exception=test.exception[:200],
        is_assertion=test.is_assertion,
        place=place if _PLACE.fullmatch(place) else "",
        compared=sides if sides and max(map(len, sides)) <= _MAX_TEXT else None,
    )


def _status(phases: list[TestPhase]) -> tuple[TestStatus, str]:
    """Return the status of a test and the phase that decided it, from its phases."""
    main = {p.when: p for p in phases if not p.subtest}
    names = [p.when for p in phases if not p.subtest]
    if names not in (["setup", "call", "teardown"], ["setup", "teardown"]):
        return TestStatus.MISSING, ""
    for name, phase in main.items():
        if phase.outcome == "failed":
            return (TestStatus.FAILED if name == "call" else TestStatus.ERROR), name
        if phase.xfail:
            is_pass = phase.outcome == "passed"
            return (TestStatus.XPASSED if is_pass else TestStatus.XFAILED), name
        if phase.outcome == "skipped":
            return TestStatus.SKIPPED, name
    if any(p.outcome == "failed" for p in phases):
        return TestStatus.FAILED, "call"
    return (TestStatus.PASSED if len(main) == 3 else TestStatus.MISSING), ""


def _duplicates(reports: _Reports) -> list[str]:
    problems = []
    if reports.num_hello > 1 or reports.num_collected > 1 or len(reports.ends) > 1:
        problems.append("the channel reports a step of the run more than once")
    if any(len(told) > 1 for told in reports.tests.values()):
        problems.append("the channel reports a test more than once")
    if any(not 0 <= index < len(reports.collected) for index in reports.tests):
        problems.append("the channel reports a test that was not collected")
    keys = Counter((path, name, ordinal) for path, name, ordinal, _ in reports.collected)
    if any(num > 1 for num in keys.values()):
        problems.append("the channel reports a collected test more than once")
    return problems


def _exit_problems(
    execution: ExecResult, reports: _Reports, results: tuple[TestResult, ...]
) -> list[str]:
    code = execution.exit_code
    if len(reports.ends) != 1:
        return ["it exited with 0 before pytest came to its end"] if code == 0 else []
    if execution.is_timed_out or code is None:
        return []
    if code != reports.ends[0]:
        return [f"exit code {code}, but the channel reports {reports.ends[0]}"]
    num_bad = sum(r.status in _BAD for r in results) + len(reports.uncollected)
    num_missing = sum(r.status is TestStatus.MISSING for r in results)
    if code == _EXIT_ALL_PASSED and (num_bad or num_missing or not results):
        return ["exit code 0, but the channel reports tests that did not pass"]
    if code == _EXIT_SOME_FAILED and not num_bad and not num_missing:
        return ["exit code 1, but the channel reports no test that failed"]
    return []


def _junit_problems(document: bytes | None, results: tuple[TestResult, ...]) -> list[str]:
    if document is None:
        return ["pytest came to its end without writing its junit report"]
    try:
        cases = _junit_cases(document)
    except (ElementTree.ParseError, ValueError) as e:
        return [f"the junit report is unreadable ({type(e).__name__})"]
    told: Counter[tuple[str, str]] = Counter()
    for result in results:
        if result.status is not TestStatus.MISSING:
            name = result.node_id.split("[", 1)[0].rpartition("::")[2]
            told[name, _JUNIT_KINDS[result.status]] += 1
    # What could not be imported, or was skipped as a module, is a case of its own in junit.
    names = {name for name, _ in told}
    cases = Counter({k: n for k, n in cases.items() if k[0] in names or k[1] == "passed"})
    if cases != told:
        return ["the junit report and the channel disagree about the tests"]
    return []


_JUNIT_KINDS = {
    TestStatus.PASSED: "passed",
    TestStatus.FAILED: "failed",
    TestStatus.ERROR: "failed",
    TestStatus.SKIPPED: "skipped",
    TestStatus.XFAILED: "skipped",
    TestStatus.XPASSED: "passed",
}


class _JunitCases:
    """Counts a junit report's cases by name and kind as it is parsed: a tree could be huge."""

    def __init__(self) -> None:
        self.cases: Counter[tuple[str, str]] = Counter()
        self.name, self.kinds = "", set[str]()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.kinds.add(tag)
        if tag == "testcase":
            self.name, self.kinds = attributes.get("name", "").split("[", 1)[0], set()

    def end(self, tag: str) -> None:
        if tag == "testcase":
            kind = "skipped" if "skipped" in self.kinds else "passed"
            self.cases[self.name, "failed" if self.kinds & {"failure", "error"} else kind] += 1

    def close(self) -> None:
        """Called by the parser at the end."""


def _junit_cases(document: bytes) -> Counter[tuple[str, str]]:
    text = document.decode("utf-8")  # given as text, the encoding that it declares is not looked up
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("a junit report declares no entities")
    counted = _JunitCases()
    ElementTree.XML(text, ElementTree.XMLParser(target=counted))
    return counted.cases
