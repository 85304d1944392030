"""Tasks as rows: a JSON Lines file people exchange, and beside it the store only the grader reads.

    SET/tasks.jsonl         visible rows: no patch, no tests' names, no origin
    SET/hidden/             mode 0700
        rows.jsonl          the same rows, whole
        trees/ID.json       base state and graded files of a task: path -> sha256 of a blob
        blobs/ab/ab12...    contents

Not here: tasks kept as mutations (`mutation_set.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from katgym.environment.reward import Trust
from katgym.errors import UsageError
from katgym.sandbox import LayerStore
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.venvs import ensure_venv
from katgym.system import make_private, to_lines, write_atomically
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.row import Origin, SweRow
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.task_source import TaskSource, read_by_id

TASKS_FILE = "tasks.jsonl"
HIDDEN_FOLDER = "hidden"


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of a base state."""

    sha256: str = ""
    is_executable: bool = False
    link_target: str | None = None


class StoredTree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the grader keeps of one task besides its row."""

    base: dict[str, StoredFile] | None = None
    """None when the row's image holds it."""
    hidden: HiddenTests
    """Without the contents of files, which are `files` and `gold_files`: path -> sha256."""
    files: dict[str, str] = {}
    gold_files: dict[str, str] = {}


def visible_row(row: SweRow) -> SweRow:
    """Return a row without what is hidden: patches, tests' names, origin, validation."""
    part = msgspec.structs.replace(
        row.katgym, origin=Origin(kind="hidden"), hidden_files={}, canaries="", validation={}
    )
    return msgspec.structs.replace(
        row, patch="", test_patch="", FAIL_TO_PASS=[], PASS_TO_PASS=[], katgym=part, other={},
    )  # fmt: skip


def with_trust(row: SweRow, trust: Trust | None) -> SweRow:
    """Return a row with its measured trust level."""
    return msgspec.structs.replace(row, katgym=msgspec.structs.replace(row.katgym, trust=trust))


def write_visible(folder: Path, rows: Iterable[SweRow]) -> None:
    """Write the rows that an agent may see: a set with them is finished."""
    write_atomically(folder / TASKS_FILE, to_lines(visible_row(r).to_json() for r in rows))


class RowSetWriter:
    """Writes the grader's side of a set; every `add` is on disk when it returns."""

    def __init__(self, folder: Path) -> None:
        self._store = make_private(folder / HIDDEN_FOLDER)

    def add(
        self,
        row: SweRow,
        hidden: HiddenTests,
        base: Mapping[str, bytes | FileEntry] | None,
    ) -> None:
        """Store a task; `base` None says that the row's image holds the base state."""
        tree = StoredTree(
            base=None if base is None else {p: self._entry(f) for p, f in base.items()},
            hidden=replace(hidden, files={}, gold_files={}, canaries=hidden.own_canaries),
            files={p: self._blob(content) for p, content in hidden.files.items()},
            gold_files={p: self._blob(content) for p, content in hidden.gold_files.items()},
        )
        path = self._store / "trees" / f"{row.instance_id}.json"
        write_atomically(path, msgspec.json.encode(tree), mode=0o600)

    def finish(self, rows: Iterable[SweRow]) -> None:
        """List the tasks of the set, which were added by this run or an earlier one."""
        lines = to_lines(row.to_json() for row in rows)
        write_atomically(self._store / "rows.jsonl", lines, mode=0o600)

    def _entry(self, file: bytes | FileEntry) -> StoredFile:
        if isinstance(file, bytes):
            return StoredFile(self._blob(file))
        if file.link_target is not None:
            return StoredFile(link_target=file.link_target)
        return StoredFile(self._blob(file.content), file.is_executable)

    def _blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._store / "blobs" / digest[:2] / digest
        if not path.exists():
            write_atomically(path, content, mode=0o600)
        return digest


class RowSet(TaskSource):
    """The tasks of a set that `RowSetWriter` wrote."""

    def __init__(self, folder: Path, *, layers: LayerStore | None = None) -> None:
        super().__init__(folder, layers=layers)
        self._store = folder / HIDDEN_FOLDER

    @property
    def store(self) -> Path:
        return self._store

    @cached_property
    def _rows(self) -> dict[str, SweRow]:
        rows = read_rows(self._store / "rows.jsonl")
        return {name: with_trust(row, self.trust.get(name)) for name, row in rows.items()}

    def rows(self, split: str | None = None) -> Sequence[SweRow]:
        """Return the rows, whole and in the file's order."""
        return [r for r in self._rows.values() if split is None or r.katgym.split == split]

    def row(self, instance_id: str) -> SweRow:
        """Return the whole row; `UnknownNameError` names the nearest ids."""
        return self._find(instance_id, self._rows)

    def workspace(self, instance_id: str) -> Workspace:
        """Return the base state; its digest is compared with the row's."""
        row = self.row(instance_id)
        tree = self._tree(instance_id)
        if tree.base is None:
            return Workspace(layer=None, python=None)
        layer = self._add_layer(self._base(tree))
        expected = row.katgym.workspace_sha256
        if expected and layer.digest != expected:
            raise UsageError(
                f"task {instance_id!r}: its workspace has sha256 {layer.digest!r}, the row says"
                f" {expected!r}; {str(self.folder)!r} was changed"
            )
        recipe = row.katgym.env
        python = None if recipe.kind == "image" else ensure_venv(recipe.requirements)
        return Workspace(layer=layer, python=python)

    def base_tree(self, instance_id: str) -> Mapping[str, FileEntry]:
        """Return the base state; nothing when an image holds it."""
        return self._base(self._tree(instance_id))

    def load_hidden(self, instance_id: str) -> HiddenTests:
        """Return the grader's side."""
        tree = self._tree(instance_id)
        return replace(
            tree.hidden,
            files={p: self._content(digest) for p, digest in tree.files.items()},
            gold_files={p: self._content(digest) for p, digest in tree.gold_files.items()},
        )

    def _tree(self, instance_id: str) -> StoredTree:
        self.row(instance_id)
        path = self._store / "trees" / f"{instance_id}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredTree)
        except (OSError, msgspec.MsgspecError) as e:
            raise UsageError(
                f"task {instance_id!r}: {str(path)!r} cannot be read: {e}. Hint: a set of another"
                " version of katgym has to be made again"
            ) from e

    def _base(self, tree: StoredTree) -> dict[str, FileEntry]:
        return {
            path: FileEntry(
                content=b"" if f.link_target is not None else self._content(f.sha256),
                is_executable=f.is_executable,
                link_target=f.link_target,
            )
            for path, f in (tree.base or {}).items()
        }

    def _content(self, digest: str) -> bytes:
        path = self._store / "blobs" / digest[:2] / digest
        try:
            content = path.read_bytes()
        except OSError as e:
            raise UsageError(f"{str(path)!r} cannot be read: {e.strerror}") from e
        if hashlib.sha256(content).hexdigest() != digest:
            raise UsageError(f"{str(path)!r} does not have the sha256 it is named for")
        return content


def read_rows(path: Path) -> dict[str, SweRow]:
    """Return a file's rows by id; `UsageError` names line and field of a broken one."""
    return read_by_id(path, SweRow.from_json, key="instance_id")
