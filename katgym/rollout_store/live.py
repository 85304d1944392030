"""The live side of a store: what sessions, calls and failures are as rows of SQLite.

Every function works in a transaction of its caller's. Not here: connections (`connections.py`);
sealed sessions (`shards.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from katgym.environment.messages import Message
from katgym.errors import UsageError, unknown_name
from katgym.play.rollout import Turn
from katgym.rollout_store.encoding import (
    MAX_TURNS,
    TURN_COLUMNS,
    EncodedTurn,
    encode_turn,
    is_hash,
    is_unchanged,
    turns_from_columns,
)
from katgym.rollout_store.faults import corrupt_database
from katgym.rollout_store.records import (
    EpisodeFacts,
    FailedCall,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.session_encoding import (
    failed_to_columns,
    record_from_columns,
    record_to_columns,
)

_CHANGEABLE = sorted({field.name for field in fields(SessionRecord)} - {"session_id", "created_s"})
_SESSION_COLUMNS = SessionRecord.__slots__


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"


TURNS_OF_SESSION = f"n.id BETWEEN s.id * {MAX_TURNS} AND s.id * {MAX_TURNS} + {MAX_TURNS - 1}"
"""Joins `turns n` to `sessions s`."""
_INSERT_TURN = _insert("turns", ("id", *TURN_COLUMNS)) + " ON CONFLICT DO NOTHING"
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
    "SELECT num_shared + (length(prompt_ids) + length(completion_ids)) / 4 FROM turns WHERE id = ?"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one `append` writes, encoded before anybody has to wait for it."""

    session_id: str
    first: int
    turns: Sequence[EncodedTurn]
    failed: Sequence[tuple[Any, ...]]

    @property
    def num_bytes(self) -> int:
        """Of ids, log-probs, text and expert routes."""
        return sum(turn.num_bytes for turn in self.turns)


def encode(
    session_id: str,
    first: int,
    turns: Sequence[Turn],
    failed: Iterable[FailedCall],
    replies: Sequence[Sequence[Message]] = (),
) -> Encoded:
    """Encode the turns from place `first` on; `UsageError` for what does not hold together.

    replies: what came after each turn's answer, where that is known. Tools that are the object of
    the turn before are dumped once.
    """
    encoded: list[EncodedTurn] = []
    for place, turn in enumerate(turns):
        index = first + place
        parent = turn.tokens.parent if turn.tokens else index - 1 if index else None
        tools = encoded[-1].tools if place and turn.tools is turns[place - 1].tools else None
        reply = replies[place] if replies else ()
        encoded.append(encode_turn(turn, index, parent, reply, tools))
    return Encoded(session_id, first, encoded, [failed_to_columns(call) for call in failed])


def append(connection: sqlite3.Connection, encoded: Encoded, *, is_whole: bool = False) -> None:
    """Write turns and failed calls; those that are there already are left as they are.

    is_whole: they are all that a rollout of the agent loop has, to which nothing can be added.
    """
    session_id = encoded.session_id
    session = _writable(connection, session_id, is_added_to=not is_whole)
    first = session * MAX_TURNS
    # Where the turn before is the parent (`values[1]`), the look at its length finds it missing.
    if encoded.turns and encoded.first and encoded.turns[0].values[1] != encoded.first - 1:
        before = connection.execute(
            "SELECT 1 FROM turns WHERE id = ?", (first + encoded.first - 1,)
        )
        if before.fetchone() is None:
            raise UsageError(
                f"turn {encoded.first} of session {session_id!r} is appended before turn"
                f" {encoded.first - 1}; turns are appended in their order"
            )
    for turn in encoded.turns:
        index, parent, num_shared, call_id, choice = turn.values[:5]
        # The tools come first, a turn names them; then the parent's length, which bounds what is
        # shared; then the turn, which a second try of the same call finds there.
        if turn.tools is not None:
            connection.execute(_INSERT_TOOLS, turn.tools)
        if parent is not None:
            length = connection.execute(_SELECT_LENGTH, (first + parent,)).fetchone()
            if length is None:
                raise UsageError(
                    f"turn {index} of session {session_id!r} has parent {parent}, which is not"
                    " there; a parent is appended before its children"
                )
            if num_shared > length[0]:
                raise UsageError(
                    f"turn {index} of session {session_id!r} shares {num_shared} tokens with turn"
                    f" {parent}, which has {length[0]}"
                )
        if connection.execute(_INSERT_TURN, (first + index, *turn.values)).rowcount == 0:
            old = connection.execute(
                "SELECT call_id, choice FROM turns WHERE id = ?", (first + index,)
            ).fetchone()
            if tuple(old) != (call_id, choice):
                raise UsageError(
                    f"turn {index} of session {session_id!r} is there already: choice {old[1]} of"
                    f" call {old[0]!r}, not choice {choice} of call {call_id!r}"
                )
    for call in encoded.failed:
        connection.execute(_INSERT_FAILED, (session, *call))


def create_session(connection: sqlite3.Connection, record: SessionRecord) -> None:
    """Write a session; `UsageError` when its id exists."""
    if is_known(connection, record.session_id):
        raise UsageError(f"session {record.session_id!r} exists already; ids are never used again")
    if not record.session_id:
        raise UsageError("session_id is empty; a session has a name")
    _check_facts(record)
    connection.execute(_INSERT_SESSION, tuple(record_to_columns(record).values()))


def is_known(connection: sqlite3.Connection, session_id: str) -> bool:
    """Return whether there is a session, live or sealed."""
    found = connection.execute(
        "SELECT 1 FROM sessions WHERE session_id = ?"
        " UNION ALL SELECT 1 FROM sealed WHERE session_id = ?",
        (session_id, session_id),
    ).fetchone()
    return found is not None


def find_call(connection: sqlite3.Connection, session_id: str, beginning: str) -> str | None:
    """Return a live session's call that has an answer, by its id's beginning; looks at no blob."""
    found = connection.execute(
        f"SELECT n.call_id FROM sessions s JOIN turns n ON {TURNS_OF_SESSION}"
        " WHERE s.session_id = ? AND substr(n.call_id, 1, ?) = ? LIMIT 1",
        (session_id, len(beginning), beginning),
    ).fetchone()
    return None if found is None else str(found[0])


def read_keys(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the sessions that are open by the hashes of their keys; reads nothing else."""
    found = connection.execute(
        "SELECT key_sha256, session_id FROM sessions WHERE status = ? AND key_sha256 != ''",
        (str(SessionStatus.OPEN),),
    )
    return dict(found.fetchall())


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
    record = replace(record_from_columns(found, found["reward"]), **changes)
    _check_facts(record)
    connection.execute(_UPDATE_SESSION, (*record_to_columns(record).values(), row))
    return record


def take_room(connection: sqlite3.Connection, num_bytes: int) -> None:
    """Write so many bytes and take them back, to see whether they can be written."""
    connection.execute("INSERT INTO tools (sha256, tools) VALUES (x'', ?)", (bytes(num_bytes),))
    connection.execute("DELETE FROM tools WHERE sha256 = x''")


def has_session(connection: sqlite3.Connection, session_id: str) -> bool:
    """Return whether there is a live session of this id; the readers below want one."""
    found = connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,))
    return found.fetchone() is not None


def read_record(connection: sqlite3.Connection, session_id: str) -> SessionRecord:
    """Return a live session."""
    found = connection.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,))
    row = found.fetchone()
    return record_from_columns(row, row["reward"])


def all_sessions(
    connection: sqlite3.Connection,
    status: SessionStatus | None,
    without_groups: Collection[str] = (),
) -> list[SessionRecord]:
    """Return the live sessions that are not of some groups, the oldest first."""
    where = "" if status is None else " WHERE status = ?"
    values = () if status is None else (str(status),)
    found = connection.execute(f"SELECT * FROM sessions{where} ORDER BY id", values)
    return [
        record_from_columns(row, row["reward"])
        for row in found
        if row["group_id"] not in without_groups
    ]


def read_after(
    connection: sqlite3.Connection, row: int, statuses: Collection[SessionStatus], limit: int
) -> list[tuple[int, SessionRecord]]:
    """Return the live sessions after a row, each with its own."""
    where, values = _where(statuses)
    found = connection.execute(
        f"SELECT * FROM sessions WHERE {where} AND id > ? ORDER BY id LIMIT ?",
        (*values, row, limit),
    )
    return [(each["id"], record_from_columns(each, each["reward"])) for each in found]


def read_latest(
    connection: sqlite3.Connection, statuses: Collection[SessionStatus], limit: int
) -> list[SessionRecord]:
    """Return the last of the live sessions, the oldest of them first."""
    where, values = _where(statuses)
    found = connection.execute(
        f"SELECT * FROM sessions WHERE {where} ORDER BY id DESC LIMIT ?", (*values, limit)
    )
    return [record_from_columns(each, each["reward"]) for each in reversed(found.fetchall())]


def _where(statuses: Collection[SessionStatus]) -> tuple[str, tuple[str, ...]]:
    marks = ", ".join("?" * len(statuses))
    return (f"status IN ({marks})" if statuses else "1"), tuple(map(str, statuses))


def delete_sessions(connection: sqlite3.Connection, session_ids: Sequence[str]) -> None:
    """Remove sessions with everything that is kept of them."""
    for session_id in session_ids:
        row = connection.execute(
            "DELETE FROM sessions WHERE session_id = ? RETURNING id", (session_id,)
        ).fetchone()
        if row is not None:
            first = row[0] * MAX_TURNS
            connection.execute(
                "DELETE FROM turns WHERE id >= ? AND id < ?", (first, first + MAX_TURNS)
            )
            connection.execute("DELETE FROM failed_calls WHERE session = ?", (row[0],))


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
    """Return a live session with everything that is kept of it; see `turns_from_columns`."""
    record = read_record(connection, session_id)
    found = connection.execute(
        f"SELECT n.*, t.tools FROM sessions s JOIN turns n ON {TURNS_OF_SESSION}"
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
            path, f"the bytes of turns {changed} of session {session_id!r} have changed"
        )
    return StoredSession(
        record=record,
        turns=turns_from_columns(rows, record.final_messages, is_compact=is_compact),
        failed_calls=read_failed(connection, session_id),
    )


def _writable(connection: sqlite3.Connection, session_id: str, *, is_added_to: bool = False) -> int:
    """Return a live session's row; `UsageError` if there is none or it is sealed."""
    row = connection.execute(
        "SELECT id, shard, rollout IS NOT NULL FROM sessions WHERE session_id = ?", (session_id,)
    ).fetchone()
    if row is not None and is_added_to and row[2]:
        raise UsageError(
            f"session {session_id!r} was recorded whole; nothing can be added to a recorded rollout"
        )
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


def _check_facts(record: SessionRecord) -> None:
    """Raise for metadata that says of an episode what no rollout can say."""
    if record.rollout is None:
        EpisodeFacts.of(record.session_id, record.metadata)
