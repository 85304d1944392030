"""Settings of a set that is made, and of one made from packages.

Not here: those of pull requests (`pull_requests/import_config.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from katgym.environment.task import SPLITS
from katgym.errors import UsageError, unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfig:
    """Where a set is made, and how much of it."""

    out: Path
    """The set's folder."""
    num_tasks: int | None = None
    """Stop at so many tasks; without it every candidate is tried."""
    num_workers: int = 1
    """Candidates tried."""

    def __post_init__(self) -> None:
        for name in ("num_tasks", "num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeConfig(SetConfig):
    """What is made from packages."""

    packages: tuple[str, ...]
    """A package whose sdist ships tests: `NAME==VERSION`, or `NAME` of a known one."""
    num_workers: int = 2
    """Mutants tried."""
    seed: int = 0
    """Orders the mutants."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Package name -> split of all its tasks; the others have the one of the table, or "train"."""
    timeout_s: float = 20.0
    """Processor seconds that one run of all tests of a package may take."""

    def __post_init__(self) -> None:
        SetConfig.__post_init__(self)  # super() has no class here: slots make another one
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s is above 0, got {self.timeout_s:g}")
        for name, split in self.splits.items():
            if split not in SPLITS:
                raise UsageError(f"split of {name!r}: {unknown_name('split', split, SPLITS)}")
