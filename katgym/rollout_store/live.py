"""The live side of a store: what sessions, calls and failures are as rows of SQLite.

Every function works in a transaction of its caller's. Not here: connections (`connections.py`);
sealed sessions (`shards.py`).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from katgym.errors import UsageError, unknown_name
from katgym.rollout_store.encoding import (
    MAX_NODES,
    NODE_COLUMNS,
    failed_to_columns,
    is_hash,
    is_unchanged,
    node_from_columns,
    node_to_columns,
    text_from_columns,
    to_json,
)
from katgym.rollout_store.faults import corrupt_database
from katgym.rollout_store.records import (
    FailedCall,
    Node,
    NodeText,
    SessionRecord,
    SessionStatus,
    StoredSession,
)

_CHANGEABLE = sorted({field.name for field in fields(SessionRecord)} - {"session_id", "created_s"})
_SESSION_COLUMNS = (
    *("session_id", "group_id", "metadata", "created_s", "ended_s", "status", "reward"),
    *("reward_components", "key_sha256", "max_calls", "max_tokens", "deadline_s"),
)


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


NODES_OF_SESSION = f"n.id BETWEEN s.id * {MAX_NODES} AND s.id * {MAX_NODES} + {MAX_NODES - 1}"
"""Joins `nodes n` to `sessions s`."""
_INSERT_NODE = _insert("nodes", ("id", *NODE_COLUMNS)) + " ON CONFLICT DO NOTHING"
_INSERT_FAILED = (
    _insert("failed_calls",
            ("session", "call_id", "route", "status", "kind", "reason", "received_s"))
    + " ON CONFLICT DO NOTHING"
)  # fmt: skip
_INSERT_TOOLS = "INSERT INTO tools (sha256, tools) VALUES (?, ?) ON CONFLICT DO NOTHING"
_INSERT_SESSION = _insert("sessions", _SESSION_COLUMNS)
_UPDATE_SESSION = (
    f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in _SESSION_COLUMNS)} WHERE id = ?"
)
_SELECT_LENGTH = (
    "SELECT num_shared + (length(prompt_ids) + length(completion_ids)) / 4 FROM nodes WHERE id = ?"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one `append` writes, encoded before anybody has to wait for it."""

    session_id: str
    nodes: Sequence[tuple[tuple[Any, ...], tuple[bytes, str] | None]]
    failed: Sequence[tuple[Any, ...]]
    num_bytes: int


def encode(
    session_id: str, nodes: Iterable[tuple[Node, NodeText]], failed: Iterable[FailedCall]
) -> Encoded:
    """Encode; `UsageError` for what does not hold together."""
    rows = [node_to_columns(node, text) for node, text in nodes]
    size = sum(len(v[5]) + len(v[6]) + len(v[7]) + len(v[-1]) for v, _ in rows)  # blobs and text
    return Encoded(session_id, rows, [failed_to_columns(call) for call in failed], size)


def append(connection: sqlite3.Connection, encoded: Encoded) -> None:
    """Write nodes and failed calls; those that are there already are left as they are."""
    session = _writable(connection, encoded.session_id)
    for values, tools in encoded.nodes:
        index, call_id, choice, parent, num_shared = values[:5]
        node = session * MAX_NODES + index
        if tools is not None:
            connection.execute(_INSERT_TOOLS, tools)
        if parent is not None:
            _check_parent(connection, encoded.session_id, session, index, parent, num_shared)
        if connection.execute(_INSERT_NODE, (node, *values)).rowcount == 0:
            _check_same(connection, encoded.session_id, node, (index, call_id, choice))
    for call in encoded.failed:
        connection.execute(_INSERT_FAILED, (session, *call))


def create_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    """Write a session; `UsageError` when its id exists."""
    if is_known(connection, record.session_id):
        raise UsageError(f"session {record.session_id!r} exists already; ids are never used again")
    connection.execute(_INSERT_SESSION, _session_columns(record))


def is_known(connection: sqlite3.Connection, session_id: str) -> bool:
    """Return whether there is a session, live or sealed."""
    found = connection.execute(
        "SELECT 1 FROM sessions WHERE session_id = ?"
        " UNION ALL SELECT 1 FROM sealed WHERE session_id = ?",
        (session_id, session_id),
    ).fetchone()
    return found is not None


def has_call(connection: sqlite3.Connection, session_id: str, call_id: str) -> bool:
    """Return whether a live session holds an answer of a call; looks at no blob."""
    found = connection.execute(
        f"SELECT 1 FROM sessions s JOIN nodes n ON {NODES_OF_SESSION}"
        " WHERE s.session_id = ? AND n.call_id = ? LIMIT 1",
        (session_id, call_id),
    )
    return found.fetchone() is not None


def num_sessions(connection: sqlite3.Connection) -> int:
    """Return how many sessions there are, live and sealed."""
    found = connection.execute(
        "SELECT (SELECT count(*) FROM sealed) + (SELECT count(*) FROM sessions"
        " WHERE session_id NOT IN (SELECT session_id FROM sealed))"
    ).fetchone()
    return int(found[0])


def update_session(
    connection: sqlite3.Connection, session_id: str, changes: Mapping[str, Any]
) -> SessionRecord:
    """Change fields of a session that is not sealed, and return it."""
    for name in changes:
        if name not in _CHANGEABLE:
            raise UsageError(unknown_name("field of a session that can change", name, _CHANGEABLE))
    row = _writable(connection, session_id)
    found = connection.execute("SELECT * FROM sessions WHERE id = ?", (row,)).fetchone()
    record = replace(_record(found), **changes)
    connection.execute(_UPDATE_SESSION, (*_session_columns(record), row))
    return record


def has_session(connection: sqlite3.Connection, session_id: str) -> bool:
    """Return whether there is a live session of this id; the readers below want one."""
    found = connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,))
    return found.fetchone() is not None


def read_record(connection: sqlite3.Connection, session_id: str) -> SessionRecord:
    """Return a live session."""
    found = connection.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,))
    return _record(found.fetchone())


def all_sessions(
    connection: sqlite3.Connection,
    status: SessionStatus | None,
    without_groups: Collection[str] = (),
) -> list[SessionRecord]:
    """Return the live sessions that are not of some groups, the oldest first."""
    where = "" if status is None else " WHERE status = ?"
    values = () if status is None else (str(status),)
    found = connection.execute(f"SELECT * FROM sessions{where} ORDER BY id", values)
    return [_record(row) for row in found if row["group_id"] not in without_groups]


def delete_sessions(connection: sqlite3.Connection, session_ids: Sequence[str]) -> None:
    """Remove sessions with everything that is kept of them."""
    for session_id in session_ids:
        row = connection.execute(
            "DELETE FROM sessions WHERE session_id = ? RETURNING id", (session_id,)
        ).fetchone()
        if row is not None:
            first = row[0] * MAX_NODES
            connection.execute(
                "DELETE FROM nodes WHERE id >= ? AND id < ?", (first, first + MAX_NODES)
            )
            connection.execute("DELETE FROM failed_calls WHERE session = ?", (row[0],))


def read_nodes(connection: sqlite3.Connection, session_id: str) -> list[Node]:
    """Return a live session's nodes in their order."""
    return [node_from_columns(row) for row in _node_rows(connection, session_id)]


def read_texts(connection: sqlite3.Connection, session_id: str) -> list[NodeText]:
    """Return the texts of a live session's nodes, in their order."""
    return [text_from_columns(row, row["tools"]) for row in _node_rows(connection, session_id)]


def read_failed(connection: sqlite3.Connection, session_id: str) -> list[FailedCall]:
    """Return a live session's failed calls, in the order in which they were kept."""
    found = connection.execute(
        "SELECT call_id, route, f.status, kind, reason, received_s FROM failed_calls f"
        " JOIN sessions s ON s.id = f.session WHERE session_id = ? ORDER BY f.id",
        (session_id,),
    )
    return [FailedCall(**dict(row)) for row in found]


def read_session(
    connection: sqlite3.Connection, session_id: str, *, is_compact: bool = False
) -> StoredSession:
    """Return a live session with everything that is kept of it; see `node_from_columns`."""
    record = read_record(connection, session_id)
    rows = _node_rows(connection, session_id)
    return StoredSession(
        record=record,
        nodes=[node_from_columns(row, is_compact=is_compact) for row in rows],
        texts=[text_from_columns(row, row["tools"]) for row in rows],
        failed_calls=read_failed(connection, session_id),
    )


def _node_rows(connection: sqlite3.Connection, session_id: str) -> list[dict[str, Any]]:
    found = connection.execute(
        f"SELECT n.*, t.tools FROM sessions s JOIN nodes n ON {NODES_OF_SESSION}"
        " LEFT JOIN tools t ON t.sha256 = n.tools_sha256 WHERE session_id = ? ORDER BY n.id",
        (session_id,),
    )
    rows = [dict(row) for row in found]
    tools = {row["tools_sha256"]: row["tools"] for row in rows}
    good = {hash for hash, text in tools.items() if is_hash(hash, text)}
    changed = [r["idx"] for r in rows if not (is_unchanged(r) and r["tools_sha256"] in good)]
    if changed:
        path = Path(connection.execute("PRAGMA database_list").fetchone()["file"])
        raise corrupt_database(
            path, f"the bytes of nodes {changed} of session {session_id!r} have changed"
        )
    return rows


def _writable(connection: sqlite3.Connection, session_id: str) -> int:
    """Return a live session's row; `UsageError` if there is none or it is sealed."""
    row = connection.execute(
        "SELECT id, shard FROM sessions WHERE session_id = ?", (session_id,)
    ).fetchone()
    if row is not None and row[1] is None:
        return int(row[0])
    sealed = connection.execute(
        "SELECT 1 FROM sealed WHERE session_id = ?", (session_id,)
    ).fetchone()
    if row is not None or sealed:
        raise UsageError(
            f"session {session_id!r} has ended and is sealed; nothing can be added or changed"
        )
    raise UsageError(f"there is no session {session_id!r}; create_session comes first")


def _check_parent(
    connection: sqlite3.Connection,
    session_id: str,
    session: int,
    index: int,
    parent: int,
    num_shared: int,
) -> None:
    found = connection.execute(_SELECT_LENGTH, (session * MAX_NODES + parent,)).fetchone()
    if found is None:
        raise UsageError(
            f"node {index} of session {session_id!r} has parent {parent}, which is not there;"
            " a parent is appended before its children"
        )
    if num_shared > found[0]:
        raise UsageError(
            f"node {index} of session {session_id!r} shares {num_shared} tokens with node"
            f" {parent}, which has {found[0]}"
        )


def _check_same(
    connection: sqlite3.Connection, session_id: str, node: int, new: tuple[int, str, int]
) -> None:
    index, call_id, choice = new
    old = connection.execute("SELECT call_id, choice FROM nodes WHERE id = ?", (node,)).fetchone()
    if tuple(old) != (call_id, choice):
        raise UsageError(
            f"node {index} of session {session_id!r} is there already: choice {old[1]} of call"
            f" {old[0]!r}, not choice {choice} of call {call_id!r}"
        )


def _session_columns(record: SessionRecord) -> tuple[Any, ...]:
    if not record.session_id:
        raise UsageError("session_id is empty; a session has a name")
    components = dict(record.reward_components)
    for name, value in {"": record.reward, **components}.items():
        is_known = name or value is not None
        if is_known and not (isinstance(value, (int, float)) and math.isfinite(value)):
            what = f"component {name!r} of the reward" if name else "the reward"
            raise UsageError(
                f"{what} of session {record.session_id!r} is {value!r}; it is a finite number"
                + ("" if name else ", or None if there is no valid one")
            )
    return (
        *(record.session_id, record.group_id, to_json("metadata", dict(record.metadata))),
        *(record.created_s, record.ended_s, str(SessionStatus(record.status)), record.reward),
        *(to_json("reward_components", components), record.key_sha256),
        *(record.max_calls, record.max_tokens, record.deadline_s),
    )


def _record(row: sqlite3.Row) -> SessionRecord:
    values = {name: row[name] for name in _SESSION_COLUMNS}
    values["status"] = SessionStatus(values["status"])
    for name in ("metadata", "reward_components"):
        values[name] = json.loads(values[name])
    return SessionRecord(**values)
