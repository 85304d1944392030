"""Folders of anybody: whatever stands in them, a verification ends, says so, and leaves them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from katgym.cli.main import main
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.encoding import checksum

DEEP = "[" * 100_000 + "]" * 100_000
NASTY = ("x", "", b"\xff\xfe", -1, 2**62, float("inf"), "{}", "[1]", "null", DEEP, "\x1b]0;x\x07")
"""Values that a column of SQLite takes, whatever its type."""
COLUMNS = {
    "sessions": "group_id metadata created_s ended_s status reward rollout max_calls deadline_s",
    "turns": "num_prompt_tokens finish_reason model sampling started_s ended_s has_tokens"
    " num_shared_messages tools_sha256 tool_results text",
}
TEXTS: tuple[Any, ...] = (
    {},
    [],
    {"messages": [1], "answer": None},
    {"messages": [{}], "answer": {}},
    {"messages": [], "answer": 5},
    {"messages": 5, "answer": {"role": "assistant", "content": "", "tool_calls": [{}]}},
)
RECORDS: tuple[dict[str, Any], ...] = (
    {"seed": 10**40},
    {"attempt": -1},
    {"attempt": 10**12},
    {"wall_s": 1e308},
    {"task_id": "../../etc/passwd"},
    {"final_messages": [5]},
    {"sampling": {"temperature": -1}},
    {"turns": [1]},
    {"status": "won"},
)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    command = ["eval", "katgym/TreasureHunt-v1", "--policy", "random", "--tasks", "2"]
    assert main([*command, "--out", str(folder)]) == 0
    return folder


def verify_changed(run: Path, folder: Path, change: Change) -> int:
    """Copy a run, change it, verify it, and return the exit code; the folder has to stay."""
    shutil.copytree(run, folder)
    change(folder)
    before = contents(folder)
    code = main(["verify", str(folder)])
    assert contents(folder) == before
    return code


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def execute(statement: str, *values: Any) -> Change:
    """Return a change that no trigger of the store sees."""

    def change(folder: Path) -> None:
        with sqlite3.connect(folder / "live.sqlite") as connection:
            named = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            triggers = connection.execute(named).fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(statement, values)
            for _, sql in triggers:
                connection.execute(sql)
        connection.close()

    return change


@pytest.mark.parametrize("name", ["lock.json", "summary.json"])
@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "1e999", DEEP, '{"format": 1, "format": 1}', "\ufffe"]
)
def test_files_of_json_that_say_nothing(name: str, text: str, run: Path, tmp_path: Path) -> None:
    code = verify_changed(run, tmp_path / "run", lambda f: (f / name).write_text(text))
    assert code == (2 if name == "lock.json" else 1)  # wrong usage: it is no run


@pytest.mark.parametrize(
    "told",
    [
        {"seed": "1"},
        {"group_size": 10**12},
        {"created": "yesterday"},
        {"limits": {}},
        {"sampling": {"temperature": float("nan")}},
        {"envs": [{}]},
        {"envs": []},
        {"more": 1},
        {"policy": 5},
    ],
)
def test_a_lock_of_other_types_is_no_run(told: Any, run: Path, tmp_path: Path, capsys: Any) -> None:
    def change(folder: Path) -> None:
        lock = json.loads((folder / "lock.json").read_text())
        (folder / "lock.json").write_text(json.dumps({**lock, **told}))

    code = verify_changed(run, tmp_path / "run", change)
    assert code == (1 if told == {"envs": []} else 2)
    if code == 2:
        assert "not as katgym writes it" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "told",
    [
        {"env_id": "os:Env-v0"},
        {"kwargs": {"level": {"a": [1]}}},
        {"num_tasks": 2**31},
        {"tasks": {f"t{i}": "x" for i in range(20_000)}, "num_tasks": 20_000},
        {"env_id": "\x1b[31m\ud800"},
    ],
)
def test_envs_of_anybody_refute(told: Any, run: Path, tmp_path: Path, capsys: Any) -> None:
    def change(folder: Path) -> None:
        lock = json.loads((folder / "lock.json").read_text())
        lock["envs"][0].update(told)
        (folder / "lock.json").write_text(json.dumps(lock))

    assert verify_changed(run, tmp_path / "run", change) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "column"), [(t, c) for t, names in COLUMNS.items() for c in names.split()]
)
def test_columns_of_any_type_refute(table: str, column: str, run: Path, tmp_path: Path) -> None:
    where = f"WHERE id = (SELECT max(id) FROM {table})"
    for index, value in enumerate(NASTY):
        folder, old = tmp_path / str(index), None
        with sqlite3.connect(run / "live.sqlite") as connection:
            (old,) = connection.execute(f"SELECT {column} FROM {table} {where}").fetchone()
        connection.close()
        change = execute(f"UPDATE {table} SET {column} = ? {where}", value)
        is_same = str(old) == value or (column == "has_tokens" and not value)
        assert verify_changed(run, folder, change) == (0 if is_same else 1), repr(value)[:20]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_messages_of_any_shape_refute(text: Any, run: Path, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        with sqlite3.connect(folder / "live.sqlite") as connection:
            names = "id, prompt_ids, completion_ids, policy_logprobs"
            select = f"SELECT {names} FROM turns ORDER BY id DESC LIMIT 1"
            (row_id, *blobs) = connection.execute(select).fetchone()
            told = json.dumps(text)
            values = (told, checksum(*blobs, told), row_id)
            connection.execute("UPDATE turns SET text = ?, checksum = ? WHERE id = ?", values)
        connection.close()

    assert verify_changed(run, tmp_path / "run", change) == 1


@pytest.mark.parametrize("told", RECORDS, ids=range(len(RECORDS)))
def test_rollouts_of_any_shape_refute(told: Any, run: Path, tmp_path: Path) -> None:
    with sqlite3.connect(run / "live.sqlite") as connection:
        (text,) = connection.execute("SELECT rollout FROM sessions WHERE id = 1").fetchone()
    connection.close()
    record = json.dumps({**json.loads(text), **told})
    change = execute("UPDATE sessions SET rollout = ? WHERE id = 1", record)
    assert verify_changed(run, tmp_path / "run", change) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON tools BEGIN DELETE FROM sessions; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE sessions ADD COLUMN score REAL",
        "DROP TABLE turns",
        "INSERT INTO shards VALUES ('../../x', 'finished', 0, 0, 1)",
    ],
)
def test_other_tables_refute(statement: str, run: Path, tmp_path: Path) -> None:
    assert verify_changed(run, tmp_path / "run", execute(statement)) == 1


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_database_cut_short_refutes(share: float, run: Path, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        with sqlite3.connect(folder / "live.sqlite") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        path = folder / "live.sqlite"
        os.truncate(path, int(path.stat().st_size * share))

    assert verify_changed(run, tmp_path / "run", change) == 1


def test_sealed_shards_that_are_gone_or_damaged_refute(run: Path, tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    shutil.copytree(run, sealed)
    with RolloutStore.open(sealed) as store:
        store.seal()

    def each(change: Change) -> Change:
        return lambda folder: [change(path) for path in (folder / "finished").glob("*.parquet")]

    assert verify_changed(sealed, tmp_path / "whole", lambda _: None) == 0
    assert verify_changed(sealed, tmp_path / "gone", each(Path.unlink)) == 1
    assert verify_changed(sealed, tmp_path / "cut", each(lambda p: os.truncate(p, 99))) == 1


@pytest.mark.parametrize("name", ["lock.json", "live.sqlite", "summary.json", "finished"])
def test_links_pipes_and_folders_are_not_followed(name: str, run: Path, tmp_path: Path) -> None:
    def link(folder: Path) -> None:
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)

    def pipe(folder: Path) -> None:
        shutil.rmtree(folder / name) if name == "finished" else (folder / name).unlink()
        os.mkfifo(folder / name)

    for index, change in enumerate((link, pipe)):
        folder = tmp_path / f"run{index}"
        shutil.copytree(run, folder)
        change(folder)
        assert main(["verify", str(folder)]) == 2


def test_a_folder_that_cannot_be_written_is_verified_and_other_files_are_named(
    run: Path, tmp_path: Path, capsys: Any
) -> None:
    def change(folder: Path) -> None:
        (folder / "README.md").write_text("We solved all of it.")
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)

    try:
        assert verify_changed(run, tmp_path / "run", change) == 0
    finally:
        for path in (tmp_path / "run", tmp_path / "run" / "finished"):
            path.chmod(0o755)
    assert "not of the run, and not looked at: README.md" in capsys.readouterr().out


def test_what_is_no_folder_of_a_run_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("", "file", "missing"):
        assert main(["verify", str(tmp_path / name)]) == 2
