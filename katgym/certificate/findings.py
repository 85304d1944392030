"""Typed results of checks, and the certificate they add up to.

Not here: the checks (`checks/`), measuring floors (`floors.py`), JSON files and badges
(`published.py`, `badge.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MARK_FROM = 0.3
"""A constant answer that scores more than this is marked wherever the env is listed."""


Result = str | tuple[str, Mapping[str, float]]
"""What a check that passes returns: what was measured, and its figures where it has some."""


class CheckStatus(StrEnum):
    """Verdict of one check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not applicable; the detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One named check; `detail` says what was measured, or what is wrong.

    Example:
        Check(name="leak_length", status="failed", detail="the longest option is right ...",
              figures={"score": 1.0, "chance": 0.25, "num_tasks": 200, "p": 1e-120})
    """

    name: str
    status: CheckStatus
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What players without skill earn on a level's test tasks, as means; None: does not apply.

    Example:
        Floor(level="6", num_tasks=200, constant=0.06, constant_action="Answer: 1", random=0.0,
              echo=0.0, first_option=None, metadata=0.05, oracle=1.0)
    """

    level: str
    """Name of the level; "" for the env as it is made."""
    num_tasks: int
    constant: float | None = None
    """Best of the oracle's most frequent actions on train tasks, said at every turn."""
    constant_action: str = ""
    random: float | None = None
    echo: float | None = None
    """Says what it was last told."""
    first_option: float | None = None
    metadata: float | None = None
    """A regression from the task's id, index and layout to the frequent answers."""
    oracle: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All checks of one env, its floors, and the versions they hold for."""

    env_id: str
    checks: Sequence[Check]
    floors: Sequence[Floor] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """Name of a package or plugin -> its version."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """What the env was made with, beyond its defaults."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing failed; a skipped check is no failure."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status is CheckStatus.FAILED]

    @property
    def marks(self) -> list[str]:
        """What a reader of any score in this env has to know, a short text each."""
        marked = [f for f in self.floors if (f.constant or 0.0) > MARK_FROM]
        return [
            f"constant {floor.constant:.0%}{f' at level {floor.level}' if floor.level else ''}"
            for floor in marked
        ]

    def raise_for_failures(self) -> None:
        """Raise `AssertionError` that lists every failed check, for use in tests."""
        if not self.ok:
            lines = "\n".join(f"  {check.name}: {check.detail}" for check in self.failures)
            raise AssertionError(f"{self.env_id} fails {len(self.failures)} check(s):\n{lines}")


class Failed(Exception):
    """A check's finding, with its figures."""

    def __init__(self, detail: str, **figures: float) -> None:
        super().__init__(detail)
        self.figures = figures


class Skipped(Exception):
    """Why a check does not apply."""
