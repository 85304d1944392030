"""Garbage collection: expires, drops, seals, and gives space back.

Not here: sealing itself (`sealing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from katgym.errors import check_name
from katgym.rollout_store import live
from katgym.rollout_store.records import ENDED, SessionStatus
from katgym.rollout_store.sealing import OnStep, drop_shard, endable, recover, sealing
from katgym.rollout_store.shards import import_pyarrow
from katgym.rollout_store.store import RolloutStore


@dataclass(slots=True, kw_only=True)
class CollectReport:
    """What collecting did, or would do."""

    expired: list[str] = field(default_factory=list)
    """Open sessions whose deadline had passed."""
    dropped_sessions: list[str] = field(default_factory=list)
    dropped_shards: list[str] = field(default_factory=list)
    sealed: list[str] = field(default_factory=list)
    num_bytes_before: int = 0
    num_bytes_after: int = 0


def collect(
    store: RolloutStore,
    *,
    older_than_s: float | None = None,
    keep_expired: bool = False,
    shards: Sequence[str] = (),
    is_dry: bool = False,
    on_step: OnStep = lambda _: None,
) -> CollectReport:
    """Seal what has ended and drop what is not wanted any more.

    Open sessions whose deadline has passed expire. Expired sessions that are not sealed yet are
    dropped, unless `keep_expired`, then they are sealed like the others.
    older_than_s: also drop sessions that ended longer ago; of shards, those with none younger.
    shards: names of shards to drop, readable or not.
    is_dry: change nothing.

    Needs pyarrow. Raises `UsageError` while another process seals.
    """
    import_pyarrow()
    now = time.time()
    report = CollectReport(num_bytes_before=store.num_bytes())
    if not is_dry:
        with sealing(store.finished):
            recover(store.connections, store.finished)
    oldest_s = None if older_than_s is None else now - older_than_s
    report.expired = _expire(store, now, is_dry=is_dry)
    report.dropped_sessions = _droppable(store, oldest_s, [] if keep_expired else report.expired,
                                         keep_expired=keep_expired)  # fmt: skip
    report.dropped_shards = _droppable_shards(store, oldest_s, shards)
    if is_dry:
        ended = [session_id for _, session_id, _ in endable(store.connections, 0.0)]
        gone = set(report.dropped_sessions)
        report.sealed = [name for name in [*ended, *report.expired] if name not in gone]
        report.num_bytes_after = report.num_bytes_before
        return report
    with sealing(store.finished):
        with store.connections.write(is_durable=True) as connection:
            live.delete_sessions(connection, report.dropped_sessions)
        for name in report.dropped_shards:
            drop_shard(store.connections, store.finished, name, on_step=on_step)
    report.sealed = store.seal(on_step=on_step).sealed
    with store.connections.write() as connection:
        connection.execute(
            "DELETE FROM tools WHERE sha256 NOT IN"
            " (SELECT tools_sha256 FROM turns WHERE tools_sha256 IS NOT NULL)"
        )
    store.connections.vacuum()
    report.num_bytes_after = store.num_bytes()
    return report


def _expire(store: RolloutStore, now: float, *, is_dry: bool) -> list[str]:
    with store.connections.read() as connection:
        found = connection.execute(
            "SELECT session_id FROM sessions WHERE status = ? AND deadline_s < ? ORDER BY id",
            (str(SessionStatus.OPEN), now),
        )
        ids = [row[0] for row in found]
    for session_id in [] if is_dry else ids:
        store.update_session(session_id, status=SessionStatus.EXPIRED, ended_s=now)
    return ids


def _droppable(
    store: RolloutStore, oldest_s: float | None, expired: Sequence[str], *, keep_expired: bool
) -> list[str]:
    """Return the live sessions to drop; expired: those that only would be by now."""
    with store.connections.read() as connection:
        records = live.all_sessions(connection, None)
    found = list(expired)
    for record in records:
        ended_s = record.created_s if record.ended_s is None else record.ended_s
        is_expired = record.status is SessionStatus.EXPIRED and not keep_expired
        is_old = record.status in ENDED and oldest_s is not None and ended_s < oldest_s
        if (is_expired or is_old) and record.session_id not in expired:
            found.append(record.session_id)
    return found


def _droppable_shards(
    store: RolloutStore, oldest_s: float | None, named: Sequence[str]
) -> list[str]:
    with store.connections.read() as connection:
        found = connection.execute("SELECT name, last_s FROM shards ORDER BY name").fetchall()
    known = [row[0] for row in found]
    for name in named:
        check_name("shard", name, known)
    old = [row[0] for row in found if oldest_s is not None and row[1] < oldest_s]
    return sorted({*old, *named})
