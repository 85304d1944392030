"""Sessions page by page: what a list of fifty thousand costs is what of it is looked at.

Live sessions come first, the oldest first, then sealed ones, shard by shard; one that is sealed
meanwhile is listed twice rather than left out. Not here: all of them (`RolloutStore.sessions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from katgym.errors import UsageError
from katgym.rollout_store import live, shards
from katgym.rollout_store.records import SessionRecord, SessionStatus
from katgym.rollout_store.store import RolloutStore

_LIVE = "live"
MAX_PAGE = 10_000


def read_page(
    store: RolloutStore,
    *,
    statuses: Collection[SessionStatus] = (),
    after: str = "",
    limit: int = 1000,
) -> tuple[list[SessionRecord], str]:
    """Return the next sessions, and the cursor to go on after; "" at the end.

    statuses: only sessions in these; none for all. after: a cursor that this returned; "" begins.
    Raises `UsageError` for another one.
    """
    kind, _, number = (after or f"{_LIVE}:0").rpartition(":")
    if not kind or not number.isdecimal() or len(number) > 18:
        raise UsageError(f"after is the cursor of the page before, as 'live:1000', got {after!r}")
    found: list[SessionRecord] = []
    cursor = ""
    with store.connections.read() as connection:
        names = store.shard_names(connection)
        if kind == _LIVE:
            for row, record in live.read_after(connection, int(number), statuses, limit):
                found.append(record)
                cursor = f"{_LIVE}:{row}"
    if len(found) == limit:
        return found, cursor
    for name, place, record in _sealed(store, names, "" if kind == _LIVE else kind, int(number)):
        if not statuses or record.status in statuses:
            found.append(record)
        if len(found) == limit:
            return found, f"{name}:{place + 1}"
    return found, ""


def read_latest(
    store: RolloutStore, *, statuses: Collection[SessionStatus] = (), limit: int
) -> list[SessionRecord]:
    """Return the latest sessions, the oldest of them first."""
    with store.connections.read() as connection:
        found = live.read_latest(connection, statuses, limit)
    if len(found) == limit:
        return found
    records = [r for r in store.sessions() if not statuses or r.status in statuses]
    return records[max(0, len(records) - limit) :]


def _sealed(
    store: RolloutStore, names: list[str], first: str, start: int
) -> Iterator[tuple[str, int, SessionRecord]]:
    """Yield sealed sessions with shard and place, from a place of the shard `first` on."""
    for name in names:
        if name < first:
            continue
        with store.warned():
            for place, record in enumerate(shards.read_records(store.finished, name)):
                if name != first or place >= start:
                    yield name, place, record
