"""Interface of sets of tasks, over shipped specs and files of rows.

Not here: making tasks (`katgym_plugin_swe_factory`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from katgym.environment.reward import Trust
from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.sandbox import Layer, LayerStore, layer_store
from katgym.sandbox.layer import FileEntry
from katgym.system import read_lines, write_atomically
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.patching import regular_files
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.swe_task import SweTask, Workspace

_T = TypeVar("_T")
_TRUST_FILE = "trust.json"


class TaskSource(abc.ABC):
    """A set of tasks with both their sides; loading is lazy, results are cached on disk."""

    def __init__(self, folder: Path, *, layers: LayerStore | None = None) -> None:
        """Prepare it; layers: where base states are kept, None: the machine's store."""
        self.folder = folder
        self._layers = layers

    def tasks(self, split: str | None = None) -> Sequence[SweTask]:
        """Return the visible sides, in a fixed order; cheap: nothing is downloaded or built."""
        return [SweTask.from_row(row) for row in self.rows(split)]

    @abc.abstractmethod
    def rows(self, split: str | None = None) -> Sequence[SweRow]:
        """Return the rows in a fixed order; patches that have to be made first may be missing."""

    @abc.abstractmethod
    def row(self, instance_id: str) -> SweRow:
        """Return the whole row with patches filled in; grader and tools for people only."""

    @abc.abstractmethod
    def workspace(self, instance_id: str) -> Workspace:
        """Return the base state as a layer with its interpreter, made on first use (blocking)."""

    @abc.abstractmethod
    def base_tree(self, instance_id: str) -> Mapping[str, FileEntry]:
        """Return the base state, path -> file or link; nothing where the task's image holds it."""

    def base_files(self, instance_id: str) -> Mapping[str, bytes]:
        """Return the base state's regular files, path -> content."""
        return regular_files(self.base_tree(instance_id))

    @abc.abstractmethod
    def load_hidden(self, instance_id: str) -> HiddenTests:
        """Return the grader's side, made on first use (blocking)."""

    @property
    def store(self) -> Path:
        """Return the folder of what the grader alone reads."""
        return self.folder

    @cached_property
    def trust(self) -> Mapping[str, Trust]:
        """Return the measured trust levels by task; `UsageError` for a file that is broken."""
        path = self.store / _TRUST_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Trust])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as e:
            raise UsageError(f"{str(path)!r}: {e}. Hint: without it levels are not known") from e

    def write_trust(self, levels: Mapping[str, Trust]) -> None:
        """Keep measured trust levels, sorted by task."""
        data = msgspec.json.format(msgspec.json.encode(dict(sorted(levels.items()))), indent=1)
        write_atomically(self.store / _TRUST_FILE, data + b"\n")
        self.__dict__.pop("trust", None)

    def _find(self, instance_id: str, known: Mapping[str, _T]) -> _T:
        """Return what is known by an id; `UnknownNameError` names the nearest ids."""
        try:
            return known[instance_id]
        except KeyError:
            raise UnknownNameError(unknown_name("task", instance_id, known)) from None

    def _add_layer(self, files: Mapping[str, bytes | FileEntry]) -> Layer:
        return (self._layers or layer_store()).add_files(files)


def read_by_id(path: Path, read: Callable[[Mapping[str, Any]], _T], *, key: str) -> dict[str, _T]:
    """Return the items of a file of lines by their ids, in its order.

    key: of the id. `UsageError` names line and field of a broken one.
    """
    found: dict[str, _T] = {}
    for number, data in read_lines(path):
        name = data.get(key)
        try:
            item = read(data)
        except (UsageError, msgspec.ValidationError) as e:
            raise UsageError(
                f"{str(path)!r} line {number} ({name!r}): {e}. Hint: a set of another version of"
                " katgym has to be made again"
            ) from e
        if name in found:
            raise UsageError(f"{str(path)!r} line {number}: id {name!r} occurs twice")
        found[str(name)] = item
    return found
