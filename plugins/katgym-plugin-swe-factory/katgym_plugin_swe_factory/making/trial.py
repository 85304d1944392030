"""The result of one candidate, a bug put into a package or a pull request: a task, or why none.

Not here: trying one (`mutant_trial.py`, `pull_requests/pull_trial.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

VALID = "valid"
INFRASTRUCTURE = "infrastructure"
"""Outcome of candidates that the machine failed to try; the next run tries them again."""
T = TypeVar("T")


class Refused(Exception):
    """A candidate makes no task.

    Example:
        Refused("issue_content", "14 characters besides links, at least 60 are asked")
    """

    def __init__(self, outcome: str, reason: str = "") -> None:
        """Name what refuses it: a `TrialOutcome`, or a filter of pull requests."""
        super().__init__(f"{outcome}: {reason}")
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Generic[T]):
    """A task, or why there is none."""

    outcome: str
    """"valid" for a task; else as `Refused`."""
    reason: str = ""
    task: T | None = None
