"""Reads the three reports of a run - private channel, exit code, junit - and compares them.

All three come from a process that untrusted code ran in, so every field is checked for its type
before it is used. Not here: what a disagreement means (`katgym_envs.swe.grading`).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.test_run.test_run_result import TestResult, TestRun

_EXIT_ALL_PASSED, _EXIT_SOME_FAILED = 0, 1
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
    """A module or class that could not be collected, or was skipped."""

    node: str
    text: str
    outcome: Literal["failed", "skipped"] = "failed"


class Internal(_Line):
    """Pytest met an error of its own."""


class End(_Line):
    """Pytest came to its end."""

    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    is_interrupted: bool = False
    """Whether `pytest.exit` or a `KeyboardInterrupt` ended the tests; the exit code is theirs."""
    reached: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=1000)] = []


_LINE = msgspec.json.Decoder(Hello | Collected | Test | Uncollected | Internal | End)


@dataclass
class _Reports:
    """The channel's lines, sorted by kind."""

    num_hello: int = 0
    collected: list[tuple[str, str, int, str]] = field(default_factory=list)
    num_collected: int = 0
    tests: dict[int, list[Test]] = field(default_factory=dict)
    uncollected: list[Uncollected] = field(default_factory=list)
    num_internal: int = 0
    ends: list[End] = field(default_factory=list)
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
        problems += _junit_problems(junit, reports)
    errors = [u for u in reports.uncollected if u.outcome == "failed"]
    reached = [pair for end in reports.ends for pair in end.reached]
    durations = [r.duration_s for r in results]
    return TestRun(
        results=results,
        execution=execution,
        was_started=reports.num_hello > 0,
        is_finished=is_finished,
        disagreements=tuple(problems),
        collection_errors=tuple(f"{u.node}\n{u.text}".strip()[-_MAX_TEXT:] for u in errors),
        tests_s=sum(durations),
        session_s=execution.wall_s,
        reached=tuple((path[:_MAX_TEXT], what[:_MAX_TEXT]) for path, what in reached),
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
            case Uncollected():
                reports.uncollected.append(line)
            case Internal():
                reports.num_internal += 1
            case End():
                reports.ends.append(line)
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
    """Return the status of a test and the phase that decided it, from its phases.

    What failed decides, its call first, then what was skipped; a skip in the tear-down leaves a
    test passed, and so does one of a subtest.
    """
    main = {p.when: p for p in phases if not p.subtest}
    names = [p.when for p in phases if not p.subtest]
    if names not in (["setup", "call", "teardown"], ["setup", "teardown"]):
        return TestStatus.MISSING, ""
    if any(p.outcome == "failed" for p in phases if p.when == "call"):
        return TestStatus.FAILED, "call"
    for name, phase in main.items():
        if phase.outcome == "failed":
            return TestStatus.ERROR, name
    for name, phase in main.items():
        if phase.outcome == "skipped" and name != "teardown":
            return (TestStatus.XFAILED if phase.xfail else TestStatus.SKIPPED), name
    if len(main) != 3:
        return TestStatus.MISSING, ""
    return (TestStatus.XPASSED, "call") if main["call"].xfail else (TestStatus.PASSED, "")


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
    end = reports.ends[0]
    if code != end.exit_code:
        return [f"exit code {code}, but the channel reports {end.exit_code}"]
    if end.is_interrupted:
        return []
    num_bad = sum(r.status in _BAD for r in results)
    num_bad += sum(u.outcome == "failed" for u in reports.uncollected)
    num_missing = sum(r.status is TestStatus.MISSING for r in results)
    if code == _EXIT_ALL_PASSED and (num_bad or num_missing or not results):
        return ["exit code 0, but the channel reports tests that did not pass"]
    if code == _EXIT_SOME_FAILED and not num_bad and not num_missing:
        return ["exit code 1, but the channel reports no test that failed"]
    return []


def _junit_problems(document: bytes | None, reports: _Reports) -> list[str]:
    if document is None:
        return ["pytest came to its end without writing its junit report"]
    try:
        cases = _junit_cases(document)
    except (ElementTree.ParseError, ValueError) as e:
        return [f"the junit report is unreadable ({type(e).__name__})"]
    if cases != _expected_cases(reports):
        return ["the junit report and the channel disagree about the tests"]
    return []


_TAGS = ("error", "failure", "skipped")
_Case = tuple[str, tuple[int, ...]]
"""Name of a junit case, without parameters, and how many of `_TAGS` it has."""
_NO_XML = re.compile("[^\t\n\r -~\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no character for, and DEL, which pytest escapes as well."""


def _expected_cases(reports: _Reports) -> Counter[_Case]:
    """Return the cases that pytest writes into its junit file when it reports what was told."""
    cases: Counter[_Case] = Counter()
    for index, told in reports.tests.items():
        if 0 <= index < len(reports.collected):
            name = _junit_name(reports.collected[index][3])
            for test in told:
                cases.update(_cases_of_test(name, test.phases))
    others = {"internal": Counter(error=reports.num_internal)}
    for uncollected in reports.uncollected:
        tags = others.setdefault(uncollected.node, Counter())
        tags["error" if uncollected.outcome == "failed" else "skipped"] += 1
    cases.update(_case(_junit_name(node), tags) for node, tags in others.items() if tags.total())
    return cases


def _case(name: str, tags: Mapping[str, int]) -> _Case:
    return name, tuple(tags.get(tag, 0) for tag in _TAGS)


def _junit_name(node_id: str) -> str:
    path, is_test, names = node_id.partition("::")
    name = names.partition("[")[0].rpartition("::")[2]
    if not is_test:
        name = path.removesuffix(".py").replace("/", ".").partition("[")[0]
    return _NO_XML.sub(lambda found: f"#x{ord(found[0]):02X}", name)


def _cases_of_test(name: str, phases: list[TestPhase]) -> list[_Case]:
    """Return a test's cases: one, or a second one for a failed tear-down after a failed call.

    A test that was ended during its call has one without a name.
    """
    cases: list[_Case] = []
    tags = Counter[str]()
    has_name, has_failed = False, False
    for phase in phases:
        is_call = phase.when == "call"
        has_name |= is_call or phase.when == "teardown" or phase.outcome != "passed"
        if phase.outcome == "skipped":
            tags["skipped"] += 1
        elif phase.outcome == "failed":
            if phase.when == "teardown" and has_failed:
                cases.append(_case(name, tags))
                tags = Counter()
            tags["failure" if is_call else "error"] += 1
            has_failed |= is_call
    return [*cases, _case(name if has_name else "", tags)]


class _JunitCases:
    """Counts a junit report's cases as it is parsed: a tree could be huge."""

    def __init__(self) -> None:
        self.cases: Counter[_Case] = Counter()
        self.name, self.tags = "", Counter[str]()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.tags[tag] += 1
        if tag == "testcase":
            self.name, self.tags = attributes.get("name", "").partition("[")[0], Counter()

    def end(self, tag: str) -> None:
        if tag == "testcase":
            self.cases[_case(self.name, self.tags)] += 1

    def close(self) -> None:
        """Called by the parser at the end."""


def _junit_cases(document: bytes) -> Counter[_Case]:
    text = document.decode("utf-8")  # given as text, the encoding that it declares is not looked up
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("a junit report declares no entities")
    counted = _JunitCases()
    # pytest does not escape the names of classes.
    ElementTree.XML(_NO_XML.sub("?", text), ElementTree.XMLParser(target=counted))
    return counted.cases
