"""A run's folder: what was played, kept so that a kill at any moment loses nothing finished.

    lock.json        what defines the run; written first, compared on resume
    rollouts.jsonl   one line per finished rollout, appended and fsynced
    failures.jsonl   rollouts that infrastructure broke; played again on resume
    summary.json     written at the end

A line that a kill cut short was not finished; it is removed on resume. Not here: what the numbers
mean (`summary.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import katgym
from katgym.errors import UsageError
from katgym.evaluation.plan import Plan, rollout_key
from katgym.rollout import Rollout

LOCK_FORMAT = 1


class RunStore:
    """The folder of one run, open for appending by this process alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: set[str] = set()
        """Keys of the rollouts that `rollouts.jsonl` holds."""
        self.num_resumed = 0
        """Rollouts that were there when the folder was opened."""
        self._rollouts: IO[bytes] | None = None
        self._failures: IO[bytes] | None = None
        self._guard: IO[bytes] | None = None

    @classmethod
    def open(cls, folder: Path, plan: Plan, policy: Mapping[str, Any]) -> RunStore:
        """Create the folder or continue in it.

        Raises `UsageError` when it belongs to another configuration (naming what differs), holds
        something else, or a whole line in it cannot be read; the folder is left as it was.
        """
        store = cls(folder)
        identity = {**plan.identity(), "policy_details": dict(policy)}
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "lock.json").exists():
            raise UsageError(
                f"folder {str(folder)!r} is not empty and holds no lock.json, so it is no run;"
                " name another with --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        store._take_guard()
        try:
            if (folder / "lock.json").exists():
                _compare(folder, read_lock(folder), identity)
                cut = _whole_lines(folder / "rollouts.jsonl")
                store.done = {_key(line) for line in read_jsonl(folder / "rollouts.jsonl", cut)}
                store.num_resumed = len(store.done)
            else:
                _write_atomically(folder / "lock.json", _lock(identity))
            store._rollouts = _open_for_append(folder / "rollouts.jsonl")
            store._failures = _open_for_append(folder / "failures.jsonl")
        except BaseException:
            store.close()
            raise
        return store

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Write finished rollouts and return when they are on disk; blocks for the fsync."""
        assert self._rollouts is not None and self._failures is not None
        for file, chosen in (
            (self._rollouts, [r for r in rollouts if r.reward.is_valid]),
            (self._failures, [r for r in rollouts if not r.reward.is_valid]),
        ):
            if not chosen:
                continue
            lines = [json.dumps(r.to_json(), ensure_ascii=True) + "\n" for r in chosen]
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.done |= {
            rollout_key(r.env_id, r.task_id, r.attempt) for r in rollouts if r.reward.is_valid
        }

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json`."""
        _write_atomically(self.folder / "summary.json", dict(summary))

    def close(self) -> None:
        """Close the files and let other processes in; may be called twice."""
        for file in (self._rollouts, self._failures, self._guard):
            if file is not None:
                file.close()
        self._rollouts = self._failures = self._guard = None

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_guard(self) -> None:
        """Hold an advisory lock on the folder; it is gone with the process, however it ends."""
        self._guard = (self.folder / ".guard").open("ab")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._guard.close()
            raise UsageError(
                f"another process is writing to {str(self.folder)!r}; wait for it or name another"
                " folder with --out"
            ) from None


def read_lock(folder: Path) -> dict[str, Any]:
    """Return a run's `lock.json`; `UsageError` when it is missing or not ours."""
    path = folder / "lock.json"
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{str(folder)!r} holds no lock.json, so it is no run") from None
    except ValueError as e:
        raise UsageError(f"{str(path)!r} is not valid JSON: {e}") from e
    if not isinstance(lock, dict) or lock.get("format") != LOCK_FORMAT:
        found = lock.get("format") if isinstance(lock, dict) else None
        raise UsageError(f"{str(path)!r} has format {found!r}; this katgym reads {LOCK_FORMAT}")
    return lock


def read_jsonl(path: Path, num_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file; an unreadable line raises with its number.

    num_bytes: read only so many; None reads to the last line break, leaving a torn line out.
    """
    if not path.exists():
        return
    limit = _whole_lines(path) if num_bytes is None else num_bytes
    position = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            position += len(line)
            if position > limit:
                return
            try:
                record = json.loads(line)
            except ValueError as e:
                raise UsageError(f"{str(path)!r} line {number} is not valid JSON: {e}") from e
            if not isinstance(record, dict):
                raise UsageError(f"{str(path)!r} line {number} is not a JSON object")
            yield record


def read_rollouts(folder: Path) -> list[dict[str, Any]]:
    """Return a run's lines: finished rollouts, and the last failure of those never finished."""
    finished = list(read_jsonl(folder / "rollouts.jsonl"))
    done = {_key(line) for line in finished}
    failed = {_key(line): line for line in read_jsonl(folder / "failures.jsonl")}
    return finished + [line for key, line in failed.items() if key not in done]


def _key(line: Mapping[str, Any]) -> str:
    try:
        return rollout_key(line["env_id"], line["task_id"], line["attempt"])
    except KeyError as e:
        raise UsageError(f"a rollout line has no {e.args[0]!r}: {str(dict(line))[:120]}") from e


def _whole_lines(path: Path) -> int:
    """Return how many bytes of the file are whole lines."""
    if not path.exists():
        return 0
    size = path.stat().st_size
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _open_for_append(path: Path) -> IO[bytes]:
    """Open for appending behind the last whole line; a torn line is cut off."""
    whole = _whole_lines(path)
    file = path.open("ab")
    if path.stat().st_size > whole:
        file.truncate(whole)
    return file


def _write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _lock(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": LOCK_FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "katgym_version": katgym.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _git_state(),
        "command": sys.argv,
        **identity,
    }


def _git_state() -> dict[str, Any] | None:
    """Commit of katgym's checkout, and whether it has changes; None outside a checkout."""
    where = Path(katgym.__file__).parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(where), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        status = subprocess.run(
            ["git", "-C", str(where), "status", "--porcelain"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "is_dirty": bool(status.strip())}


def _compare(folder: Path, lock: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise unless the folder's run is this one."""
    wanted = json.loads(json.dumps(identity))
    differing = [name for name in wanted if lock.get(name) != wanted[name]]
    if not differing:
        return
    shown = "; ".join(
        f"{name}: there {_shorten(lock.get(name))}, here {_shorten(wanted[name])}"
        for name in differing
    )
    raise UsageError(
        f"folder {str(folder)!r} holds a run of another configuration ({shown})."
        " Name another folder with --out, or repeat the command that made it."
    )


def _shorten(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "env_id" in value[0]:
        value = [
            {"env_id": e["env_id"], "kwargs": e["kwargs"], "tasks": e["tasks_sha256"][:8]}
            for e in value
        ]
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."
