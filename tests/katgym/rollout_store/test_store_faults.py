"""Stores that are missing, old, newer or damaged: named, with what to do; the rest is readable."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_sessions import BRANCHED, FAILED, TOOLS, TWO_ANSWERS, add

from katgym import InfrastructureError, MissingDependencyError, UsageError
from katgym.rollout_store import CorruptStoreError, RolloutStore, SessionRecord, statistics
from katgym.rollout_store.encoding import NODE_COLUMNS, node_to_columns
from katgym.rollout_store.schema import APPLICATION_ID, SCHEMA_VERSION


def write_version_1(folder: Path, sessions: dict[str, list]) -> Path:
    """Write a store as version 1 had it: no failed calls, no checksums."""
    (folder / "finished").mkdir(parents=True)
    path = folder / "live.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    names = [name for name in NODE_COLUMNS if name != "checksum"]
    for statement in (
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL"
        " UNIQUE, group_id TEXT NOT NULL, metadata TEXT NOT NULL, created_s REAL NOT NULL,"
        " ended_s REAL, status TEXT NOT NULL, reward REAL, reward_components TEXT NOT NULL,"
        " key_sha256 TEXT NOT NULL, max_calls INTEGER, max_tokens INTEGER, deadline_s REAL,"
        " shard TEXT)",
        "CREATE INDEX sessions_by_status ON sessions(status)",
        f"CREATE TABLE nodes (id INTEGER PRIMARY KEY, {', '.join(names)})",
        "CREATE TABLE tools (sha256 BLOB PRIMARY KEY, tools TEXT NOT NULL)",
        "CREATE TABLE shards (name TEXT PRIMARY KEY, state TEXT NOT NULL,"
        " num_sessions INTEGER NOT NULL DEFAULT 0, last_s REAL NOT NULL DEFAULT 0)",
        "CREATE TABLE sealed (session_id TEXT PRIMARY KEY, shard TEXT NOT NULL) WITHOUT ROWID",
        f"PRAGMA application_id = {APPLICATION_ID}",
        "PRAGMA user_version = 1",
    ):
        connection.execute(statement)
    for number, (session_id, nodes) in enumerate(sessions.items(), start=1):
        connection.execute(
            "INSERT INTO sessions VALUES (?, ?, 'g', '{}', 5.0, NULL, 'open', NULL, '{}', '', NULL,"
            " NULL, NULL, NULL)",
            (number, session_id),
        )
        for node, text in nodes:
            values, tools = node_to_columns(node, text)
            kept = dict(zip(NODE_COLUMNS, values, strict=True))
            del kept["checksum"]
            marks = ", ".join("?" * (len(kept) + 1))
            connection.execute(
                f"INSERT INTO nodes (id, {', '.join(kept)}) VALUES ({marks})",
                (number * 2**20 + node.index, *kept.values()),
            )
            connection.execute("INSERT OR IGNORE INTO tools VALUES (?, ?)", tools)
    connection.close()
    return path


def test_a_store_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    path = write_version_1(tmp_path, {"s1": BRANCHED, "s2": TWO_ANSWERS})
    for _ in range(2):  # the second time there is nothing to do
        with RolloutStore.open(tmp_path, create=False) as store:
            assert store.nodes("s1") == [n for n, _ in BRANCHED]
            assert store.texts("s2") == [t for _, t in TWO_ANSWERS]
            assert store.session("s1") == SessionRecord(
                session_id="s1", group_id="g", created_s=5.0
            )
            assert store.problems() == []
            store.append("s1", [], [FAILED])
            assert store.failed_calls("s1") == [FAILED]
            with store.connections.read() as connection:
                assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        assert list(tmp_path.glob(f"{path.name}.version-*")) == []


def test_a_migration_that_fails_leaves_the_old_store_and_a_copy(tmp_path: Path) -> None:
    path = write_version_1(tmp_path, {"s1": BRANCHED})
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE failed_calls (in_the_way)")
    connection.close()
    with pytest.raises(InfrastructureError, match="failed_calls already exists"):
        RolloutStore.open(tmp_path)
    copy = tmp_path / "live.sqlite.version-1"
    for file in (path, copy):
        connection = sqlite3.connect(file)
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert connection.execute("SELECT count(*) FROM nodes").fetchone()[0] == 3
        connection.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DROP TABLE failed_calls")
    connection.close()
    with RolloutStore.open(tmp_path) as store:
        assert store.nodes("s1") == [n for n, _ in BRANCHED]
    assert not copy.exists()


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    RolloutStore.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "live.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(
        UsageError, match="newer katgym: its schema is version 9, this katgym knows"
    ):
        RolloutStore.open(tmp_path)


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
                assert stored.nodes

    with pytest.raises(CorruptStoreError) as caught:
        use()
    assert str(path) in str(caught.value)
    assert "move the database away" in str(caught.value)


def test_changed_bytes_of_a_node_are_noticed(store: RolloutStore) -> None:
    add(store, "s1")
    add(store, "s2")
    with store.connections.write() as connection:
        connection.execute("UPDATE nodes SET completion_ids = x'01000000' WHERE call_id = 'call-2'"
                           " AND id < 2 * 1048576")  # fmt: skip
    with pytest.raises(
        CorruptStoreError, match=r"bytes of nodes \[2\] of session 's1' have changed"
    ):
        store.nodes("s1")
    assert len(store.nodes("s2")) == 3
    assert "have changed" in store.problems()[0]
    with pytest.raises(CorruptStoreError):
        store.seal()  # damage is not copied
    assert len(store.nodes("s2")) == 3
    with store.connections.write() as connection:
        connection.execute("UPDATE tools SET tools = '[]'")
    with pytest.raises(CorruptStoreError, match="have changed"):
        store.texts("s2")


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "other"])
def test_a_corrupt_shard_is_named_and_the_others_stay_readable(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RolloutStore.open(tmp_path) as store:
        add(store, "s1")
        (bad,) = store.seal().shards
        add(store, "s2")
        (good,) = store.seal().shards
        path = store.finished / f"nodes-{bad}.parquet"
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
            path.write_bytes((store.finished / f"nodes-{good}.parquet").read_bytes())
        with pytest.raises(CorruptStoreError, match=f"nodes-{bad}.parquet.*--drop-shard {bad}"):
            store.nodes("s1")
        assert store.nodes("s2") == [n for n, _ in BRANCHED]
        with caplog.at_level(logging.WARNING):
            assert [s.record.session_id for s in store.each()] == ["s2"]
        assert f"nodes-{bad}.parquet" in caplog.text
        assert len(store.problems()) == 1
        if damage in ("cut", "gone"):  # the others can be counted: only what is read is checked
            assert len(statistics(store).unreadable) == 1


def test_a_newer_shard_is_refused(store: RolloutStore) -> None:
    import pyarrow.parquet as pq

    add(store, "s1")
    (name,) = store.seal().shards
    path = store.finished / f"rollouts-{name}.parquet"
    table = pq.read_table(path)
    table = table.replace_schema_metadata({"katgym.rollout_store.version": "9"})
    pq.write_table(table, path)
    with pytest.raises(UsageError, match="its schema is version 9"):
        store.session("s1")


def test_a_shard_of_version_1_is_read(store: RolloutStore) -> None:
    import pyarrow.parquet as pq

    add(store, "s1", failed=[FAILED])
    before = store.stored("s1")
    (name,) = store.seal().shards
    for kind in ("rollouts", "nodes"):
        path = store.finished / f"{kind}-{name}.parquet"
        table = pq.read_table(path)
        if kind == "rollouts":
            table = table.drop_columns(["failed_calls"])
        table = table.replace_schema_metadata({"katgym.rollout_store.version": "1"})
        pq.write_table(table, path)
    assert store.stored("s1") == replace(before, failed_calls=[])
    assert store.failed_calls("s1") == []
    assert statistics(store).failed_calls == {}
    assert store.problems() == []


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
