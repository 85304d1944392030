"""Garbage collection and statistics of a store."""

from __future__ import annotations

import os
import time

import pytest
from made_sessions import BRANCHED, FAILED, TWO_ANSWERS, add, turn

from katgym import Reward, UnknownNameError, UsageError, user
from katgym.rollout_store import RolloutStore, SessionStatus, collect, statistics

DAY_S = 86_400.0


def names(store: RolloutStore) -> list[str]:
    return sorted(record.session_id for record in store.sessions())


@pytest.fixture
def filled(store: RolloutStore) -> RolloutStore:
    now = time.time()
    add(store, "old", ended_s=now - 3 * DAY_S)
    add(store, "new", ended_s=now - 60)
    add(store, "failed", status=SessionStatus.FAILED, ended_s=now - 60)
    add(store, "expired", status=SessionStatus.EXPIRED, ended_s=now - 60)
    add(store, "late", status=SessionStatus.OPEN, deadline_s=now - 1)
    add(store, "open", status=SessionStatus.OPEN, deadline_s=now + DAY_S)
    return store


def test_collecting_seals_what_ended_and_drops_what_expired(filled: RolloutStore) -> None:
    report = collect(filled)
    assert report.expired == ["late"]
    assert sorted(report.dropped_sessions) == ["expired", "late"]
    assert report.sealed == ["old", "new", "failed"]
    assert report.dropped_shards == []
    assert names(filled) == ["failed", "new", "old", "open"]
    assert [r.session_id for r in filled.sessions(SessionStatus.OPEN)] == ["open"]
    with filled.connections.read() as connection:
        for table, num in (("sessions", 1), ("turns", 3), ("tools", 1), ("sealed", 3)):
            found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            assert found == num, table
    with pytest.raises(UsageError, match="session 'new' has ended and is sealed"):
        filled.append("new", [])
    with pytest.raises(UsageError, match="session 'new' has ended and is sealed"):
        filled.update_session("new", reward=Reward(value=1.0))
    with pytest.raises(UsageError, match="session 'new' exists already"):
        add(filled, "new")
    assert collect(filled).sealed == []


def test_a_dry_run_says_the_same_and_changes_nothing(filled: RolloutStore) -> None:
    before = {s.record.session_id: s for s in filled.each()}
    dry = collect(filled, older_than_s=DAY_S, is_dry=True)
    assert {s.record.session_id: s for s in filled.each()} == before
    done = collect(filled, older_than_s=DAY_S)
    assert (dry.expired, dry.sealed) == (done.expired, done.sealed)
    assert sorted(dry.dropped_sessions) == sorted(done.dropped_sessions) == [
        "expired", "late", "old",
    ]  # fmt: skip
    assert names(filled) == ["failed", "new", "open"]


def test_expired_sessions_may_be_kept(filled: RolloutStore) -> None:
    dry = collect(filled, keep_expired=True, is_dry=True)
    report = collect(filled, keep_expired=True)
    assert sorted(report.sealed) == ["expired", "failed", "late", "new", "old"]
    assert sorted(dry.sealed) == sorted(report.sealed)
    assert names(filled) == ["expired", "failed", "late", "new", "old", "open"]


def test_shards_are_dropped_when_no_session_in_them_is_younger(store: RolloutStore) -> None:
    now = time.time()
    add(store, "a", ended_s=now - 9 * DAY_S)
    add(store, "b", ended_s=now - 2 * DAY_S)
    store.seal()
    add(store, "c", ended_s=now - 8 * DAY_S)
    store.seal()
    assert collect(store, older_than_s=10 * DAY_S).dropped_shards == []
    assert len(collect(store, older_than_s=5 * DAY_S).dropped_shards) == 1
    assert names(store) == ["a", "b"]
    with pytest.raises(UnknownNameError, match="unknown session 'c'"):
        store.turns("c")
    (shard,) = {p.stem.removeprefix("turns-") for p in store.finished.glob("turns-*.parquet")}
    with pytest.raises(UnknownNameError, match="unknown shard 'mine'"):
        collect(store, shards=["mine"], is_dry=True)
    assert collect(store, shards=[shard]).dropped_shards == [shard]
    assert names(store) == []
    assert list(store.finished.glob("*.parquet")) == []


def test_only_what_ended_long_enough_ago_is_sealed(filled: RolloutStore) -> None:
    assert filled.seal(older_than_s=DAY_S).sealed == ["old"]
    filled.update_session("new", reward=Reward(value=1.0))  # its reward may still come
    assert filled.seal().sealed == ["new", "failed", "expired"]
    assert filled.session("new").reward == Reward(value=1.0)


def test_many_bytes_become_several_shards(store: RolloutStore) -> None:
    for number in range(5):
        add(store, f"s{number}", [turn(0, None, 0, [7] * 200, [1], [user("a")])])
    report = store.seal(max_shard_bytes=1000)
    assert (len(report.shards), len(report.sealed)) == (5, 5)
    assert [s.record.session_id for s in store.each()] != []
    assert names(store) == [f"s{number}" for number in range(5)]


def test_the_space_of_sealed_sessions_is_given_back(store: RolloutStore) -> None:
    for number in range(20):
        ids = list(os.urandom(20_000))
        add(store, f"s{number}", [turn(0, None, 0, ids, [1], [user("a")])])
    report = collect(store)
    assert report.num_bytes_before > 20 * 80_000
    assert report.num_bytes_after < report.num_bytes_before / 2
    assert (store.folder / "live.sqlite").stat().st_size < 200_000


def test_statistics_count_what_is_there(store: RolloutStore) -> None:
    found = statistics(store)
    assert (found.sharing_ratio, found.bytes_per_token, found.num_calls) == (1.0, 0.0, 0)
    assert collect(store).sealed == []
    add(store, "s1", BRANCHED, failed=[FAILED])
    add(store, "s2", TWO_ANSWERS, status=SessionStatus.FAILED)
    add(store, "s3", [], status=SessionStatus.OPEN)
    for num_sealed, num_shards in ((0, 0), (2, 1)):
        found = statistics(store)
        assert found.num_sessions == {"finished": 1, "failed": 1, "open": 1}
        assert (found.num_sealed, found.num_shards) == (num_sealed, num_shards)
        assert found.num_calls == 5
        assert found.num_prompt_tokens == (2 + 5 + 3) + (2 + 2)
        assert found.num_sampled_tokens == (2 + 2 + 1) + (1 + 2)
        assert found.num_kept_tokens == (4 + 3 + 2) + (3 + 2)
        assert found.sharing_ratio == 22 / 14
        assert found.branches == {"compaction": 1}
        assert found.failed_calls == {"malformed": 1}
        assert found.versions == {7: 2 + 1 + 1 + 3, 8: 1}
        assert found.bytes_per_token == store.num_bytes() / 14
        assert found.to_json()["versions"] == {"7": 7, "8": 1}
        store.seal()
