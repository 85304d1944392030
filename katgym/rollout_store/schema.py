"""The tables of a store's database, their version, and the way from older versions to it.

Not here: connections (`connections.py`); what stands in the columns (`encoding.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from katgym.errors import UsageError
from katgym.rollout_store.encoding import NODE_COLUMNS, checksum
from katgym.rollout_store.faults import CorruptStoreError, corrupt_database

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 2
APPLICATION_ID = 0x6B617467
"""`katg`, in the header of the file: other programs' databases are not taken for a store."""

_NODES = """CREATE TABLE nodes (
    id INTEGER PRIMARY KEY, idx INTEGER NOT NULL, call_id TEXT NOT NULL, choice INTEGER NOT NULL,
    parent INTEGER, num_shared INTEGER NOT NULL,
    prompt_ids BLOB NOT NULL, completion_ids BLOB NOT NULL, policy_logprobs BLOB NOT NULL,
    version INTEGER, versions BLOB, branch TEXT, finish_reason TEXT NOT NULL,
    model TEXT NOT NULL, route TEXT NOT NULL, sampling TEXT NOT NULL, upstream TEXT NOT NULL,
    received_s REAL NOT NULL, sent_s REAL NOT NULL, answered_s REAL NOT NULL,
    checksum INTEGER NOT NULL, num_shared_messages INTEGER NOT NULL, tools_sha256 BLOB,
    text NOT NULL)"""
"""A node's `id` is its session's times `MAX_NODES` plus its `idx`: one b-tree to write, not two."""
_FAILED_CALLS = """CREATE TABLE failed_calls (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL, call_id TEXT NOT NULL, route TEXT NOT NULL,
    status INTEGER NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, received_s REAL NOT NULL,
    UNIQUE (session, call_id))"""
_TABLES = (
    """CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL UNIQUE, group_id TEXT NOT NULL, metadata TEXT NOT NULL,
    created_s REAL NOT NULL, ended_s REAL, status TEXT NOT NULL, reward REAL,
    reward_components TEXT NOT NULL, key_sha256 TEXT NOT NULL,
    max_calls INTEGER, max_tokens INTEGER, deadline_s REAL,
    shard TEXT)""",
    "CREATE INDEX sessions_by_status ON sessions(status)",
    _NODES,
    _FAILED_CALLS,
    "CREATE TABLE tools (sha256 BLOB PRIMARY KEY, tools TEXT NOT NULL)",
    """CREATE TABLE shards (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, num_sessions INTEGER NOT NULL DEFAULT 0,
    last_s REAL NOT NULL DEFAULT 0)""",
    "CREATE TABLE sealed (session_id TEXT PRIMARY KEY, shard TEXT NOT NULL) WITHOUT ROWID",
)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database, bring an old one up to date, refuse any other.

    The caller sees to it that no other process does the same. Raises `UsageError`.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if num_tables == 0 and version == 0:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
        return
    if application != APPLICATION_ID:
        raise CorruptStoreError(
            f"{str(path)!r} is a database of another program (application id {application:#x});"
            " name another folder for the rollout store"
        )
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{str(path)!r} was written by a newer katgym: its schema is version {version}, this"
            f" katgym knows versions 1 to {SCHEMA_VERSION}. Hint: pip install -U katgym"
        )
    if version < SCHEMA_VERSION:
        migrate(connection, path, version)


def migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring a database to `SCHEMA_VERSION` in one transaction.

    A copy is kept beside it until everything has been checked; it stays there when that fails.
    """
    backup = path.with_name(f"{path.name}.version-{version}")
    _back_up(connection, backup)
    connection.create_function("node_checksum", 4, checksum, deterministic=True)
    before = _num_rows(connection)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for step in range(version, SCHEMA_VERSION):
            _MIGRATIONS[step](connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        after = _num_rows(connection)
        found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok" or after != before:
            why = f"after migration: {found}, {before} rows became {after}; copy at {str(backup)!r}"
            raise corrupt_database(path, why)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    backup.unlink()
    logger.info("%s: schema version %d became %d", path, version, SCHEMA_VERSION)


def _back_up(connection: sqlite3.Connection, backup: Path) -> None:
    """Write a whole copy of the database; a copy that is there is replaced when this is done."""
    unfinished = backup.with_name(f"{backup.name}.{os.getpid()}")
    with contextlib.closing(sqlite3.connect(unfinished)) as target:
        connection.backup(target)
    unfinished.replace(backup)


def _num_rows(connection: sqlite3.Connection) -> tuple[int, ...]:
    counts = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("sessions", "nodes", "shards", "sealed")
    ]
    return tuple(counts)


def _add_failed_calls_and_checksums(connection: sqlite3.Connection) -> None:
    """Version 1 kept no failed calls, and nothing that tells whether bytes have changed."""
    connection.execute(_FAILED_CALLS)
    connection.execute("ALTER TABLE nodes RENAME TO nodes_1")
    connection.execute(_NODES)
    names = ", ".join(("id", *NODE_COLUMNS))
    values = names.replace(
        "checksum", "node_checksum(prompt_ids, completion_ids, policy_logprobs, text)"
    )
    connection.execute(f"INSERT INTO nodes ({names}) SELECT {values} FROM nodes_1")
    connection.execute("DROP TABLE nodes_1")


_MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _add_failed_calls_and_checksums}
"""Version -> what makes the next one of it."""
