"""Stores that are missing, old, newer or damaged: named, with what to do; the rest is readable."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_sessions import BRANCHED, add, turn

from katgym import MissingDependencyError, UsageError, assistant, user
from katgym.policies.expert_routes import write_routes
from katgym.rollout_store import CorruptStoreError, RolloutStore, SessionStatus, statistics
from katgym.rollout_store.schema import foreign_parts


def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    RolloutStore.open(tmp_path).close()
    for version, words in (
        (9, "a newer katgym: its schema is version 9, this katgym reads version 5.*pip install"),
        (2, "an older katgym: its schema is version 2, .* Hint: name another folder"),
    ):
        with contextlib.closing(sqlite3.connect(tmp_path / "live.sqlite")) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(UsageError, match=words):
            RolloutStore.open(tmp_path)
        with contextlib.closing(sqlite3.connect(tmp_path / "live.sqlite")) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (version,)


def test_a_missing_store_a_file_and_another_programs_database_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no rollout store at .*nowhere"):
        RolloutStore.open(tmp_path / "nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file; a rollout store is a folder"):
        RolloutStore.open(tmp_path / "file")
    with contextlib.closing(sqlite3.connect(tmp_path / "live.sqlite")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(CorruptStoreError, match="database of another program"):
        RolloutStore.open(tmp_path)


def test_a_corrupt_database_is_named(tmp_path: Path) -> None:
    with RolloutStore.open(tmp_path) as store:
        for name in range(40):
            add(store, f"s{name}")
    path = tmp_path / "live.sqlite"
    whole = path.read_bytes()

    def use() -> None:
        with RolloutStore.open(tmp_path) as store:
            for stored in store.each():
                assert stored.turns

    use()
    for damaged in (
        (b"no database" * 372 + b"1234") + whole[4096:],
        whole[: len(whole) // 2],
        whole[:4096] + b"\x55" * (len(whole) - 4096),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptStoreError) as caught:
            use()
        assert str(path) in str(caught.value)
        assert "move the database away" in str(caught.value)


def test_changed_bytes_of_a_turn_are_noticed(store: RolloutStore) -> None:
    add(store, "s1")
    add(store, "s2")
    with store.connections.write() as connection:
        connection.execute("UPDATE turns SET completion_ids = x'01000000' WHERE call_id = 'call-2'"
                           " AND id < 2 * 1048576")  # fmt: skip
    with pytest.raises(
        CorruptStoreError, match=r"bytes of turns \[2\] of session 's1' have changed"
    ):
        store.turns("s1")
    assert len(store.turns("s2")) == 3
    assert "have changed" in store.problems()[0]
    with pytest.raises(CorruptStoreError):
        store.seal()  # damage is not copied
    assert len(store.turns("s2")) == 3
    with store.connections.write() as connection:
        connection.execute("UPDATE tools SET tools = '[]'")
    with pytest.raises(CorruptStoreError, match="have changed"):
        store.turns("s2")


def test_a_corrupt_shard_is_named_and_the_others_stay_readable(
    store: RolloutStore, caplog: pytest.LogCaptureFixture
) -> None:
    add(store, "s1")
    (bad,) = store.seal().shards
    add(store, "s2")
    (good,) = store.seal().shards
    path = store.finished / f"turns-{bad}.parquet"
    whole = path.read_bytes()
    place = whole.index(b"tiny")  # a page of a column
    for damage, content in {
        "flip": whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :],
        "cut": whole[:100],
        "gone": None,
        "other": (store.finished / f"turns-{good}.parquet").read_bytes(),
    }.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        caplog.clear()
        with RolloutStore.open(store.folder) as again:
            with pytest.raises(CorruptStoreError, match=f"turns-{bad}.parquet.*--drop-shard {bad}"):
                again.turns("s1")
            assert again.turns("s2") == BRANCHED
            with caplog.at_level(logging.WARNING):
                assert [s.record.session_id for s in again.each()] == ["s2"]
            assert f"turns-{bad}.parquet" in caplog.text, damage
            assert len(again.problems()) == 1, damage
            if damage in ("cut", "gone"):  # the others can be counted: only what is read is checked
                assert len(statistics(again).unreadable) == 1, damage


def test_a_shard_of_another_version_is_refused(store: RolloutStore) -> None:
    add(store, "s1")
    (name,) = store.seal().shards
    path = store.finished / f"rollouts-{name}.parquet"
    table = pq.read_table(path)
    for version in ("2", "9"):
        told = {"katgym.rollout_store.version": version}
        pq.write_table(table.replace_schema_metadata(told), path)
        with pytest.raises(UsageError, match=f"its schema is version {version}"):
            store.session("s1")


def test_without_pyarrow_only_parquet_is_refused(
    store: RolloutStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    add(store, "s", [])
    with pytest.raises(MissingDependencyError, match=r"pip install 'katgym\[serve\]'"):
        store.seal()
    assert store.session("s").status is SessionStatus.FINISHED
    assert issubclass(MissingDependencyError, ImportError)


def test_a_store_of_version_3_is_read_and_goes_on(tmp_path: Path) -> None:
    told = turn(3, 1, 7, [7], [9], [user("?")], assistant("!"), 3, routes=write_routes([[[1]]] * 2))
    with RolloutStore.open(tmp_path) as store:
        for name in ("sealed", "live"):
            add(
                store, name, status=SessionStatus.OPEN if name == "live" else SessionStatus.FINISHED
            )
        store.seal()
    (shard,) = (tmp_path / "finished").glob("turns-*.parquet")
    table = pq.read_table(shard).drop_columns(["routes"])
    other = pq.read_table(rollouts := shard.with_name(shard.name.replace("turns", "rollouts")))
    for path, found in ((shard, table), (rollouts, other)):
        pq.write_table(found.replace_schema_metadata({"katgym.rollout_store.version": "3"}), path)
    with contextlib.closing(sqlite3.connect(tmp_path / "live.sqlite")) as connection:
        connection.execute("ALTER TABLE turns DROP COLUMN routes")
        for what in ("TRIGGER session_created", "TRIGGER session_changed", "TABLE changes",
                     "TABLE firsts", "TABLE epochs"):  # fmt: skip
            connection.execute(f"DROP {what}")
        connection.execute("ALTER TABLE shards DROP COLUMN has_changes")
        connection.execute("PRAGMA user_version = 3")
        assert foreign_parts(connection) == []
    with RolloutStore.open(tmp_path) as store:
        assert store.turns("sealed") == store.turns("live") == BRANCHED
        store.append("live", [told], first=3)
        assert store.turns("live") == [*BRANCHED, told]
        store.update_session("live", status=SessionStatus.FINISHED, ended_s=1010.0)
        store.seal()
        assert store.turns("live") == [*BRANCHED, told]
        assert store.turns("sealed") == BRANCHED
    with contextlib.closing(sqlite3.connect(tmp_path / "live.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
        assert foreign_parts(connection) == []
