"""What `katgym swe from-prs` asks of a repository, its pull requests and their issues.

Not here: the checks (`pull_filters.py`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Bounds; both ends count as inside. None: not asked."""

    min_stars: int | None = None
    max_stars: int | None = None
    min_forks: int | None = None
    is_archived_allowed: bool = True
    min_activity: int = 1
    """Comments, review comments and reviews of a pull request together."""
    since: datetime.datetime | None = None
    """Earliest merge."""
    until: datetime.datetime | None = None
    skipped_labels: tuple[str, ...] = ()
    """A pull request with one of these is left out, in any case of letters."""
    min_issue_letters: int = 60
    """Characters of the issues, without links and references."""
    min_issue_words: int = 8
    """Words of prose among them."""
    max_files: int = 20
    """Changed files, tests among them."""
    max_product_files: int = 8
    max_lines: int = 400
    """Added and deleted lines of the product."""
    min_python_share: float = 0.6
    """Share of the product's changed files that are Python."""


class Scope(StrEnum):
    """Which test modules are run."""

    ALL = "all"
    CHANGED = "changed"
    """Those the pull request changes, as SWE-bench does: quicker, and blind to what breaks
    elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """How a pull request is tried out."""

    scope: Scope = Scope.ALL
    min_killed_share: float = 0.25
    """Share of wrong variants of the fix that the tests to fix have to notice."""
    max_mutants: int = 16
    """Wrong variants tried; 0 leaves weak tests in."""
    timeout_s: float = 120.0
    """Wall seconds of one run of all tests."""
    num_sandboxes: int = 2
    seed: int = 0
    """Orders mutants."""
