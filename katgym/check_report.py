"""The report that `check_env` returns. Not here: the checks (`checks.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """Outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One named check; `detail` says what was measured, or what is wrong."""

    name: str
    status: CheckStatus
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All checks of one env."""

    env_id: str
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a skipped check is no failure."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status is CheckStatus.FAILED]

    def raise_for_failures(self) -> None:
        """Raise `AssertionError` that lists every failed check, for use in tests."""
        if not self.ok:
            lines = "\n".join(f"  {check.name}: {check.detail}" for check in self.failures)
            raise AssertionError(f"{self.env_id} fails {len(self.failures)} check(s):\n{lines}")
