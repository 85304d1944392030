"""A run's folder: what was played, kept so that a kill at any moment loses nothing finished.

    lock.json        what defines the run; written first, compared on resume
    rollouts.jsonl   one line per finished rollout, appended and fsynced
    failures.jsonl   rollouts that infrastructure broke; played again on resume
    summary.json     written at the end

A line that a kill cut short was not finished; it is removed on resume. Not here: what the numbers
mean (`summary.py`).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import katgym
from katgym.errors import UsageError
from katgym.evaluation.plan import Plan, rollout_key
from katgym.rollout import Rollout
from katgym.storage import FolderGuard, Journal, read_journal, write_atomically

LOCK_FORMAT = 1


class RunStore:
    """The folder of one run, open for appending by this process alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: set[str] = set()
        """Keys of the rollouts that `rollouts.jsonl` holds."""
        self.num_resumed = 0
        """Rollouts that were there when the folder was opened."""
        self._rollouts = Journal(folder / "rollouts.jsonl")
        self._failures = Journal(folder / "failures.jsonl")
        self._guard = FolderGuard(folder)

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
        store._guard.take()
        try:
            if (folder / "lock.json").exists():
                _compare(folder, read_lock(folder), identity)
                store.done = {_key(line) for line in read_journal(folder / "rollouts.jsonl")}
                store.num_resumed = len(store.done)
            else:
                _write_json(folder / "lock.json", _lock(identity))
            store._rollouts.open()
            store._failures.open()
        except BaseException:
            store.close()
            raise
        return store

    def resumed(self) -> list[tuple[str, str, float]]:
        """Return env id, task id and reward of the rollouts that were there at the opening."""
        lines = read_journal(self.folder / "rollouts.jsonl") if self.num_resumed else ()
        return [(line["env_id"], line["task_id"], line["reward"]["value"]) for line in lines]

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Write finished rollouts and return when they are on disk; blocks for the fsync."""
        for journal, chosen in (
            (self._rollouts, [r for r in rollouts if r.reward.is_valid]),
            (self._failures, [r for r in rollouts if not r.reward.is_valid]),
        ):
            if chosen:
                journal.append([r.to_json() for r in chosen])
        self.done |= {
            rollout_key(r.env_id, r.task_id, r.attempt) for r in rollouts if r.reward.is_valid
        }

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json`."""
        _write_json(self.folder / "summary.json", summary)

    def close(self) -> None:
        """Close the files and let other processes in; may be called twice."""
        self._rollouts.close()
        self._failures.close()
        self._guard.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


def read_rollouts(folder: Path) -> list[dict[str, Any]]:
    """Return a run's lines: finished rollouts, and the last failure of those never finished."""
    finished = list(read_journal(folder / "rollouts.jsonl"))
    done = {_key(line) for line in finished}
    failed = {_key(line): line for line in read_journal(folder / "failures.jsonl")}
    return finished + [line for key, line in failed.items() if key not in done]


def _key(line: Mapping[str, Any]) -> str:
    try:
        return rollout_key(line["env_id"], line["task_id"], line["attempt"])
    except KeyError as e:
        raise UsageError(f"a rollout line has no {e.args[0]!r}: {str(dict(line))[:120]}") from e


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(dict(content), indent=2, ensure_ascii=False)
    write_atomically(path, f"{text}\n".encode())


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
