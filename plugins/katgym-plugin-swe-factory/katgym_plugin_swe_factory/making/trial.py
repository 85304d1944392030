"""The result of one candidate, a bug put into a package or a pull request: a task, or why none.

Not here: trying one (`mutant_trial.py`, `pull_requests/pull_trial.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from katgym.errors import InfrastructureError

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


async def settle(making: Awaitable[T]) -> Trial[T]:
    """Return what comes of making a task, which may be refused, or fail by the machine."""
    try:
        return Trial(outcome=VALID, task=await making)
    except Refused as e:
        return Trial(outcome=e.outcome, reason=e.reason)
    except InfrastructureError as e:
        return Trial(outcome=INFRASTRUCTURE, reason=str(e))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[T]):
    """A trial, and what the set writes down of it."""

    trial: Trial[T]
    key: str = ""
    """Digest or text of all that the trial depends on; "" for one that is not written down."""
    notes: tuple[Mapping[str, Any], ...] = ()
    """What else was learnt, as JSON values."""
    is_old: bool = False
    """Whether an earlier run made it."""
