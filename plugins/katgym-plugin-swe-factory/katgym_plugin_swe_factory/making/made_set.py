"""The folder of a set while it is made: what is decided is on disk at once; a kill loses nothing.

    DIR/tasks.jsonl             visible rows; written when making ends
    DIR/hidden/                 mode 0700, as `MutationSet` or `RowSet` reads it
        making.json             what defines the set; compared on resume
        journal.jsonl           a line per candidate tried, in their order, each after lines of the
                                test functions whose canaries it had tried
        studies/KEY             sound tests of a package, as compressed MessagePack

Not here: deciding anything (`set_maker.py`).
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from katgym.errors import InfrastructureError, UsageError
from katgym.system import FolderGuard, Journal, make_private, read_journal, write_atomically
from katgym_envs.swe.sources.mutation_set import PACKAGES_FOLDER, SPECS_FILE
from katgym_envs.swe.sources.row_set import HIDDEN_FOLDER
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec
from katgym_plugin_swe_factory.making.trial import INFRASTRUCTURE, Decision, Trial
from katgym_plugin_swe_factory.studies.package_study import PackageStudy

T = TypeVar("T")
_FORMAT = 5


class MadeSet:
    """The folder, open for this process alone."""

    def __init__(self, folder: Path, *, max_faults: int) -> None:
        self.hidden = folder / HIDDEN_FOLDER
        self.notes: list[Mapping[str, Any]] = []
        """What the journal holds besides trials."""
        self._trials: dict[str, Any] = {}
        """Key of a candidate -> its trial in an earlier run, as JSON."""
        self._journal = Journal(self.hidden / "journal.jsonl")
        self._max_faults = max_faults
        self._num_faults = 0

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, folder: Path, identity: Mapping[str, Any], *, max_faults: int = 1
    ) -> Iterator[MadeSet]:
        """Create the folder or continue in it; it is closed, and free for others, at the end.

        max_faults: trials in a row that the machine may fail before `keep` raises. Raises
        `UsageError` when the folder holds something else, or was begun with other settings.
        """
        made = cls(folder, max_faults=max_faults)
        lock = made.hidden / "making.json"
        _check_folder(folder, lock)
        make_private(made.hidden)
        guard = FolderGuard(made.hidden, name=str(folder))
        guard.take()
        try:
            _check_identity(folder, lock, {"format": _FORMAT, **identity})
            made._journal.open()
            for entry in read_journal(made._journal.path):
                if "trial" in entry:
                    made._trials[entry["key"]] = entry["trial"]
                else:
                    made.notes.append(entry)
            yield made
        finally:
            made._journal.close()
            guard.release()

    def recall(self, key: str, kind: type[Trial[T]]) -> Decision[T] | None:
        """Return what became of a candidate in an earlier run."""
        if key not in self._trials:
            return None
        return Decision(trial=msgspec.convert(self._trials[key], kind), key=key, is_old=True)

    def keep(self, decision: Decision[Any]) -> None:
        """Write down what became of a candidate; it is on disk when this returns.

        A trial that the machine failed is not: the next run tries it again. Raises
        `InfrastructureError` when the machine failed too many in a row.
        """
        if decision.is_old or not decision.key:
            return
        trial, lines = decision.trial, list(decision.notes)
        is_fault = trial.outcome == INFRASTRUCTURE
        if not is_fault:
            lines.append({"key": decision.key, "trial": msgspec.to_builtins(trial)})
        self._journal.append(lines)
        self.notes += decision.notes
        self._num_faults = self._num_faults + 1 if is_fault else 0
        if self._num_faults >= self._max_faults:
            raise InfrastructureError(trial.reason)

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


def _check_folder(folder: Path, lock: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
    others = {path.name for path in folder.iterdir()} - {HIDDEN_FOLDER} if folder.exists() else ()
    if others and not lock.exists():
        raise UsageError(
            f"folder {str(folder)!r} is not empty and holds no set that was begun here;"
            " name another with --out"
        )


def _check_identity(folder: Path, lock: Path, wanted: Mapping[str, Any]) -> None:
    """Compare what defines the set with what it was begun with, or write it down."""
    if not lock.exists():
        write_atomically(lock, json.dumps(wanted, indent=1).encode(), mode=0o600)
        return
    try:
        found = json.loads(lock.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{str(lock)!r} cannot be read: {e}") from e
    for name, value in json.loads(json.dumps(wanted)).items():
        if found.get(name) != value:
            raise UsageError(
                f"the set in {str(folder)!r} was begun with {name} {found.get(name)!r}, not"
                f" {value!r}; give the same again, or another folder with --out"
            )


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
