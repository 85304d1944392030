"""An evaluation's folder: a rollout store with a lock, so that a kill loses nothing finished.

    lock.json        what defines the run; written first, compared on resume
    live.sqlite, finished/    the rollouts (`katgym.rollout_store`), each on disk when it has ended
    summary.json     written at the end

A rollout that infrastructure broke is kept, too, and played again on resume. Not here: what the
numbers mean (`statistics/summary.py`), which rollouts are missing (`store_collection.py`).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import katgym
from katgym.errors import UsageError
from katgym.evaluation.plan import Plan
from katgym.evaluation.store_collection import GroupCollection
from katgym.play.rollout import Rollout
from katgym.rollout_store.groups import stored_attempts
from katgym.rollout_store.store import RolloutStore
from katgym.system import FolderGuard, write_atomically

LOCK_FORMAT = 1


class RunStore(GroupCollection):
    """The folder of one run, open for appending by this process alone."""

    def __init__(
        self, store: RolloutStore, plan: Plan, policy: Mapping[str, Any], guard: FolderGuard
    ) -> None:
        """Use `open` instead."""
        super().__init__(store, plan, policy)
        self._guard = guard

    @classmethod
    def open(cls, folder: Path, plan: Plan, policy: Mapping[str, Any]) -> RunStore:
        """Create the folder or continue in it.

        Raises `UsageError` when it belongs to another configuration (naming what differs), holds
        something else, or its store cannot be read; the folder is left as it was.
        """
        identity = {**plan.identity(), "policy_details": dict(policy)}
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "lock.json").exists():
            raise UsageError(
                f"folder {str(folder)!r} is not empty and holds no lock.json, so it is no run;"
                " name another with --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        # Not the store's own guard, which whoever opens it takes for a moment.
        guard = FolderGuard(folder, file=".run")
        guard.take()
        try:
            if (folder / "lock.json").exists():
                _compare(folder, read_lock(folder), identity)
            else:
                _write_json(folder / "lock.json", _lock(identity))
            store = RolloutStore.open(folder)
            try:
                return cls(store, plan, policy, guard)
            except BaseException:
                store.close()
                raise
        except BaseException:
            guard.release()
            raise

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json`."""
        _write_json(self.store.folder / "summary.json", summary)

    def close(self) -> None:
        """Close the store and let other processes in; may be called twice."""
        self.store.close()
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
    if (folder / "rollouts.jsonl").exists() and not RolloutStore.is_at(folder):
        raise UsageError(
            f"{str(folder)!r} is a run of an older katgym, which kept its rollouts in"
            " rollouts.jsonl; name another folder, or go on with the katgym that wrote it"
        )
    if not isinstance(lock, dict) or lock.get("format") != LOCK_FORMAT:
        found = lock.get("format") if isinstance(lock, dict) else None
        raise UsageError(f"{str(path)!r} has format {found!r}; this katgym reads {LOCK_FORMAT}")
    return lock


def read_rollouts(folder: Path) -> list[Rollout]:
    """Return a run's rollouts: of every attempt the finished one, or its failure."""
    if not RolloutStore.is_at(folder):
        read_lock(folder)  # which nothing was played for yet
        return []
    with RolloutStore.open(folder, create=False) as store:
        return list(stored_attempts(store))


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
