"""A run's folder as its author handed it over: lock, summary and rollouts, read and nothing more.

What stands there is anybody's. It is read from a private copy, so that the folder stays as it is,
and whatever is malformed becomes a `UsageError` or a finding. Not here: what it says (`folder.py`).
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from katgym.errors import MissingDependencyError, UsageError
from katgym.evaluation.chain import CHAIN_FORMAT, link_of
from katgym.evaluation.plan import rollout_key
from katgym.evaluation.run_folders import LOCK_FILE, explain_no_run
from katgym.evaluation.store import group_id, read_json, read_lock
from katgym.evaluation.verification.report import VerifyCheck
from katgym.play.limits import Limits
from katgym.play.seeding import derive_seed
from katgym.policies.base import Sampling
from katgym.rollout_store import RolloutStore, StoredSession
from katgym.rollout_store.faults import sqlite_faults
from katgym.rollout_store.groups import chosen_attempts
from katgym.rollout_store.schema import foreign_parts

_FILES = ("lock.json", "summary.json", "live.sqlite", "live.sqlite-wal", "finished/*.parquet")
_IDENTITY = ("policy", "split", "seed", "group_size", "sampling", "limits", "policy_details")

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class LockedEnv(msgspec.Struct, frozen=True, kw_only=True):
    """What a lock says of an env (`PlannedEnv.lock`)."""

    env_id: str
    kwargs: dict[str, Any]
    plugin_version: str
    max_turns: int | None
    num_tasks: Count
    tasks_sha256: str
    tasks: dict[str, str]
    tools: list[dict[str, Any]]


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """`lock.json` with the types that `evaluation/store.py` writes."""

    format: int
    chain: int
    created: str
    katgym_version: str
    python: str
    platform: str
    git: dict[str, str | bool] | None
    command: list[str]
    policy: str
    split: str
    seed: int
    group_size: Count
    sampling: Sampling
    limits: Limits
    envs: list[LockedEnv]
    policy_details: dict[str, Any]

    @property
    def created_s(self) -> float:
        """Unix time at which the run began, as its author says."""
        return datetime.fromisoformat(self.created).timestamp()

    @property
    def scheme(self) -> str:
        """The scheme of the policy's URI."""
        return self.policy.partition(":")[0].partition("?")[0]

    @property
    def policy_name(self) -> str:
        """What rollouts call the policy."""
        return str(self.policy_details.get("name", self.policy))


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task of the plan: what every session of it has to say."""

    env: LockedEnv
    group_id: str
    seed: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run's folder as it was read."""

    raw_lock: Mapping[str, Any]
    lock: Lock
    summary: Any
    """None: there is none."""
    sessions: Sequence[StoredSession]
    """In the order of their links."""
    tasks: Mapping[tuple[str, str], PlannedTask]
    """Every planned one, by env id and task id."""

    @property
    def chosen(self) -> list[StoredSession]:
        """The sessions that count, one for each attempt."""
        groups: dict[str, list[StoredSession]] = defaultdict(list)
        for session in self.sessions:
            groups[session.record.group_id].append(session)
        by_id = {session.record.session_id: session for session in self.sessions}
        chosen = (chosen_attempts(s.record for s in group) for group in groups.values())
        return [by_id[record.session_id] for records in chosen for record in records]


def name_of(session: StoredSession) -> str:
    """Return what a finding calls a session."""
    rollout = session.record.rollout
    if rollout is None:
        return f"session {session.record.session_id!r}"
    return rollout_key(rollout.env_id, rollout.task_id, rollout.attempt)


def read_bundle(folder: Path) -> tuple[Bundle, VerifyCheck]:
    """Return a run as it stands, with what of its files could not be read.

    `UsageError` for a folder that is no run, one without a chain, one with links in place of files.
    """
    check = VerifyCheck(name="files")
    if not (folder / LOCK_FILE).exists():
        raise UsageError(explain_no_run(folder))
    with _private_copy(folder, check) as copy:
        raw = read_lock(copy)
        if raw.get("tts"):
            raise UsageError(
                f"{str(folder)!r} holds what was chosen of attempts (tts {raw['tts']}), which is"
                f" not verified; its attempts are a run that can be: {str(folder / 'attempts')!r}"
            )
        if raw.get("chain") != CHAIN_FORMAT:
            raise UsageError(
                f"{str(folder)!r} has no hash chain (lock.json says {raw.get('chain')!r}, this"
                f" katgym reads {CHAIN_FORMAT}), so it cannot be verified. Runs of this katgym have"
                " one."
            )
        try:
            lock = msgspec.convert(raw, Lock)
            num_envs = len({env.env_id for env in lock.envs})
            is_whole = msgspec.to_builtins(lock) == raw and num_envs == len(lock.envs)
            if not (is_whole and lock.created_s > 0):
                raise ValueError("a name in it is missing, doubled, or of no run")
        except (ValueError, msgspec.ValidationError, OverflowError) as e:
            raise UsageError(f"lock.json of {str(folder)!r} is not as katgym writes it: {e}") from e
        if not RolloutStore.is_at(copy):
            raise UsageError(f"{str(folder)!r} holds no rollouts yet; `katgym eval` plays them")
        sessions = _read_sessions(copy, check)
        summary = None
        if (copy / "summary.json").exists():
            try:
                summary = read_json(copy / "summary.json")
            except UsageError as e:
                check.refuted.append(str(e))
                summary = {}
    shared = {name: raw[name] for name in _IDENTITY}
    tasks = {
        (env.env_id, task_id): PlannedTask(
            env,
            group_id(shared, raw_env, (task_id, sha256)),
            derive_seed("env", lock.seed, env.env_id, task_id),
            sha256,
        )
        for env, raw_env in zip(lock.envs, raw["envs"], strict=True)
        for task_id, sha256 in env.tasks.items()
    }
    return Bundle(raw, lock, summary, sessions, tasks), check


@contextlib.contextmanager
def _private_copy(folder: Path, check: VerifyCheck) -> Iterator[Path]:
    """Copy the files of a run, which have to be files; note what else lies there."""
    found = {path for pattern in _FILES for path in folder.glob(pattern)}
    if folder.is_dir():
        names = ("finished", ".run", ".guard", "cluster.json")
        known = {*found, *(folder / name for name in names)}
        other = sorted(
            path.name for path in folder.iterdir() if path not in known and "-shm" not in path.name
        )
        if other:
            check.notes.append(f"not of the run, and not looked at: {', '.join(other)}")
    for path in (*found, folder / "finished"):
        is_folder = path.name == "finished"
        kind = stat.S_IFDIR if is_folder else stat.S_IFREG
        if path.is_symlink() or (path.exists() and stat.S_IFMT(path.lstat().st_mode) != kind):
            wanted = "folder" if is_folder else "file"
            raise UsageError(f"{str(path)!r} is no {wanted}; a run holds what it consists of")
    with tempfile.TemporaryDirectory(prefix="katgym-verify-") as name:
        copy = Path(name)
        (copy / "finished").mkdir()
        try:
            for path in found:
                shutil.copyfile(path, copy / path.relative_to(folder))
        except OSError as e:
            raise UsageError(f"{str(folder)!r} cannot be copied to be read: {e}") from e
        try:
            yield copy
        except UsageError as e:
            raise UsageError(str(e).replace(name, str(folder))) from e
        check.refuted = [found.replace(name, str(folder)) for found in check.refuted]


def _read_sessions(folder: Path, check: VerifyCheck) -> list[StoredSession]:
    """Return the sessions that can be read, in the order of their links."""
    sessions: list[StoredSession] = []
    path = folder / "live.sqlite"
    try:
        with sqlite_faults(path), contextlib.closing(sqlite3.connect(path)) as connection:
            if other := foreign_parts(connection):
                raise UsageError(f"the database has {', '.join(other)}, which no run has")
        with RolloutStore.open(folder, create=False) as store:
            for record in store.sessions():
                try:
                    sessions.append(store.stored(record.session_id))
                except Exception as e:  # columns of anybody may hold anything
                    check.refuted.append(f"session {record.session_id!r}: {e!r}")
            if store.num_left_out:
                check.refuted.append(f"{store.num_left_out} of its shards cannot be read")
    except MissingDependencyError:
        raise
    except Exception as e:  # as above
        check.refuted.append(f"its rollouts cannot be read: {e!r}")
    check.num_verified = len(sessions)
    numbers = {id(s): link.number if (link := link_of(s.record)) else 0 for s in sessions}
    return sorted(sessions, key=lambda s: (numbers[id(s)], str(s.record.session_id)))
