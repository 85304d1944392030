"""The planned groups of a rollout store, and an evaluation's folder: such a store with a lock.

    lock.json        what defines the run; written first, compared on resume
    live.sqlite, finished/    the rollouts (`katgym.rollout_store`), each on disk when it has ended
    summary.json     written at the end, with the run's root (`chain.py`)

A group's id is a hash of everything that decides how it is played, so that the same command finds
what it has played, and commands that differ never mix. A rollout that infrastructure broke is kept,
too, and played again on resume; a kill loses nothing finished. Not here: playing (`run.py`), how a
rollout is kept (`katgym.rollout_store.rollouts`), what numbers mean (`statistics/summary.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import katgym
from katgym.errors import UsageError
from katgym.evaluation.chain import CHAIN_FORMAT, LINK, ChainLink, last_link
from katgym.evaluation.plan import Plan, env_text, rollout_key
from katgym.evaluation.run_folders import LOCK_FILE, explain_no_run
from katgym.play.rollout import Rollout
from katgym.rollout_store import RolloutStore, SessionRecord
from katgym.rollout_store.groups import GROUP_SIZE, chosen_attempts, stored_attempts
from katgym.rollout_store.records import has_valid_reward
from katgym.rollout_store.rollouts import as_session, rollout_of
from katgym.system import FolderGuard, write_atomically

LOCK_FORMAT = 1
_DIGITS = 12
"""Of the hash in a group's id."""


class PlanStore:
    """The planned groups of a store: which of their rollouts are there, where new ones go."""

    def __init__(
        self,
        store: RolloutStore,
        plan: Plan,
        policy: Mapping[str, Any],
        lock: Mapping[str, Any] | None = None,
    ) -> None:
        """Look for what is there.

        policy: what tells it from others (`Policy.describe`). lock: that of a run's folder, to
        which one process appends at a time: what is written becomes links of its chain.
        """
        self.store = store
        self.link: ChainLink | None = None
        """The latest of the chain; None where there is none."""
        if lock is not None and lock.get("chain") == CHAIN_FORMAT:
            before = last_link(lock, store.sessions())
            self.link = replace(before, segment=before.segment + (before.number > 0))
        self.plan = plan
        self.group_ids = group_ids(plan, policy)
        self.done = {_key(rollout_of(r)) for r in self.attempts() if has_valid_reward(r)}
        self.num_resumed = len(self.done)

    def attempts(self) -> list[SessionRecord]:
        """Return the planned rollouts that have ended, one for each attempt."""
        groups: dict[str, list[SessionRecord]] = {name: [] for name in self.group_ids.values()}
        for record in self.store.sessions():
            if record.group_id in groups and record.rollout is not None:
                groups[record.group_id].append(record)
        return [record for records in groups.values() for record in chosen_attempts(records)]

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts, also those that failed, in one transaction."""
        now_s, link, sessions = time.time(), self.link, []
        for rollout in rollouts:
            session = as_session(
                rollout,
                group_id=self.group_ids[rollout.env_id, rollout.task_id],
                metadata={GROUP_SIZE: self.plan.config.group_size},
                ended_s=now_s,
            )
            if link is not None:
                link = link.extend(session)
                metadata = {**session.record.metadata, LINK: asdict(link)}
                session = replace(session, record=replace(session.record, metadata=metadata))
            sessions.append(session)
        self.store.add_sessions(sessions, is_durable=True)
        self.link = link
        self.done |= {_key(rollout) for rollout in rollouts if rollout.reward.is_valid}


@contextlib.contextmanager
def open_run(folder: Path, plan: Plan, policy: Mapping[str, Any]) -> Iterator[PlanStore]:
    """Create a run's folder or continue in it; this process alone appends to it meanwhile.

    policy: see `PlanStore`. Raises `UsageError` when the folder belongs to another configuration
    (naming what differs), holds something else, or its store cannot be read; it is left as it was.
    """
    identity = {**plan.identity(), "policy_details": dict(policy)}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; --out names a folder")
    path = folder / LOCK_FILE
    if folder.is_dir() and any(folder.iterdir()) and not path.exists():
        raise UsageError(
            f"folder {str(folder)!r} is not empty and holds no lock.json, so it is no run;"
            " name another with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Not the store's own guard, which whoever opens it takes for a moment.
    guard = FolderGuard(folder, file=".run")
    guard.take()
    try:
        if path.exists():
            _compare(folder, read_lock(folder), identity)
        else:
            write_json(path, _lock(identity))
        with RolloutStore.open(folder) as store:
            yield PlanStore(store, plan, policy, read_lock(folder))
    finally:
        guard.release()


def group_ids(plan: Plan, policy: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the id of each planned group, by env id and task id.

    It does not depend on what else is planned: more tasks, or more envs, leave it as it is.

    Example:
        {("katgym/Arithmetic-v1", "train-000012"): "katgym/Arithmetic-v1/train-000012/8c2f03b71d5e"}
    """
    shared = {**plan.config.identity(), "policy_details": dict(policy)}
    return {
        (item.env_id, task[0]): group_id(shared, lock, task)
        for item in plan.envs
        for lock in [item.lock()]
        for task in item.task_sha256.items()
    }


def group_id(shared: Mapping[str, Any], env: Mapping[str, Any], task: tuple[str, str]) -> str:
    """Return the id of the group of one task.

    shared: how every rollout is played, with `policy_details`. env: what the lock says of the env.
    task: its id and content hash.
    """
    told = {name: env[name] for name in ("kwargs", "plugin_version", "max_turns", "tools")}
    text = json.dumps({**shared, "env": told, "task": task}, sort_keys=True)
    return f"{env['env_id']}/{task[0]}/{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _key(rollout: Rollout) -> str:
    return rollout_key(rollout.env_id, rollout.task_id, rollout.attempt)


def read_json(path: Path) -> Any:
    """Return what a file of a run holds; `UsageError` where it is no JSON that has one meaning."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError(f"a name stands twice among {sorted(found)}")
        return found

    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(f"{str(path)!r} is not valid JSON: {e}") from e


def read_lock(folder: Path) -> dict[str, Any]:
    """Return a run's `lock.json`; `UsageError` when it is missing or not ours."""
    path = folder / LOCK_FILE
    if not path.exists():
        raise UsageError(explain_no_run(folder))
    lock = read_json(path)
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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file with JSON; it is on disk when this returns."""
    text = json.dumps(dict(content), indent=2, ensure_ascii=False)
    write_atomically(path, f"{text}\n".encode())


def _lock(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": LOCK_FORMAT,
        "chain": CHAIN_FORMAT,
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

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(katgym.__file__).parent), *arguments]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "is_dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


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
        " Leave out --out, which gives every configuration a folder of its own, name another one,"
        " or repeat the command that made it."
    )


def _shorten(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "env_id" in value[0]:
        return ", ".join(
            f"{env_text(e['env_id'], e['kwargs'])} ({e['num_tasks']} tasks"
            f" {e['tasks_sha256'][:8]}, version {e['plugin_version'][:15]})"
            for e in value
        )
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."
