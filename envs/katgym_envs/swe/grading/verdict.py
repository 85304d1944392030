"""Verdict over the rounds of a grading.

Not here: running them (`rounds.py`), the report's shape (`report.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from katgym_envs.swe.grading.report import Outcome, TestStatus
from katgym_envs.swe.grading.rounds import RoundResult
from katgym_envs.swe.hidden import HiddenTests


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeVerdict:
    """The outcome with what it rests on."""

    outcome: Outcome
    reason: str
    fail_to_pass: Mapping[str, TestStatus]
    pass_to_pass: Mapping[str, TestStatus]
    canaries_passed: tuple[str, ...] = ()
    inconsistent: tuple[str, ...] = ()
    """Tests that passed in one round and not in another: flaky, or a forger's guess."""


def judge(
    hidden: HiddenTests, rounds: Sequence[RoundResult], unproven: Sequence[str] = ()
) -> GradeVerdict:
    """Return the verdict on rounds and on `unproven` tests (`BlindProof.missing`).

    Rules, the first that applies: (1) reports of a round contradict each other, or a test passes
    both as itself and with a wrong expected value: tampered. (2) Every test was itself at least
    once and passed each time, every canary failed by itself, and in the blind round every value was
    computed: resolved. (3) All tests passed, but a canary did something else than fail, or a value
    was not computed where it could not be seen: tampered. (4) A round timed out: timeout. (5) Some
    FAIL_TO_PASS tests passed: partial. Else failed.
    """
    f2p = {node: _status(node, rounds) for node in hidden.fail_to_pass}
    p2p = {node: _status(node, rounds) for node in hidden.pass_to_pass}
    passed_as_canary, odd = _canaries(rounds)
    forged = [n for n in passed_as_canary if _has_passed_as_itself(n, rounds)]
    disagreements = [text for r in rounds for text in r.run.disagreements]
    all_passed = bool(f2p) and all(s is TestStatus.PASSED for s in [*f2p.values(), *p2p.values()])
    is_late = any(r.run.is_timed_out for r in rounds)
    if disagreements:
        outcome, reason = Outcome.TAMPERED, disagreements[0]
    elif forged:
        outcome = Outcome.TAMPERED
        reason = f"{len(forged)} tests pass with a wrong expected value as well"
    elif all_passed and (odd or passed_as_canary):
        outcome, reason = Outcome.TAMPERED, "tests with a wrong expected value did not fail"
    elif all_passed and unproven:
        outcome = Outcome.TAMPERED
        reason = f"{len(unproven)} tests pass only while the expected values are to be seen"
    elif all_passed:
        outcome, reason = Outcome.RESOLVED, "every test passes, every canary fails"
    elif is_late:
        outcome, reason = Outcome.TIMEOUT, "the tests did not end in time"
    elif any(s is TestStatus.PASSED for s in f2p.values()):
        outcome, reason = Outcome.PARTIAL, _counts(f2p, p2p)
    else:
        outcome, reason = Outcome.FAILED, _why_failed(rounds) or _counts(f2p, p2p)
    return GradeVerdict(
        outcome=outcome,
        reason=reason,
        fail_to_pass=f2p,
        pass_to_pass=p2p,
        canaries_passed=tuple(sorted(passed_as_canary)),
        inconsistent=tuple(
            node
            for node in [*f2p, *p2p]
            if len(seen := set(_statuses(node, rounds))) > 1 and TestStatus.PASSED in seen
        ),
    )


def is_decided(hidden: HiddenTests, rounds: Sequence[RoundResult]) -> bool:
    """Return whether more rounds could change nothing of the outcome.

    So it is when something was forged, and when every test was itself once and none that is to fix
    passed. A failure alone does not end it: what is left may count as partial, and has to be safe.
    """
    passed_as_canary, _ = _canaries(rounds)
    if any(_has_passed_as_itself(n, rounds) for n in passed_as_canary):
        return True
    if any(r.run.disagreements or r.run.is_timed_out for r in rounds):
        return True
    seen = [_statuses(node, rounds) for node in hidden.fail_to_pass]
    if any(TestStatus.PASSED in statuses for statuses in seen):
        return False
    return all(seen) and all(_statuses(node, rounds) for node in hidden.pass_to_pass)


def _statuses(node: str, rounds: Sequence[RoundResult]) -> list[TestStatus]:
    """Return a test's status in each round in which it was itself."""
    return [r.status(node) for r in rounds if r.has(node) and r.round.is_itself(node)]


def _status(node: str, rounds: Sequence[RoundResult]) -> TestStatus:
    found = _statuses(node, rounds)
    bad = [status for status in found if status is not TestStatus.PASSED]
    return bad[0] if bad else found[0] if found else TestStatus.MISSING


def _has_passed_as_itself(node: str, rounds: Sequence[RoundResult]) -> bool:
    return TestStatus.PASSED in _statuses(node, rounds)


def _canaries(rounds: Sequence[RoundResult]) -> tuple[set[str], set[str]]:
    """Return the tests that passed as a canary, and those that neither passed nor failed."""
    passed, odd = set(), set()
    for result in rounds:
        for canary in result.round.canaries:
            for node in canary.fails:
                if not result.has(node) or node in result.excused:
                    continue
                status = result.status(node)
                if status is TestStatus.PASSED:
                    passed.add(node)
                elif status is not TestStatus.FAILED:
                    odd.add(node)
    return passed, odd


def _counts(f2p: Mapping[str, TestStatus], p2p: Mapping[str, TestStatus]) -> str:
    def count(tests: Mapping[str, TestStatus]) -> str:
        return f"{sum(s is TestStatus.PASSED for s in tests.values())} of {len(tests)}"

    return f"{count(f2p)} FAIL_TO_PASS and {count(p2p)} PASS_TO_PASS tests pass"


def _why_failed(rounds: Sequence[RoundResult]) -> str:
    """Return why a round did not come to its end, if one did not."""
    for result in rounds:
        run = result.run
        if not run.is_finished:
            limit = run.execution.limit_hit
            end = f"limit {limit}" if limit else f"exit code {run.execution.exit_code}"
            if run.execution.signal is not None and not limit:
                end = f"signal {run.execution.signal}"
            return f"the test process ended early ({end})"
        if run.collection_errors:
            return "the tests cannot be imported"
    return ""
