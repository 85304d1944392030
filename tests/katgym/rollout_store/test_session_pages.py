"""Pages of sessions: order, cursors, status, live and sealed ones."""

from __future__ import annotations

import pytest

from katgym.errors import UsageError
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import SessionRecord, SessionStatus
from katgym.rollout_store.session_pages import read_latest, read_page


@pytest.fixture
def store(tmp_path):
    """Sessions sealed-0 to 4 and sealed-5 to 9 in two shards, then live-0 to 9, half finished."""
    with RolloutStore.open(tmp_path / "store") as opened:
        for first in (0, 5):
            for i in range(first, first + 5):
                name = f"sealed-{i}"
                opened.create_session(SessionRecord(session_id=name, created_s=float(i)))
                opened.update_session(name, status=SessionStatus.FINISHED, ended_s=1.0)
            opened.seal()
        for i in range(10):
            opened.create_session(SessionRecord(session_id=f"live-{i}", created_s=100.0 + i))
            if i % 2:
                opened.update_session(f"live-{i}", status=SessionStatus.FINISHED, ended_s=200.0)
        yield opened


def walk(store, **options):
    after, pages = "", []
    while True:
        found, after = read_page(store, after=after, **options)
        pages.append([record.session_id for record in found])
        if not after:
            return pages


@pytest.mark.parametrize("limit", [1, 3, 5, 7, 10, 20, 1000])
def test_pages_together_are_all_sessions(store, limit):
    pages = walk(store, limit=limit)
    names = [name for page in pages for name in page]
    assert names[:10] == [f"live-{i}" for i in range(10)]
    assert sorted(names[10:]) == [f"sealed-{i}" for i in range(10)]
    assert all(len(page) <= limit for page in pages)


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_pages_of_one_status(store, limit):
    names = [n for page in walk(store, limit=limit, statuses=[SessionStatus.OPEN]) for n in page]
    assert names == [f"live-{i}" for i in range(0, 10, 2)]
    names = [
        n for page in walk(store, limit=limit, statuses=[SessionStatus.FINISHED]) for n in page
    ]
    assert names[:5] == [f"live-{i}" for i in range(1, 10, 2)]
    assert sorted(names[5:]) == [f"sealed-{i}" for i in range(10)]


@pytest.mark.parametrize(
    "after", ["7", "live", "live:", "live:-1", "live:x", ":3", "live:" + "9" * 30]
)
def test_a_cursor_that_is_none_is_told(store, after):
    with pytest.raises(UsageError, match="after is the cursor of the page before"):
        read_page(store, after=after)


def test_the_latest_are_the_last(store):
    assert [r.session_id for r in read_latest(store, limit=3)] == ["live-7", "live-8", "live-9"]
    found = read_latest(store, statuses=[SessionStatus.FINISHED], limit=2)
    assert [r.session_id for r in found] == ["live-7", "live-9"]
    assert len(read_latest(store, limit=15)) == 15
    assert read_latest(store, limit=0) == []
