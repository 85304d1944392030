"""`RolloutStore`: sessions and their turns, live in SQLite, finished in Parquet.

    with RolloutStore.open(Path("rollouts")) as store:
        store.create_session(SessionRecord(session_id="s1"))
        store.append("s1", [turn])
        store.update_session("s1", status=SessionStatus.FINISHED, reward=Reward(value=1.0))
        store.seal()

Not here: statements (`live.py`), shards (`shards.py`), sealing (`sealing.py`), what is dropped
(`collecting.py`), statistics (`statistics.py`), other formats (`exporting.py`).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym.play.rollout import Turn
from katgym.rollout_store import live, shards
from katgym.rollout_store.connections import Connections, connect
from katgym.rollout_store.faults import sqlite_faults
from katgym.rollout_store.records import (
    FailedCall,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.schema import prepare
from katgym.rollout_store.sealing import MAX_SHARD_BYTES, OnStep, SealReport, seal, tidy_up
from katgym.system import FolderGuard, explain_os_error

logger = logging.getLogger(__name__)

DATABASE = "live.sqlite"
FINISHED = "finished"
GATEWAYS = "gateways.json"
"""Lies in a folder of several gateways' stores (`store_folders.py`)."""

Item = tuple[str, int, Sequence[Turn], Sequence[FailedCall]]
"""What `append` takes: session id, place of the first turn, turns, failed calls."""


class RolloutStore:
    """A folder of rollouts, shared by threads and processes.

    What a writing method has written is with the operating system when it returns, and survives a
    kill of the process. All methods block (benchmarks/rollout_store.csv says how long).
    """

    def __init__(self, folder: Path, connections: Connections) -> None:
        """Use `open` instead."""
        self.folder = folder
        self.finished = folder / FINISHED
        self.connections = connections
        self.num_left_out = 0
        """Times that a shard could not be read and was left out with a warning."""

    @staticmethod
    def is_at(folder: Path | str) -> bool:
        """Return whether a folder is a store."""
        return (Path(folder) / DATABASE).is_file()

    @classmethod
    def open(cls, folder: Path | str, *, create: bool = True) -> RolloutStore:
        """Open a store.

        create: make it if there is none. Raises `UsageError` saying what to do for a store that is
        missing, of another version, or corrupt.
        """
        folder = Path(folder)
        path = folder / DATABASE
        if (folder / GATEWAYS).is_file():
            raise UsageError(
                f"{str(folder)!r} holds the stores of several gateways: name one of them, as"
                f" {str(folder / 'gateway-0')!r}, to write; StoreReader reads all"
            )
        if not create and not cls.is_at(folder):
            raise UsageError(
                f"there is no rollout store at {str(folder)!r}: it has no {DATABASE}. Hint: name"
                " the folder that was given to katgym gateway or RolloutStore.open"
            )
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{str(folder)!r} is a file; a rollout store is a folder")
        with explain_os_error(folder):
            (folder / FINISHED).mkdir(parents=True, exist_ok=True)
        guard = FolderGuard(folder)
        guard.take(should_wait=True)
        try:
            with sqlite_faults(path), contextlib.closing(connect(path)) as connection:
                prepare(connection, path)
            store = cls(folder, Connections(path))
        finally:
            guard.release()
        try:
            tidy_up(store.connections, store.finished)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close it; may be called twice."""
        self.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_session(self, record: SessionRecord) -> None:
        """Begin a session; `UsageError` when its id exists, here or in a shard."""
        with self.connections.write() as connection:
            live.create_session(connection, record)

    def append(
        self,
        session_id: str,
        turns: Sequence[Turn],
        failed: Sequence[FailedCall] = (),
        *,
        first: int = 0,
    ) -> None:
        """Add turns, the first of them as number `first`, and failed calls in one transaction.

        A turn whose place is there with the same call and choice, and a failed call whose id is
        there, are left as they are. Raises `UsageError` for a place that another call has or that
        leaves a gap, a turn that does not hold together, and a session that does not exist, is
        sealed or was recorded whole; nothing is written then.
        """
        self.append_many([(session_id, first, turns, failed)])

    def append_many(self, items: Sequence[Item]) -> None:
        """Add to several sessions in one transaction: all of it or, after an error, nothing."""
        encoded = [live.encode(*item) for item in items]
        with self.connections.write() as connection:
            for item in encoded:
                live.append(connection, item)
        self.connections.written(sum(item.num_bytes for item in encoded))

    def add_sessions(
        self, sessions: Sequence[StoredSession], *, is_durable: bool = False
    ) -> list[str]:
        """Write whole sessions in one transaction: all of them or, after an error, none.

        is_durable: they are on the disk when this returns.

        Returns the ids of those that are new; a session whose id is there, live or sealed, is left
        as it is. Raises `UsageError` for turns that do not hold together.
        """
        encoded = [
            (s.record, live.encode(s.record.session_id, 0, s.turns, s.failed_calls, s.replies))
            for s in sessions
        ]
        added = []
        with self.connections.write(is_durable=is_durable) as connection:
            for record, item in encoded:
                if not live.is_known(connection, record.session_id):
                    live.create_session(connection, record)
                    live.append(connection, item, is_whole=True)
                    added.append(record.session_id)
        self.connections.written(sum(item.num_bytes for _, item in encoded))
        return added

    def update_session(self, session_id: str, **changes: Any) -> SessionRecord:
        """Change fields of a session, and return it; `UsageError` once it is sealed."""
        with self.connections.write() as connection:
            return live.update_session(connection, session_id, changes)

    def session(self, session_id: str) -> SessionRecord:
        """Return a session; `UnknownNameError` (a `UsageError`) if there is none."""
        with self.connections.read() as connection:
            if _shard_of(connection, session_id) is None:
                return live.read_record(connection, session_id)
        return self.stored(session_id).record

    def has_session(self, session_id: str) -> bool:
        """Return whether there is a session of this id, live or sealed."""
        with self.connections.read() as connection:
            return live.is_known(connection, session_id)

    def find_call(self, session_id: str, beginning: str) -> str | None:
        """Return a live session's call that has an answer, by its id's beginning; None for none."""
        with self.connections.read() as connection:
            return live.find_call(connection, session_id, beginning)

    def num_sessions(self) -> int:
        """Return how many sessions there are, live and sealed."""
        with self.connections.read() as connection:
            return live.num_sessions(connection)

    def shard_names(self, connection: sqlite3.Connection) -> list[str]:
        """Return the names of the shards that count, the oldest first."""
        return _finished(connection)

    def keys_of_open_sessions(self) -> dict[str, str]:
        """Return the ids of sessions that are open by the hashes of their keys."""
        with self.connections.read() as connection:
            return live.read_keys(connection)

    def sessions(
        self, status: SessionStatus | None = None, *, without_groups: Collection[str] = ()
    ) -> list[SessionRecord]:
        """Return all sessions, or those in one state: sealed ones first, the oldest first.

        without_groups: group ids of sessions to leave out, whose metadata is then not read. The
        sessions of a shard that cannot be read are left out with a warning that names it.
        """
        with self.connections.read() as connection:
            names = [] if status is SessionStatus.OPEN else _finished(connection)
            records = live.all_sessions(connection, status, without_groups)
        sealed: list[SessionRecord] = []
        for name in names:
            with self.warned():
                sealed += shards.read_records(self.finished, name, without_groups)
        sealed.sort(key=lambda record: record.created_s)
        return [record for record in sealed if status in (None, record.status)] + records

    def records(self, session_ids: Iterable[str]) -> list[SessionRecord]:
        """Return those of some sessions that are there, live or sealed; a shard is read once.

        Those of a shard that cannot be read are left out with a warning.
        """
        found: list[SessionRecord] = []
        in_shard: dict[str, list[str]] = {}
        with self.connections.read() as connection:
            for session_id in session_ids:
                if live.has_session(connection, session_id):
                    found.append(live.read_record(connection, session_id))
                elif name := _sealed_in(connection, session_id):
                    in_shard.setdefault(name, []).append(session_id)
        for name, ids in in_shard.items():
            with self.warned():
                found += shards.read_records(self.finished, name, only=ids)
        return found

    def turns(self, session_id: str) -> list[Turn]:
        """Return a session's turns in their order."""
        return list(self.stored(session_id).turns)

    def failed_calls(self, session_id: str) -> list[FailedCall]:
        """Return a session's failed calls, in the order in which they were kept."""
        return list(self.stored(session_id).failed_calls)

    def stored(self, session_id: str) -> StoredSession:
        """Return a session with everything that is kept of it."""
        return self.stored_many([session_id])[0]

    def stored_many(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Return sessions with everything that is kept of them; each shard is read once.

        `UnknownNameError` if one of them is not there.
        """
        found: dict[str, StoredSession] = {}
        in_shard: dict[str, list[str]] = {}
        with self.connections.read() as connection:
            for session_id in session_ids:
                if (name := _shard_of(connection, session_id)) is None:
                    found[session_id] = live.read_session(connection, session_id)
                else:
                    in_shard.setdefault(name, []).append(session_id)
        for name, ids in in_shard.items():
            for stored in shards.read_sealed(self.finished, name, ids):
                found[stored.record.session_id] = stored
        return [found[session_id] for session_id in session_ids]

    def each(self, statuses: Sequence[SessionStatus] | None = None) -> Iterator[StoredSession]:
        """Yield sessions with everything that is kept of them: shard by shard, then live ones.

        statuses: only sessions in these; None yields all. A shard that cannot be read is left out
        with a warning. Sessions that are sealed meanwhile are yielded once.
        """
        with self.connections.read() as connection:
            names = _finished(connection)
            ids = [record.session_id for record in live.all_sessions(connection, None)]
        for name in names:
            with self.warned():
                for stored in shards.read_shard(self.finished, name):
                    if statuses is None or stored.record.status in statuses:
                        yield stored
        for session_id in ids:
            try:
                found = self.stored(session_id)
            except UnknownNameError:  # dropped meanwhile
                continue
            if statuses is None or found.record.status in statuses:
                yield found

    def seal(
        self,
        *,
        older_than_s: float = 0.0,
        max_shard_bytes: int = MAX_SHARD_BYTES,
        on_step: OnStep = lambda _: None,
    ) -> SealReport:
        """Move sessions that have ended into Parquet; they cannot change any more.

        older_than_s: only those that ended this long ago, so that a reward may still arrive.
        max_shard_bytes: of ids, log-probs and text as SQLite has them; a session is never split.
        on_step: called after each step (see `sealing.OnStep`).

        Needs pyarrow. Raises `UsageError` while another process seals.
        """
        shards.import_pyarrow()
        return seal(
            self.connections,
            self.finished,
            older_than_s=older_than_s,
            max_shard_bytes=max_shard_bytes,
            on_step=on_step,
        )

    def problems(self) -> list[str]:
        """Read everything; return what cannot be read, each with file and what to do."""
        found: list[str] = []
        try:
            with self.connections.read() as connection:
                names = _finished(connection)
                rows = connection.execute("PRAGMA integrity_check").fetchall()
                found += [f"{str(self.connections.path)!r}: {r[0]}" for r in rows if r[0] != "ok"]
                for record in live.all_sessions(connection, None):
                    live.read_session(connection, record.session_id)
        except UsageError as e:
            return [*found, str(e)]
        for name in names:
            try:
                shards.check_shard(self.finished, name)
            except UsageError as e:
                found.append(str(e))
        return found

    def num_bytes(self) -> int:
        """Return the size of the database, its log and the shards."""
        files = [*self.folder.glob(f"{DATABASE}*"), *self.finished.glob("*.parquet")]
        return sum(path.stat().st_size for path in files)

    @contextlib.contextmanager
    def warned(self) -> Iterator[None]:
        """Log what is wrong with a shard instead of raising it."""
        try:
            yield
        except UsageError as e:
            self.num_left_out += 1
            logger.warning("left out: %s", e)


def _shard_of(connection: Any, session_id: str) -> str | None:
    """Return the shard of a session, None for a live one; `UnknownNameError` if there is none."""
    if live.has_session(connection, session_id):
        return None
    name = _sealed_in(connection, session_id)
    if name is None:
        latest = "SELECT session_id FROM sessions ORDER BY id DESC LIMIT 1000"
        known = [known_id for (known_id,) in connection.execute(latest)]
        raise UnknownNameError(unknown_name("session", session_id, known))
    return name


def _sealed_in(connection: Any, session_id: str) -> str | None:
    """Return the shard of a sealed session, None if it is not sealed."""
    found = connection.execute("SELECT shard FROM sealed WHERE session_id = ?", (session_id,))
    return next((str(row[0]) for row in found), None)


def _finished(connection: Any) -> list[str]:
    """Return the names of the shards that count, the oldest first."""
    found = connection.execute("SELECT name FROM shards WHERE state = 'finished' ORDER BY name")
    return [row[0] for row in found]
