"""Reads the three reports of a run - private channel, exit code, junit - and compares them.

All three come from a process that untrusted code ran in, so every field is checked for its type
before it is used. Not here: what a disagreement means (`katgym_envs.swe.grading`).
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.test_run.test_run_result import TestResult, TestRun

_EXIT_ALL_PASSED, _EXIT_SOME_FAILED, _EXIT_INTERRUPTED, _EXIT_NONE = 0, 1, 2, 5
_PLACE = re.compile(r"[0-9:>]*")
_MAX_TEXT = 4000
_BAD = (TestStatus.FAILED, TestStatus.ERROR)


@dataclass
class _Reports:
    """The channel's lines, sorted by kind."""

    num_hello: int = 0
    collected: list[list[Any]] = field(default_factory=list)
    num_collected: int = 0
    tests: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    uncollected: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_reports(execution: ExecResult, reported: bytes, junit: bytes | None) -> TestRun:
    """Return what a run amounts to."""
    reports = _sort_reports(reported)
    results = tuple(_result(reports, i, test) for i, test in enumerate(reports.collected))
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
    )


def _sort_reports(reported: bytes) -> _Reports:
    reports = _Reports()
    for line in reported.splitlines():
        try:
            data = json.loads(line)
            kind = data["kind"]
            if kind == "hello":
                reports.num_hello += 1
            elif kind == "collected":
                reports.num_collected += 1
                for path, qualname, ordinal, node_id in data["tests"]:
                    names = (path, qualname, node_id)
                    if not all(isinstance(n, str) for n in names) or not isinstance(ordinal, int):
                        raise TypeError("a collected test is three texts and a number")
                    reports.collected.append([path, qualname, ordinal, node_id])
            elif kind == "test":
                if not isinstance(data["phases"], list) or not isinstance(data["index"], int):
                    raise TypeError("a test is an index and a list of phases")
                reports.tests.setdefault(data["index"], []).append(data)
            elif kind == "uncollected":
                reports.uncollected.append(f"{data['node']}\n{data['text']}".strip()[-_MAX_TEXT:])
            elif kind == "end":
                reports.ends.append(int(data["exit_code"]))
            else:
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            reports.problems.append("the channel holds a line that is no report")
            break
    return reports


def _result(reports: _Reports, index: int, test: list[Any]) -> TestResult:
    path, qualname, ordinal, node_id = test
    missing = TestResult(
        path=path, qualname=qualname, ordinal=ordinal, node_id=node_id, status=TestStatus.MISSING
    )
    told = reports.tests.get(index, [])
    if len(told) != 1:
        return missing
    data = told[0]
    status, phase = _status(data["phases"])
    place = str(data.get("place", ""))[:_MAX_TEXT]
    failing = [p for p in data["phases"] if p.get("outcome") == "failed"]
    is_bad = status in _BAD
    return replace(
        missing,
        status=status,
        duration_s=sum(_seconds(p.get("duration")) for p in data["phases"]),
        phase=phase,
        exception=str(data.get("exception", ""))[:200] if is_bad else "",
        is_assertion=is_bad and data.get("is_assertion") is True,
        message=str(failing[0].get("message", ""))[-_MAX_TEXT:] if failing else "",
        place=place if is_bad and _PLACE.fullmatch(place) else "",
        compared=_read_comparison(data.get("compared")) if is_bad else None,
    )


def _read_comparison(told: object) -> tuple[str, str] | None:
    if not isinstance(told, list) or len(told) != 2:
        return None
    left, right = told
    if not isinstance(left, str) or not isinstance(right, str):
        return None
    return None if max(len(left), len(right)) > _MAX_TEXT else (left, right)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e6 else 0.0


def _status(phases: list[dict[str, Any]]) -> tuple[TestStatus, str]:
    """Return the status of a test and the phase that decided it, from its phases."""
    main = [p for p in phases if p.get("subtest") is not True]
    names = [p.get("when") for p in main]
    if names not in (["setup", "call", "teardown"], ["setup", "teardown"]):
        return TestStatus.MISSING, ""
    by_name = {p["when"]: p for p in main}
    for name, on_failure in (
        ("setup", TestStatus.ERROR),
        ("call", TestStatus.FAILED),
        ("teardown", TestStatus.ERROR),
    ):
        phase = by_name.get(name, {})
        if phase.get("outcome") == "failed":
            return on_failure, name
        if phase.get("xfail") is True:
            is_pass = phase.get("outcome") == "passed"
            return (TestStatus.XPASSED if is_pass else TestStatus.XFAILED), name
        if phase.get("outcome") == "skipped":
            return TestStatus.SKIPPED, name
    if any(p.get("outcome") == "failed" for p in phases):
        return TestStatus.FAILED, "call"
    is_passed = len(main) == 3 and all(p.get("outcome") == "passed" for p in main)
    return (TestStatus.PASSED if is_passed else TestStatus.MISSING), ""


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


def _junit_cases(document: bytes) -> Counter[tuple[str, str]]:
    if b"<!DOCTYPE" in document or b"<!ENTITY" in document:
        raise ValueError("a junit report declares no entities")
    cases: dict[tuple[str, str, int], str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for case in ElementTree.fromstring(document).iter("testcase"):
        name = case.get("name", "")
        kinds = {child.tag for child in case}
        key = (case.get("classname", ""), name)
        seen[key] += 1
        kind = "skipped" if "skipped" in kinds else "passed"
        cases[(*key, seen[key])] = "failed" if kinds & {"failure", "error"} else kind
    return Counter((name.split("[", 1)[0], kind) for (_, name, _), kind in cases.items())
