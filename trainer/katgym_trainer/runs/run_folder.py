"""A training run's folder: what it was told, what it measured, what it made.

    config.toml      the file it was started with
    lock.json        what defines the run: versions, configuration, hashes of the data
    metrics.jsonl    one line a step, appended and fsynced
    eval.jsonl       one line an env for each evaluation, if there are any
    rollouts/        store of what an rl run trained on, and of its evaluations
    checkpoints/     step-000100, ...
    model/           the trained model and its tokenizer, written at the end
    plots/           curves of metrics.jsonl
    train.log        what was logged
    oracle/, collected/, solutions/    rollouts that were played at the start

One process writes to a folder at a time: of several ranks the first, and each its own log. Not
here: the run (`train_run.py`), what a checkpoint holds (`saving/checkpoints.py`).
"""

from __future__ import annotations

import json
import math
import platform
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.system import FolderGuard, Journal, read_journal, to_lines, write_atomically

LOCK_FORMAT = 1
_PLAYED = {
    ("oracle",): ("oracle", "oracle-*"),
    ("collect", "model"): ("collected", "solutions"),
}
"""What decides how rollouts are played at the start -> folders that hold them."""
_PACKAGES = ("katgym", "torch", "transformers", "tokenizers", "renderers", "numpy")


class RunFolder:
    """The folder of one run, open for this process alone."""

    def __init__(self, path: Path, lock: dict[str, Any], guard: FolderGuard) -> None:
        self.path = path
        self.lock = lock
        self._guard = guard
        self._metrics = Journal(path / "metrics.jsonl")
        self._evaluations = Journal(path / "eval.jsonl")
        self._has_evaluations = False

    @classmethod
    def open(
        cls, path: Path, *, config_text: str, identity: Mapping[str, Any], is_resume: bool = False
    ) -> RunFolder:
        """Make the folder, or continue the run that is in it.

        identity: what has to be equal for a run to be continued.
        is_resume: refuse a folder without a run.

        A run that took no step yet may be begun anew, with another configuration too. Raises
        `UsageError` for a folder that holds something else or another run, and for one that another
        process writes to; nothing in it is changed.
        """
        _check_is_free(path)
        path.mkdir(parents=True, exist_ok=True)
        guard = FolderGuard(path)
        guard.take()
        try:
            file, found = path / "lock.json", None
            if file.exists():
                try:
                    found = json.loads(file.read_text(encoding="utf-8"))
                except ValueError as e:
                    raise UsageError(f"{str(file)!r} is not valid JSON: {e}") from e
                if (
                    not isinstance(found, dict)
                    or found.get("format") != LOCK_FORMAT
                    or "run" not in found
                ):
                    raise UsageError(
                        f"{str(file)!r} is not of a training run; name another folder with --out"
                    )
            # A run that took a step is continued; starting anew would lose something.
            has_begun = any(read_journal(path / "metrics.jsonl")) or any(
                (path / "checkpoints").glob("step-*")
            )
            if found is not None and (is_resume or has_begun):
                if differing := _differing(found["run"], json.loads(json.dumps(identity))):
                    raise UsageError(
                        f"folder {str(path)!r} holds another run ({'; '.join(differing)});"
                        " name another folder with --out"
                    )
                lock = found
            elif is_resume:
                raise UsageError(
                    f"there is no run in {str(path)!r} to continue; leave out --resume"
                )
            else:
                lock = _begin(path, config_text, identity, found)
        except BaseException:
            guard.release()
            raise
        return cls(path, lock, guard)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Where the trained model lies."""
        return self.path / "model"

    def has_model_of(self, step: int) -> bool:
        """Return whether the trained model is there, whole, and that of a step."""
        file = self.path / "model.json"
        return (
            self.model.exists() and file.exists() and json.loads(file.read_text()) == {"step": step}
        )

    def note_model(self, step: int) -> None:
        """Note that the model is written, and which step's it is."""
        write_atomically(self.path / "model.json", json.dumps({"step": step}).encode())

    def set_data(self, identity: Mapping[str, Any]) -> None:
        """Keep the hashes of what is trained on; `UsageError` if a continued run had others."""
        known = self.lock["data"]
        if known is None:
            self.lock = {**self.lock, "data": dict(identity)}
            _write_json(self.path / "lock.json", self.lock)
        elif differing := _differing(known, dict(identity)):
            raise UsageError(
                f"the data of {str(self.path)!r} are not what they were ({'; '.join(differing)});"
                " bring the files back, or start another run with --out"
            )

    def open_metrics(self, step: int) -> None:
        """Open the journals for what comes after `step`; later lines are removed.

        What was evaluated before the first step is evaluated again by a run that begins again.
        """
        _cut(self._metrics.path, step)
        _cut(self._evaluations.path, step if step else -1)
        self._metrics.open()

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's line; what is no finite number becomes null."""
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        self._metrics.append([{"step": step, **finite}])

    def append_eval(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the lines of an evaluation, each with its `step`."""
        if not self._has_evaluations:
            self._evaluations.open()
            self._has_evaluations = True
        self._evaluations.append(lines)

    def close(self) -> None:
        """Close the files and let other processes in; may be called twice."""
        self._metrics.close()
        self._evaluations.close()
        self._guard.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FollowedFolder(RunFolder):
    """The folder as other ranks than the first see it, who write nothing of record into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = {}

    def note_model(self, step: int) -> None:
        """Leave it to the first rank, as all that follows."""

    def set_data(self, identity: Mapping[str, Any]) -> None: ...

    def open_metrics(self, step: int) -> None: ...

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def append_eval(self, lines: Sequence[Mapping[str, Any]]) -> None: ...

    def close(self) -> None: ...


def _cut(path: Path, step: int) -> None:
    """Remove a journal's lines of later steps."""
    lines = list(read_journal(path))
    kept = [line for line in lines if line["step"] <= step]
    if len(kept) < len(lines):
        write_atomically(path, to_lines(kept))


def _check_is_free(path: Path) -> None:
    """Raise for what is no folder of a run and not empty either."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file; --out names a folder")
    if path.is_dir() and not (path / "lock.json").exists():
        others = sorted(item.name for item in path.iterdir() if item.name != ".guard")
        if others:
            raise UsageError(
                f"folder {str(path)!r} is not empty (it holds {others[0]!r}) and holds no"
                " lock.json, so it is no run; name another with --out"
            )


def _begin(
    path: Path, config_text: str, identity: Mapping[str, Any], found: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Write what a run starts with and return its lock; what was played for it is kept if it fits.

    found: the lock of a run that took no step.
    """
    lock = {
        "format": LOCK_FORMAT,
        "run_id": secrets.token_hex(4),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
        "platform": platform.platform(),
        "run": json.loads(json.dumps(identity)),
        "data": None,
    }
    if found is not None and found["run"] != lock["run"]:
        shutil.rmtree(path / "rollouts", ignore_errors=True)
    for keys, patterns in _PLAYED.items():
        if found is not None and _settings(found, keys) != _settings(lock, keys):
            for folder in (folder for pattern in patterns for folder in path.glob(pattern)):
                shutil.rmtree(folder)
    write_atomically(path / "config.toml", config_text.encode())
    _write_json(path / "lock.json", lock)
    return lock


def _settings(lock: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    """Return what a run was told under some keys; None where it was told nothing."""
    run = lock["run"]
    return [run.get(key, run.get("data", {}).get(key)) for key in keys]


def _differing(there: Any, here: Any, name: str = "") -> list[str]:
    """Return what differs between two JSON values, a line for each place."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = sorted({*there, *here})
        pairs = [(f"{name}.{n}".lstrip("."), there.get(n), here.get(n)) for n in names]
        return [line for n, one, other in pairs for line in _differing(one, other, n)]
    return [] if there == here else [f"{name}: there {_short(there)}, here {_short(here)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode())
