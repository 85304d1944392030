"""The folder of a set while it is made: what is decided is on disk at once; a kill loses nothing.

    DIR/tasks.jsonl             visible rows; written when making ends
    DIR/hidden/                 mode 0700, as `MutationSet` reads it
        making.json             what defines the set; compared on resume
        journal.jsonl           a line per mutant tried, and per test function with its canaries
        studies/KEY             sound tests of a package, as compressed MessagePack
        packages/, specs.jsonl  the result

Not here: deciding anything (`set_maker.py`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from katgym.errors import UsageError
from katgym.system import (
    FolderGuard,
    Journal,
    make_private,
    read_journal,
    to_lines,
    write_atomically,
)
from katgym_envs.swe.sources.mutation_set import PACKAGES_FOLDER, SPECS_FILE, MutationSet
from katgym_envs.swe.sources.row_set import HIDDEN_FOLDER, TASKS_FILE, visible_row
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec
from katgym_plugin_swe_factory.studies.package_study import PackageStudy

_FORMAT = 2


class MadeSet:
    """The folder, open for this process alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hidden = folder / HIDDEN_FOLDER
        self.entries: list[dict[str, Any]] = []
        """What the journal held when the folder was opened."""
        self._journal = Journal(self.hidden / "journal.jsonl")
        self._guard = FolderGuard(self.hidden, name=str(folder))

    @classmethod
    def open(cls, folder: Path, identity: Mapping[str, Any]) -> MadeSet:
        """Create the folder or continue in it.

        Raises `UsageError` when it holds something else, or was begun with other settings.
        """
        made = cls(folder)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
        lock = made.hidden / "making.json"
        if folder.is_dir() and any(folder.iterdir()) and not lock.exists():
            names = {p.name for p in folder.iterdir()} - {HIDDEN_FOLDER}
            if names:
                raise UsageError(
                    f"folder {str(folder)!r} is not empty and holds no set that was begun here;"
                    " name another with --out"
                )
        make_private(made.hidden)
        made._guard.take()
        try:
            wanted = {"format": _FORMAT, **identity}
            if lock.exists():
                try:
                    found = json.loads(lock.read_text(encoding="utf-8"))
                except (OSError, ValueError) as e:
                    raise UsageError(f"{str(lock)!r} cannot be read: {e}") from e
                for name, value in json.loads(json.dumps(wanted)).items():
                    if found.get(name) != value:
                        raise UsageError(
                            f"the set in {str(folder)!r} was begun with {name}"
                            f" {found.get(name)!r}, not {value!r}; give the same again, or another"
                            " folder with --out"
                        )
            else:
                write_atomically(lock, json.dumps(wanted, indent=1).encode(), mode=0o600)
            made._journal.open()
            made.entries = list(read_journal(made._journal.path))
        except BaseException:
            made.close()
            raise
        return made

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write a line of the journal; it is on disk when this returns."""
        self._journal.append([entry])

    def study(self, key: str) -> PackageStudy | None:
        """Return what an earlier run learnt of a package; `UsageError` for a broken file."""
        path = self.hidden / "studies" / key
        try:
            return msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=PackageStudy)
        except FileNotFoundError:
            return None
        except (OSError, zlib.error, msgspec.MsgspecError) as e:
            raise UsageError(f"{str(path)!r} cannot be read: {e}") from e

    def keep_study(self, key: str, study: PackageStudy) -> None:
        """Write what was learnt of a package."""
        data = zlib.compress(msgspec.msgpack.encode(study))  # tests' names recur in it
        write_atomically(self.hidden / "studies" / key, data, mode=0o600)

    def finish(self, packages: Iterable[PackageSpec], tasks: Iterable[TaskSpec]) -> None:
        """Write the result; the visible rows come last."""
        write_specs(self.hidden, packages, tasks, mode=0o600)
        source = MutationSet(self.hidden)
        rows = [visible_row(row).to_json() for row in source.rows()]
        write_atomically(self.folder / TASKS_FILE, to_lines(rows))

    def close(self) -> None:
        """Close the files and let other processes in; may be called twice."""
        self._journal.close()
        self._guard.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_specs(
    folder: Path,
    packages: Iterable[PackageSpec],
    tasks: Iterable[TaskSpec],
    *,
    mode: int = 0o644,
) -> None:
    """Write a folder that `MutationSet` reads; the tasks' file last."""
    for package in packages:
        data = msgspec.json.encode(package)
        write_atomically(folder / PACKAGES_FOLDER / f"{package.key}.json", data + b"\n", mode=mode)
    lines = b"".join(msgspec.json.encode(task) + b"\n" for task in tasks)
    write_atomically(folder / SPECS_FILE, lines, mode=mode)
