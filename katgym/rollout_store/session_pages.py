"""Sessions page by page: what a list of fifty thousand costs is what of it is looked at.

Live sessions come first, the oldest first, then sealed ones, shard by shard; one that is sealed
meanwhile is listed twice rather than left out. Not here: all of them (`RolloutStore.sessions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from katgym.errors import UsageError
from katgym.rollout_store import live, shards
from katgym.rollout_store.records import SessionRecord, SessionStatus
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import StoreReader

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


def read_page_of_all(
    reader: StoreReader,
    *,
    statuses: Collection[SessionStatus] = (),
    after: str = "",
    limit: int = 1000,
) -> tuple[list[SessionRecord], str]:
    """Return the next sessions of several stores, one store after the other; as `read_page`.

    Where there are several, a cursor begins with the number of its store: `2/live:1000`.
    """
    if len(reader.stores) == 1:
        return read_page(reader.stores[0], statuses=statuses, after=after, limit=limit)
    place, slash, cursor = after.partition("/")
    number = int(place) if place.isdecimal() and len(place) < 6 else len(reader.stores)
    if after and not (slash and number < len(reader.stores)):
        raise UsageError(f"after is the cursor of the page before, as '0/live:1000', got {after!r}")
    found: list[SessionRecord] = []
    for index in range(number if after else 0, len(reader.stores)):
        more, cursor = read_page(
            reader.stores[index], statuses=statuses, after=cursor, limit=limit - len(found)
        )
        found += more
        if len(found) == limit:
            return found, f"{index}/{cursor}" if cursor else _next_store(reader, index)
    return found, ""


def _next_store(reader: StoreReader, index: int) -> str:
    return f"{index + 1}/{_LIVE}:0" if index + 1 < len(reader.stores) else ""


def read_latest_of_all(
    reader: StoreReader, *, statuses: Collection[SessionStatus] = (), limit: int
) -> list[SessionRecord]:
    """Return the latest sessions of several stores, the oldest of them first."""
    found = [read_latest(store, statuses=statuses, limit=limit) for store in reader.stores]
    if len(found) == 1:
        return found[0]
    records = sorted(itertools.chain(*found), key=lambda record: record.created_s)
    return records[max(0, len(records) - limit) :]


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
