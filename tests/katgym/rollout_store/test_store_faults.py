"""Stores that are missing, old, newer or damaged: named, with what to do; the rest is readable."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from made_sessions import BRANCHED, TOOLS, add, turn

from katgym import MissingDependencyError, UsageError, assistant, user
from katgym.policies.expert_routes import write_routes
from katgym.rollout_store import CorruptStoreError, RolloutStore, SessionStatus, statistics
from katgym.rollout_store.schema import foreign_parts


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (9, "a newer katgym: its schema is version 9, this katgym reads version 5.*pip install"),
        (2, "an older katgym: its schema is version 2, .* Hint: name another folder"),
    ],
)
def test_a_store_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, version: int, words: str
) -> None:
    RolloutStore.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(UsageError, match=words):
        RolloutStore.open(tmp_path)
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()


def test_a_missing_store_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no rollout store at .*nowhere"):
        RolloutStore.open(tmp_path / "nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file; a rollout store is a folder"):
        RolloutStore.open(tmp_path / "file")


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(CorruptStoreError, match="database of another program"):
        RolloutStore.open(tmp_path)


@pytest.mark.parametrize("damage", ["garbage", "cut", "holes"])
def test_a_corrupt_database_is_named(tmp_path: Path, damage: str) -> None:
    with RolloutStore.open(tmp_path) as store:
        for name in range(40):
            add(store, f"s{name}")
    path = tmp_path / "live.sqlite"
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data[:4096] = b"no database" * 372 + b"1234"
    elif damage == "cut":
        del data[len(data) // 2 :]
    else:
        data[4096:] = b"\x55" * (len(data) - 4096)
    path.write_bytes(bytes(data))

    def use() -> None:
        with RolloutStore.open(tmp_path) as store:
            for stored in store.each():
                assert stored.turns

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


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "other"])
def test_a_corrupt_shard_is_named_and_the_others_stay_readable(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "s1")
        (bad,) = store.seal().shards
        add(store, "s2")
        (good,) = store.seal().shards
        path = store.finished / f"turns-{bad}.parquet"
        data = bytearray(path.read_bytes())
        if damage == "flip":
            place = data.index(b"tiny")  # a page of a column
            data[place] ^= 0xFF
            path.write_bytes(bytes(data))
        elif damage == "cut":
            path.write_bytes(bytes(data[:100]))
        elif damage == "gone":
            path.unlink()
        else:
            path.write_bytes((store.finished / f"turns-{good}.parquet").read_bytes())
        with pytest.raises(CorruptStoreError, match=f"turns-{bad}.parquet.*--drop-shard {bad}"):
            store.turns("s1")
        assert store.turns("s2") == BRANCHED
        with caplog.at_level(logging.WARNING):
            assert [s.record.session_id for s in store.each()] == ["s2"]
        assert f"turns-{bad}.parquet" in caplog.text
        assert len(store.problems()) == 1
        if damage in ("cut", "gone"):  # the others can be counted: only what is read is checked
            assert len(statistics(store).unreadable) == 1


@pytest.mark.parametrize("version", [2, 9])
def test_a_shard_of_another_version_is_refused(store: RolloutStore, version: int) -> None:
    import pyarrow.parquet as pq

    add(store, "s1")
    (name,) = store.seal().shards
    path = store.finished / f"rollouts-{name}.parquet"
    table = pq.read_table(path)
    table = table.replace_schema_metadata({"katgym.rollout_store.version": str(version)})
    pq.write_table(table, path)
    with pytest.raises(UsageError, match=f"its schema is version {version}"):
        store.session("s1")


def test_without_pyarrow_only_parquet_is_refused(tmp_path: Path) -> None:
    source = f"""
import sys
sys.modules["pyarrow"] = None
from katgym import MissingDependencyError
from katgym.rollout_store import RolloutStore, SessionRecord, SessionStatus
with RolloutStore.open({str(tmp_path)!r}) as store:
    store.create_session(SessionRecord(session_id="s"))
    store.append("s", [])
    store.update_session("s", status=SessionStatus.FINISHED)
    try:
        store.seal()
    except MissingDependencyError as e:
        print(e)
    print(store.session("s").status)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, check=True
    )
    assert "pip install 'katgym[serve]'" in done.stdout
    assert done.stdout.endswith("finished\n")
    assert issubclass(MissingDependencyError, ImportError)


def test_the_readable_columns_are_json(store: RolloutStore) -> None:
    add(store, "s1")
    with store.connections.read() as connection:
        row = connection.execute("SELECT metadata FROM sessions").fetchone()
        assert json.loads(row[0]) == {"env_id": "katgym/Echo-v0"}
        assert json.loads(connection.execute("SELECT tools FROM tools").fetchone()[0]) == TOOLS


def test_a_store_of_version_3_is_read_and_goes_on(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'store'")
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
