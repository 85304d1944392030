"""Plan of a test run: tests, their order, files put into the workspace.

Not here: running them (`runner.py`), names and canaries (the caller renders its files).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPlan:
    """One run of chosen tests in one fresh pytest process.

    Example:
        TestPlan(files=("tests/test_a.py",), timeout_s=60.0)
    """

    __test__ = False

    files: tuple[str, ...]
    """Test modules that are collected, relative to the workspace."""
    functions: frozenset[tuple[str, str]] | None = None
    """(file, qualname) of the functions to run, all their cases; None: all that are collected."""
    seed: int | None = None
    """Shuffles the order of the tests; None keeps pytest's."""
    is_reversed: bool = False
    """Turns that order around."""
    timeout_s: float = 60.0
    """Processor seconds of the whole run, which a busy machine stretches little; see `wall_s`."""
    python_path: tuple[str, ...] = (".",)
    """Directories of the workspace that are imported from."""
    env: Mapping[str, str] = field(default_factory=dict)
    put: Mapping[str, bytes] = field(default_factory=dict)
    """Workspace path -> content of files written before pytest starts, in this order; they
    replace whatever is in their place."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Workspace path -> target of symbolic links, made before the files are put."""
    executables: frozenset[str] = frozenset()
    """Those of `put` that get mode 755."""
    remove: tuple[str, ...] = ()
    """Workspace paths (files, links, folders) removed before anything is put."""
    watched: tuple[str, ...] = ()
    """Workspace paths of modules whose reach for tests is told (`TestRun.reached`)."""
    met_in: tuple[str, ...] = ()
    """Workspace paths of modules whose blind tests note the exceptions that come to them, those
    that they catch as well; slower."""
    is_detailed: bool = False
    """Brings failure messages as pytest words them, and the place of each failure; slower. For
    making tasks, never for grading: the messages quote the tests."""

    def __post_init__(self) -> None:
        if not self.files:
            raise UsageError("a test plan needs at least one file")
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s is > 0, got {self.timeout_s!r}")

    @property
    def wall_s(self) -> float:
        """Return the wall seconds of the whole run: what waits for good has to end, too."""
        return 2 * self.timeout_s
