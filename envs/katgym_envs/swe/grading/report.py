"""The grader's report on one patch.

Not here: how it comes about (`grader.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from katgym.environment.reward import Trust


class Outcome(StrEnum):
    """The verdict; only the last is no verdict at all."""

    RESOLVED = "resolved"
    """Every FAIL_TO_PASS and PASS_TO_PASS test passed, every canary failed."""
    PARTIAL = "partial"
    """Some FAIL_TO_PASS tests passed, nothing was forged."""
    FAILED = "failed"
    PATCH_EMPTY = "patch_empty"
    """Nothing is left to grade (also when all changes were to dropped paths)."""
    PATCH_INVALID = "patch_invalid"
    TAMPERED = "tampered"
    """A canary passed, the three reports disagree, or tests pass only while the expected values are
    there to be seen."""
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"
    """Not a verdict: the reward is invalid."""


class TestStatus(StrEnum):
    """What became of one test; everything but PASSED counts as not passed."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    """In set-up, tear-down, collection or import."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    """Not reported, or not exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeReport:
    """The grader's whole answer; it goes to logs and results, never to the policy.

    Example:
        GradeReport(instance_id="toy-1", outcome=Outcome.PARTIAL, fail_to_pass={"t.py::a": "passed",
                    "t.py::b": "failed"}, pass_to_pass={"t.py::c": "passed"})
    """

    instance_id: str
    outcome: Outcome
    reason: str = ""
    """One line for people."""
    fail_to_pass: Mapping[str, TestStatus] = field(default_factory=dict)
    pass_to_pass: Mapping[str, TestStatus] = field(default_factory=dict)
    dropped_paths: Mapping[str, str] = field(default_factory=dict)
    """Path -> why its change was not graded (test infrastructure, protected)."""
    rejected_paths: Mapping[str, str] = field(default_factory=dict)
    """Path -> why it made the patch invalid."""
    num_canaries: int = 0
    canaries_passed: tuple[str, ...] = ()
    """Node ids whose canary passed although it is wrong."""
    num_blind_values: int = 0
    """Places where gold computes a value in the blind round, and a resolving patch the same."""
    trust: Trust | None = None
    """How far the verdict can be trusted; None where no test decided it."""
    trust_reason: str = ""
    """Why it is withheld."""
    suspicions: tuple[str, ...] = ()
    """Patterns in the patch a person may want to read; they decide nothing."""
    num_rounds: int = 0
    tests_s: float = 0.0
    """Wall seconds inside the test processes, all rounds."""
    wall_s: float = 0.0
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    """Provenance of the sandbox it was graded in."""

    @property
    def is_resolved(self) -> bool:
        """Whether the task is solved."""
        return self.outcome is Outcome.RESOLVED

    @property
    def fail_to_pass_fraction(self) -> float:
        """Share of FAIL_TO_PASS tests that passed; 0 unless the outcome is a clean verdict."""
        return self._fraction(self.fail_to_pass, empty=0.0)

    @property
    def pass_to_pass_fraction(self) -> float:
        """Share of PASS_TO_PASS tests that still pass; 1 when there are none."""
        return self._fraction(self.pass_to_pass, empty=1.0)

    def _fraction(self, tests: Mapping[str, TestStatus], *, empty: float) -> float:
        if self.outcome not in (Outcome.RESOLVED, Outcome.PARTIAL, Outcome.FAILED):
            return 0.0
        passed = sum(status is TestStatus.PASSED for status in tests.values())
        return passed / len(tests) if tests else empty

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
