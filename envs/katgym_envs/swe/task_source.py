"""Where tasks come from: one interface over shipped specs and files of rows.

Not here: making tasks (`making/`).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.swe_task import SweTask, Workspace


class TaskSource(abc.ABC):
    """A set of tasks with both their sides; loading is lazy, results are cached on disk."""

    @abc.abstractmethod
    def tasks(self, split: str | None = None) -> Sequence[SweTask]:
        """Return the visible sides, in a fixed order; cheap: nothing is downloaded or built."""

    @abc.abstractmethod
    def row(self, instance_id: str) -> SweRow:
        """Return the whole row with patches filled in; grader and tools for people only."""

    @abc.abstractmethod
    def workspace(self, instance_id: str) -> Workspace:
        """Return the base state as a layer with its interpreter, made on first use (blocking)."""

    @abc.abstractmethod
    def base_files(self, instance_id: str) -> Mapping[str, bytes]:
        """Return the base state's regular files, path -> content."""

    @abc.abstractmethod
    def hidden(self, instance_id: str) -> HiddenTests:
        """Return the grader's side, made on first use (blocking)."""
