"""The order of a store's changes: what a reader has not seen yet, however much there is.

Every session that begins or changes gets the next number; turns that are added and sealing change
no session. A number is never used again, and transactions are committed in the order of theirs, so
that whoever has seen all up to one has missed none. `firsts` holds when a group had its first
session that is trained on, and when a session was first held out: it stays, whatever becomes of
them. An epoch is a stretch of changes: each `RolloutStore` that writes begins one with a token of
its own, by which copies of a store that went on apart are told from each other.

Not here: the tables and their triggers (`schema.py`); what is complete (`group_cursor.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from katgym.rollout_store.records import SessionRecord
from katgym.rollout_store.store import RolloutStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed after some change, in the order of the last change of each.

    Example:
        Changes(groups=[("France", 12)], held_out=[("s-17", 15)], last=19)
    """

    groups: Sequence[tuple[str, int]]
    """Ids of groups that are trained on, each with its first change."""
    held_out: Sequence[tuple[str, int]]
    """Ids of held-out sessions, each with its first change as one."""
    last: int
    """The newest change there is."""


def read_changes(store: RolloutStore, after: int) -> Changes:
    """Return what changed after a change; 0 for all there is."""
    found: list[list[tuple[str, int]]] = []
    with store.connections.read() as connection:
        last = connection.execute("SELECT coalesce(max(change), 0) FROM changes").fetchone()[0]
        for is_held_out, name in ((0, "group_id"), (1, "session_id")):
            rows = connection.execute(
                f"SELECT {name}, (SELECT change FROM firsts WHERE is_held_out = {is_held_out}"
                f" AND name = c.{name}) FROM changes c NOT INDEXED WHERE change > ?"
                f" AND is_held_out = {is_held_out} AND {name} <> ''"
                f" GROUP BY {name} ORDER BY max(change)",
                (after,),
            )
            found.append([(row[0], row[1]) for row in rows])
    return Changes(groups=found[0], held_out=found[1], last=last)


def first_changes(
    store: RolloutStore, names: Collection[str], *, is_held_out: bool
) -> dict[str, int]:
    """Return the first change of groups, or of held-out sessions, of those that are known."""
    found = {}
    with store.connections.read() as connection:
        for name in names:
            row = connection.execute(
                "SELECT change FROM firsts WHERE is_held_out = ? AND name = ?", (is_held_out, name)
            ).fetchone()
            if row is not None:
                found[name] = int(row[0])
    return found


def epoch_of(store: RolloutStore, change: int) -> str:
    """Return the token of the epoch of a change; "" for what is older than all."""
    with store.connections.read() as connection:
        found = connection.execute(
            "SELECT token FROM epochs WHERE first <= ? AND ? <= (SELECT max(change) FROM changes)"
            " ORDER BY first DESC LIMIT 1",
            (change, change),
        )
        return next((str(row[0]) for row in found), "")


def known_groups(store: RolloutStore) -> list[str]:
    """Return the ids of all groups that a store has ever had, the empty one too."""
    with store.connections.read() as connection:
        return [row[0] for row in connection.execute("SELECT DISTINCT group_id FROM changes")]


def read_groups(store: RolloutStore, group_ids: Collection[str]) -> dict[str, list[SessionRecord]]:
    """Return the sessions of some groups; nothing of one that has none any more."""
    with store.connections.read() as connection:
        ids = [
            row[0]
            for group_id in group_ids
            for row in connection.execute(
                "SELECT session_id FROM changes WHERE group_id = ?", (group_id,)
            )
        ]
    found: dict[str, list[SessionRecord]] = {}
    for record in store.records(ids):
        if record.group_id in group_ids:
            found.setdefault(record.group_id, []).append(record)
    return found


def num_trainable(store: RolloutStore) -> int:
    """Return how many sessions there are that are not held out."""
    with store.connections.read() as connection:
        found = connection.execute(
            "SELECT count(*) FROM changes WHERE NOT is_held_out AND session_id IN"
            " (SELECT session_id FROM sessions UNION ALL SELECT session_id FROM sealed)"
        )
        return int(found.fetchone()[0])
