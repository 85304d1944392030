"""Filters and trials of `katgym swe from-prs`: what is asked of a repository and its pull requests.

Not here: the checks (`pull_filters.py`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, fields
from enum import StrEnum

from katgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Bounds; both ends count as inside. None: not asked. The keys of `--filters FILE`."""

    min_stars: int | None = None
    """Stars of the repository, at least."""
    max_stars: int | None = None
    """And at most."""
    min_forks: int | None = None
    """Forks of the repository, at least."""
    is_archived_allowed: bool = True
    """Whether an archived repository is taken."""
    min_activity: int = 1
    """Comments, review comments and reviews of a pull request together."""
    since: datetime.date | None = None
    """Earliest day of the merge, in UTC."""
    until: datetime.date | None = None
    """Latest day of the merge, in UTC."""
    skipped_labels: tuple[str, ...] = ()
    """A pull request with one of these is left out, in any case of letters."""
    min_issue_letters: int = 60
    """Characters of the issues, without links and references."""
    min_issue_words: int = 8
    """Words of prose among them."""
    max_files: int = 20
    """Changed files, tests among them."""
    max_product_files: int = 8
    """Changed files of the product."""
    max_lines: int = 400
    """Added and deleted lines of the product."""
    min_python_share: float = 0.6
    """Share of the product's changed files that are Python."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 0:
                raise UsageError(f"{item.name} is at least 0, got {value}")
        if not 0 <= self.min_python_share <= 1:
            share = self.min_python_share
            raise UsageError(f"min_python_share is a share from 0 to 1, got {share:g}")


class ModuleScope(StrEnum):
    """Which test modules are run."""

    ALL = "all"
    CHANGED = "changed"
    """Those the pull request changes, as SWE-bench does: quicker, and blind to what breaks
    elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """How a pull request is tried out."""

    scope: ModuleScope = ModuleScope.ALL
    """Test modules to run: `all`, or those the pull request changes (`changed`)."""
    min_killed_share: float = 0.25
    """Share of wrong variants of the fix that the tests to fix have to notice."""
    max_mutants: int = 16
    """Wrong variants tried; 0 leaves weak tests in."""
    timeout_s: float = 60.0
    """Processor seconds that one run of all tests may take."""
    num_sandboxes: int = 2
    """Test runs."""
    seed: int = 0
    """Draws the wrong variants."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_killed_share <= 1:
            share = self.min_killed_share
            raise UsageError(f"min_killed_share is a share from 0 to 1, got {share:g}")
        if self.max_mutants < 0:
            raise UsageError(f"max_mutants is at least 0, got {self.max_mutants}")
        if self.num_sandboxes < 1:
            raise UsageError(f"num_sandboxes is at least 1, got {self.num_sandboxes}")
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s is above 0, got {self.timeout_s:g}")
