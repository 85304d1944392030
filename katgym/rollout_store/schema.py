"""The tables of a store's database, and their version.

Not here: connections (`connections.py`); what stands in the columns (`encoding.py`).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from katgym.errors import UsageError
from katgym.rollout_store.faults import CorruptStoreError

SCHEMA_VERSION = 5
OLDER_VERSIONS = (3, 4)
"""Read as well: 3 has turns that tell no expert routes, 4 has no order of changes. A database of
one is brought to this version when it is opened."""
APPLICATION_ID = 0x6B617467
"""`katg`, in the header of the file: other programs' databases are not taken for a store."""

_TURNS = """CREATE TABLE turns (
    id INTEGER PRIMARY KEY, idx INTEGER NOT NULL, call_id TEXT NOT NULL, choice INTEGER NOT NULL,
    parent INTEGER, num_shared INTEGER NOT NULL,
    prompt_ids BLOB NOT NULL, completion_ids BLOB NOT NULL, policy_logprobs BLOB NOT NULL,
    version INTEGER, versions BLOB, branch TEXT, has_tokens INTEGER NOT NULL,
    num_prompt_tokens INTEGER NOT NULL, num_completion_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL, model TEXT NOT NULL, route TEXT NOT NULL, sampling TEXT NOT NULL,
    upstream TEXT NOT NULL, started_s REAL NOT NULL, sent_s REAL NOT NULL,
    completed_s REAL NOT NULL, ended_s REAL NOT NULL,
    checksum INTEGER NOT NULL, num_shared_messages INTEGER NOT NULL, tools_sha256 BLOB,
    tool_results TEXT, text NOT NULL, routes BLOB)"""
"""A turn's `id` is its session's times `MAX_TURNS` plus its `idx`: one b-tree to write, not two."""
_TURNS_3 = _TURNS.replace(", routes BLOB)", ")")
"""As version 3 wrote it; SQLite makes `_TURNS` of it when the column is added."""
_FAILED_CALLS = """CREATE TABLE failed_calls (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL, call_id TEXT NOT NULL, route TEXT NOT NULL,
    status INTEGER NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, received_s REAL NOT NULL,
    UNIQUE (session, call_id))"""
_SHARDS = """CREATE TABLE shards (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, num_sessions INTEGER NOT NULL DEFAULT 0,
    last_s REAL NOT NULL DEFAULT 0, has_changes INTEGER NOT NULL DEFAULT 0)"""
_SHARDS_4 = _SHARDS.replace(", has_changes INTEGER NOT NULL DEFAULT 0)", ")")
_IS_HELD_OUT = "json_type({}metadata, '$.is_held_out') IS 'true'"
CHANGE = (
    "INSERT OR REPLACE INTO changes (session_id, group_id, is_held_out) VALUES ({})",
    """INSERT OR IGNORE INTO firsts (is_held_out, name, change)
    SELECT is_held_out, CASE WHEN is_held_out THEN session_id ELSE group_id END, change
    FROM changes WHERE change = (SELECT max(change) FROM changes)
    AND (is_held_out OR group_id <> '')""",
)
"""What is done when a session changes, of which id, group and whether it is held out are given."""
_CHANGED = f"""
    {CHANGE[0].format(f"NEW.session_id, NEW.group_id, {_IS_HELD_OUT.format('NEW.')}")};
    {CHANGE[1]};
END"""
_CHANGES = (
    """CREATE TABLE changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL UNIQUE,
    group_id TEXT NOT NULL, is_held_out INTEGER NOT NULL)""",
    "CREATE INDEX changes_by_group ON changes(group_id)",
    """CREATE TABLE firsts (
    is_held_out INTEGER NOT NULL, name TEXT NOT NULL, change INTEGER NOT NULL,
    PRIMARY KEY (is_held_out, name)) WITHOUT ROWID""",
    "CREATE TABLE epochs (first INTEGER PRIMARY KEY, token TEXT NOT NULL)",
    "CREATE TRIGGER session_created AFTER INSERT ON sessions BEGIN" + _CHANGED,
    "CREATE TRIGGER session_changed AFTER UPDATE OF group_id, metadata, ended_s, status, reward,"
    " rollout, deadline_s ON sessions BEGIN" + _CHANGED,
)
"""What lets a reader find what it has not seen yet (`changes.py`). Triggers keep it: no writer can
forget to, not even one of version 4 that has the store open while it is brought to this one."""
BEGIN_EPOCH = (
    "INSERT OR REPLACE INTO epochs"
    " SELECT coalesce(max(change), 0) + 1, lower(hex(randomblob(8))) FROM changes"
)
_CHANGES_OF_4 = (
    BEGIN_EPOCH,
    "INSERT INTO changes (session_id, group_id, is_held_out)"
    f" SELECT session_id, group_id, {_IS_HELD_OUT.format('')} FROM sessions"
    " ORDER BY coalesce(ended_s, created_s), id",
    "INSERT OR IGNORE INTO firsts SELECT is_held_out, CASE WHEN is_held_out THEN session_id"
    " ELSE group_id END, change FROM changes WHERE is_held_out OR group_id <> '' ORDER BY change",
)
_TABLES = (
    """CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL UNIQUE, group_id TEXT NOT NULL, metadata TEXT NOT NULL,
    created_s REAL NOT NULL, ended_s REAL, status TEXT NOT NULL, reward TEXT, rollout TEXT,
    key_sha256 TEXT NOT NULL,
    max_calls INTEGER, max_tokens INTEGER, deadline_s REAL,
    shard TEXT)""",
    "CREATE INDEX sessions_by_status ON sessions(status)",
    _TURNS,
    _FAILED_CALLS,
    "CREATE TABLE tools (sha256 BLOB PRIMARY KEY, tools TEXT NOT NULL)",
    _SHARDS,
    "CREATE TABLE sealed (session_id TEXT PRIMARY KEY, shard TEXT NOT NULL) WITHOUT ROWID",
    *_CHANGES,
)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database, refuse one of another version or program.

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
    if version in OLDER_VERSIONS:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == version:
            if version == 3:
                connection.execute("ALTER TABLE turns ADD COLUMN routes BLOB")
            connection.execute(
                "ALTER TABLE shards ADD COLUMN has_changes INTEGER NOT NULL DEFAULT 0"
            )
            for statement in (*_CHANGES, *_CHANGES_OF_4):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    elif version != SCHEMA_VERSION:
        raise UsageError(wrong_version(path, version))


def foreign_parts(connection: sqlite3.Connection) -> list[str]:
    """Return what a database has that no store has: views, other triggers, other columns."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return [
        f"{kind} {name}"
        for kind, name, sql in rows
        if sql not in (*_TABLES, _TURNS_3, _SHARDS_4) and not str(name).startswith("sqlite_")
    ]


def wrong_version(path: Path, version: int) -> str:
    """Return what is said of a file of a store that another katgym wrote."""
    is_newer = version > SCHEMA_VERSION
    hint = (
        "pip install -U katgym"
        if is_newer
        else "name another folder, or go on with the katgym that wrote it"
    )
    return (
        f"{str(path)!r} was written by {'a newer' if is_newer else 'an older'} katgym: its schema"
        f" is version {version}, this katgym reads version {SCHEMA_VERSION}. Hint: {hint}"
    )
