"""Moves ended sessions from SQLite into shards, so that a kill at any moment loses or doubles none.

    1  in one transaction: name the shard, state `writing`; its sessions can be changed no more
    2  write its two files, each whole or not at all
    3  in one transaction: the shard is `finished`, its sessions are in it and in SQLite no more

Until step 3 the sessions are read from SQLite, from it on from the shard. Whoever seals next takes
back what stopped before. A shard is dropped likewise: state `dropped`, then the files, then its
row. One process seals at a time.

Not here: the files (`shards.py`); what readers see (`store.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from katgym.errors import UsageError, check_name
from katgym.rollout_store import live
from katgym.rollout_store.connections import Connections
from katgym.rollout_store.records import ENDED, StoredSession
from katgym.rollout_store.schema import CHANGE
from katgym.rollout_store.shards import (
    read_memberships,
    read_records,
    rollouts_file,
    turns_file,
    write_rollouts,
    write_turns,
)
from katgym.system import FolderGuard, explain_os_error

logger = logging.getLogger(__name__)

MAX_SHARD_BYTES = 32 * 2**20
"""Of one shard: it is in memory while it is written, and writers wait while it leaves SQLite."""

OnStep = Callable[[str], None]
"""Called with each step's name after it: `named`, `turns`, `rollouts`, `moved`, `dropped`."""


@dataclass(slots=True, kw_only=True)
class SealReport:
    """What sealing or collecting did, or would do."""

    sealed: list[str] = field(default_factory=list)
    """Ids of the sessions that went into shards."""
    shards: list[str] = field(default_factory=list)
    """Names of the shards that were written."""


def seal(
    connections: Connections,
    folder: Path,
    *,
    older_than_s: float,
    max_shard_bytes: int,
    on_step: OnStep,
) -> SealReport:
    """Seal the sessions that ended at least `older_than_s` ago; see `RolloutStore.seal`."""
    report = SealReport()
    with sealing(folder):
        recover(connections, folder)
        for batch in _batches(endable(connections, older_than_s), max_shard_bytes):
            name = f"{int(time.time()):011d}-{uuid.uuid4().hex[:8]}"
            ids = _name(connections, name, [row for row, _, _ in batch])
            on_step("named")
            sessions: list[StoredSession] = []
            for session_id in ids:  # one at a time: other readers go on between them
                with connections.read() as connection:
                    sessions.append(live.read_session(connection, session_id, is_compact=True))
            write_turns(folder, name, sessions)
            on_step("turns")
            write_rollouts(folder, name, sessions)
            on_step("rollouts")
            # In one transaction the shard is finished and its rows leave SQLite.
            last_s = max((s.record.ended_s or s.record.created_s for s in sessions), default=0.0)
            with connections.write(is_durable=True) as connection:
                _seal_ids(connection, name, ids, last_s)
                live.delete_sessions(connection, ids)
            connections.written(sum(num_bytes for _, _, num_bytes in batch))
            on_step("moved")
            report.sealed += ids
            report.shards.append(name)
    return report


def endable(connections: Connections, older_than_s: float) -> list[tuple[int, str, int]]:
    """Return row, id and size in bytes of the live sessions that ended long enough ago."""
    marks = ", ".join("?" * len(ENDED))
    with connections.read() as connection:
        found = connection.execute(
            "SELECT s.id, session_id, total(length(prompt_ids) + length(completion_ids)"
            " + length(policy_logprobs) + length(text)) FROM sessions s"
            f" LEFT JOIN turns n ON {live.TURNS_OF_SESSION}"
            f" WHERE s.status IN ({marks}) AND coalesce(s.ended_s, created_s) <= ?"
            " GROUP BY s.id ORDER BY s.id",
            (*map(str, ENDED), time.time() - older_than_s),
        )
        return [(row[0], row[1], int(row[2])) for row in found]


@contextlib.contextmanager
def sealing(folder: Path) -> Iterator[None]:
    """Keep other processes from sealing; `UsageError` if one is at it."""
    guard = FolderGuard(folder, hint="try again later: it seals what there is")
    with explain_os_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    guard.take()
    try:
        yield
    finally:
        guard.release()


def tidy_up(connections: Connections, folder: Path) -> None:
    """Recover where that is needed, unless somebody is sealing right now, who does it himself."""
    with connections.read() as connection:
        found = connection.execute("SELECT name, state, has_changes FROM shards").fetchall()
    is_tidy = all(state == "finished" and has_changes for _, state, has_changes in found)
    if is_tidy and not unknown_shards(folder, [row[0] for row in found]):
        return
    guard = FolderGuard(folder)
    try:
        guard.take()
    except UsageError:
        return
    try:
        recover(connections, folder)
    finally:
        guard.release()


def recover(connections: Connections, folder: Path) -> None:
    """Take back shards that were not finished, remove dropped ones, take in unknown ones.

    Unknown ones are there when the database was lost and the shards were not. Their sessions
    change, and so do those of shards that an older katgym wrote.
    """
    with connections.read() as connection:
        states = dict(connection.execute("SELECT name, state FROM shards").fetchall())
    for name, state in states.items():
        if state != "finished":
            rollouts_file(folder, name).unlink(missing_ok=True)
            turns_file(folder, name).unlink(missing_ok=True)
            with connections.write() as connection:
                connection.execute("UPDATE sessions SET shard = NULL WHERE shard = ?", (name,))
                connection.execute("DELETE FROM shards WHERE name = ?", (name,))
    for path in folder.glob(".*.parquet-*"):  # a kill while writing
        path.unlink(missing_ok=True)
    for name in unknown_shards(folder, states):
        _adopt(connections, folder, name)
    with connections.read() as connection:
        found = connection.execute("SELECT name FROM shards WHERE NOT has_changes ORDER BY name")
        names = [row[0] for row in found]
    for name in names:
        _change_sealed(connections, folder, name)


def unknown_shards(folder: Path, known: Sequence[str] | dict[str, str]) -> list[str]:
    """Return the names of whole shards in a folder that the database does not know."""
    found = [path.stem.removeprefix("rollouts-") for path in folder.glob("rollouts-*.parquet")]
    return sorted(name for name in found if name not in known)


def drop_shard(connections: Connections, folder: Path, name: str, *, on_step: OnStep) -> None:
    """Remove a shard and its sessions for good; the caller holds `sealing`."""
    with connections.write(is_durable=True) as connection:
        known = [row[0] for row in connection.execute("SELECT name FROM shards")]
        check_name("shard", name, known)
        connection.execute("UPDATE shards SET state = 'dropped' WHERE name = ?", (name,))
        connection.execute("DELETE FROM sealed WHERE shard = ?", (name,))
    on_step("dropped")
    recover(connections, folder)


def _batches(
    rows: Sequence[tuple[int, str, int]], max_bytes: int
) -> Iterator[list[tuple[int, str, int]]]:
    batch: list[tuple[int, str, int]] = []
    num_bytes = 0
    for row in rows:
        if batch and num_bytes + row[2] > max_bytes:
            yield batch
            batch, num_bytes = [], 0
        batch.append(row)
        num_bytes += row[2]
    if batch:
        yield batch


def _name(connections: Connections, name: str, rows: Sequence[int]) -> list[str]:
    """Name a shard and keep its sessions from changing; return their ids."""
    marks = ", ".join("?" * len(ENDED))
    with connections.write(is_durable=True) as connection:
        connection.execute("INSERT INTO shards (name, state) VALUES (?, 'writing')", (name,))
        connection.executemany(
            f"UPDATE sessions SET shard = ? WHERE id = ? AND status IN ({marks})",
            [(name, row, *map(str, ENDED)) for row in rows],
        )
        found = connection.execute("SELECT session_id FROM sessions WHERE shard = ?", (name,))
        return [row[0] for row in found]


def _seal_ids(
    connection: sqlite3.Connection,
    name: str,
    ids: Sequence[str],
    last_s: float,
    *,
    has_changes: bool = True,
) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO shards (name, state, num_sessions, last_s, has_changes)"
        " VALUES (?, 'finished', ?, ?, ?)",
        (name, len(ids), last_s, has_changes),
    )
    connection.executemany("INSERT INTO sealed (session_id, shard) VALUES (?, ?)",
              [(session_id, name) for session_id in ids])  # fmt: skip


def _adopt(connections: Connections, folder: Path, name: str) -> None:
    """Take in a shard of which the database knows nothing, unless it knows its sessions."""
    try:
        records = read_records(folder, name)
        if not turns_file(folder, name).exists():
            raise UsageError(f"{str(turns_file(folder, name))!r} is missing")
    except UsageError as e:
        logger.warning("an unknown shard is left alone: %s", e)
        return
    with connections.write(is_durable=True) as connection:
        known = [
            record.session_id
            for record in records
            if connection.execute(
                "SELECT 1 FROM sessions WHERE session_id = ?"
                " UNION ALL SELECT 1 FROM sealed WHERE session_id = ?",
                (record.session_id, record.session_id),
            ).fetchone()
        ]
        if known:
            logger.warning(
                "the unknown shard %s is left alone: session %r is in the store already",
                rollouts_file(folder, name),
                known[0],
            )
            return
        last_s = max((r.ended_s or r.created_s for r in records), default=0.0)
        ids = [record.session_id for record in records]
        _seal_ids(connection, name, ids, last_s, has_changes=False)
    logger.warning("took in shard %s, which the database did not know", name)


def _change_sealed(connections: Connections, folder: Path, name: str) -> None:
    """Let readers see that the sessions of a shard are there."""
    try:
        rows = read_memberships(folder, name)
    except UsageError as e:
        logger.warning("nobody is told of new sessions in a shard: %s", e)
        return
    insert, note_first = CHANGE
    with connections.write() as connection:
        for row in rows:
            is_held_out = json.loads(row["metadata"]).get("is_held_out") is True
            values = (row["session_id"], row["group_id"], is_held_out)
            connection.execute(insert.format("?, ?, ?"), values)
            connection.execute(note_first)
        connection.execute("UPDATE shards SET has_changes = 1 WHERE name = ?", (name,))
