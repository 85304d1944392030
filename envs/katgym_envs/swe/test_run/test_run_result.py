"""Result of one run of tests, as it was reported and as far as the reports agree.

Untrusted code ran in the process that reported it: evidence, not truth. The grader's rounds
(`katgym_envs.swe.grading`) make it reliable. Not here: running (`runner.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.sandbox import ExecResult
from katgym_envs.swe.grading.report import TestStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One case of one test function.

    Example:
        TestResult(path="t.py", qualname="TestA.test_b", ordinal=0, node_id="t.py::TestA::test_b",
                   status=TestStatus.PASSED)
    """

    __test__ = False

    path: str
    qualname: str
    """As `TestFunction.qualname`: classes and function, joined by `::`."""
    ordinal: int
    """Position among the function's cases, in the order of collection."""
    node_id: str
    status: TestStatus
    duration_s: float = 0.0
    """Set-up, call and tear-down."""
    phase: str = ""
    """"setup", "call" or "teardown", of a failure."""
    exception: str = ""
    """Type name of what the failing phase raised."""
    is_assertion: bool = False
    """Whether that was an `AssertionError` or `pytest.fail`."""
    message: str = ""
    """What pytest says of it; only in a detailed run."""
    place: str = ""
    """Where in its module the test failed: "LINE:HIT" of the statement, a frame each, joined by
    ">", outermost first. HIT counts how often it was reached. Only in a detailed run."""
    compared: tuple[str, str] | None = None
    """`repr` of both sides of the equality that did not hold, when both are short literals. Only in
    a detailed run."""
    noted: tuple[tuple[int, tuple[str | None, ...]], ...] = ()
    """Number of a place in a blind module (`canaries/blind.py`), and texts of the values there;
    None for one that cannot be told."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Identify the case independently of pytest's id for it."""
        return (self.path, self.qualname, self.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """One run of tests."""

    __test__ = False

    results: tuple[TestResult, ...]
    """One a collected case, in the order they were collected; `MISSING` if it was not run to its
    end, or was reported more than once."""
    execution: ExecResult
    was_started: bool
    """Whether our own program began; if not, the machinery failed, not the tests."""
    is_finished: bool
    """Whether pytest came to its end."""
    disagreements: tuple[str, ...] = ()
    """Where channel, exit code and junit contradict each other; empty for an honest process."""
    collection_errors: tuple[str, ...] = ()
    """Files pytest could not collect, with the reason when detailed."""
    tests_s: float = 0.0
    """Wall seconds of the tests themselves: all phases summed."""
    session_s: float = 0.0
    """Wall seconds of pytest's session: collection and tests."""
    reached: tuple[tuple[str, str], ...] = ()
    """Watched module, and the audit event of Python by which it reached beyond the product."""

    @property
    def is_timed_out(self) -> bool:
        """Whether the run was ended by its wall limit."""
        return self.execution.is_timed_out

    @property
    def all_passed(self) -> bool:
        """Whether it came to its end, every report agrees, and every test passed."""
        return (
            self.is_finished
            and not self.disagreements
            and not self.collection_errors
            and bool(self.results)
            and all(r.status is TestStatus.PASSED for r in self.results)
        )

    def statuses(self) -> dict[str, TestStatus]:
        """Return node id -> status."""
        return {r.node_id: r.status for r in self.results}

    def by_key(self) -> dict[tuple[str, str, int], TestResult]:
        """Return (path, qualname, ordinal) -> result."""
        return {r.key: r for r in self.results}
