"""Folders of anybody: whatever stands in them, a verification ends, says so, and leaves them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nightly import IS_NIGHT

from katgym.cli.main import main
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.encoding import checksum

DEEP = "[" * 100_000 + "]" * 100_000
NASTY = ("x", "", b"\xff\xfe", -1, 2**62, float("inf"), "{}", "[1]", "null", DEEP, "\x1b]0;x\x07")
"""Values that a column of SQLite takes, whatever its type: by day each column is given some."""
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
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    command = ["eval", "katgym/TreasureHunt-v1", "--policy", "random", "--tasks", "2"]
    assert main([*command, "--out", str(folder)]) == 0
    return folder


def verify_changed(run: Path, tmp_path: Path, change: Change) -> int:
    """Copy a run, change it, verify it, and return the exit code; the folder has to stay."""
    folder = tmp_path / f"run{next(NUMBERS)}"
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


def write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def change_lock(told: dict[str, Any], *, is_of_env: bool = False) -> Change:
    """Return a change of the lock, or of its first env."""

    def change(folder: Path) -> None:
        lock = json.loads((folder / "lock.json").read_text())
        (lock["envs"][0] if is_of_env else lock).update(told)
        (folder / "lock.json").write_text(json.dumps(lock))

    return change


def test_files_of_json_that_say_nothing(
    run: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    texts = ("", "{}", "[]", "1e999", DEEP, '{"format": 1, "format": 1}', "\ufffe")
    for name, code in {"lock.json": 2, "summary.json": 1}.items():  # no lock: it is no run
        for text in texts:
            with subtests.test(name=name, text=text[:20]):
                assert verify_changed(run, tmp_path, write(name, text)) == code


def test_a_lock_of_other_types_is_no_run(
    run: Path, tmp_path: Path, capsys: Any, subtests: pytest.Subtests
) -> None:
    locks: list[dict[str, Any]] = [
        {"seed": "1"},
        {"group_size": 10**12},
        {"created": "yesterday"},
        {"limits": {}},
        {"sampling": {"temperature": float("nan")}},
        {"envs": [{}]},
        {"more": 1},
        {"policy": 5},
    ]
    for told in locks:
        with subtests.test(told=told):
            assert verify_changed(run, tmp_path, change_lock(told)) == 2
            assert "not as katgym writes it" in " ".join(capsys.readouterr().err.split())
    assert verify_changed(run, tmp_path, change_lock({"envs": []})) == 1


def test_envs_of_anybody_refute(
    run: Path, tmp_path: Path, capsys: Any, subtests: pytest.Subtests
) -> None:
    envs: list[dict[str, Any]] = [
        {"env_id": "os:Env-v0"},
        {"kwargs": {"level": {"a": [1]}}},
        {"num_tasks": 2**31},
        {"tasks": {f"t{i}": "x" for i in range(2_000)}, "num_tasks": 2_000},
        {"env_id": "\x1b[31m\ud800"},
    ]
    for told in envs:
        with subtests.test(told=str(told)[:40]):
            assert verify_changed(run, tmp_path, change_lock(told, is_of_env=True)) == 1
            assert "\x1b" not in capsys.readouterr().out


def test_columns_of_any_type_refute(run: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    columns = [(table, name) for table, names in COLUMNS.items() for name in names.split()]
    for number, (table, column) in enumerate(columns):
        where = f"WHERE id = (SELECT max(id) FROM {table})"
        with sqlite3.connect(run / "live.sqlite") as connection:
            (old,) = connection.execute(f"SELECT {column} FROM {table} {where}").fetchone()
        connection.close()
        for value in NASTY if IS_NIGHT else NASTY[number % 5 :: 5]:
            change = execute(f"UPDATE {table} SET {column} = ? {where}", value)
            is_same = str(old) == value or (column == "has_tokens" and not value)
            with subtests.test(table=table, column=column, value=repr(value)[:20]):
                assert verify_changed(run, tmp_path, change) == (0 if is_same else 1)


def test_messages_and_rollouts_of_any_shape_and_other_tables_refute(
    run: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    def tell(text: Any) -> Change:
        def change(folder: Path) -> None:
            with sqlite3.connect(folder / "live.sqlite") as connection:
                names = "id, prompt_ids, completion_ids, policy_logprobs"
                select = f"SELECT {names} FROM turns ORDER BY id DESC LIMIT 1"
                (row_id, *blobs) = connection.execute(select).fetchone()
                told = json.dumps(text)
                values = (told, checksum(*blobs, told), row_id)
                connection.execute("UPDATE turns SET text = ?, checksum = ? WHERE id = ?", values)
            connection.close()

        return change

    with sqlite3.connect(run / "live.sqlite") as connection:
        (text,) = connection.execute("SELECT rollout FROM sessions WHERE id = 1").fetchone()
    connection.close()
    records = [json.dumps({**json.loads(text), **told}) for told in RECORDS]
    statements = (
        "CREATE TRIGGER t AFTER INSERT ON tools BEGIN DELETE FROM sessions; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE sessions ADD COLUMN score REAL",
        "DROP TABLE turns",
        "INSERT INTO shards VALUES ('../../x', 'finished', 0, 0, 1)",
    )
    changes = {
        **{f"messages {text}": tell(text) for text in TEXTS},
        **{f"rollout {told}": execute("UPDATE sessions SET rollout = ? WHERE id = 1", record)
           for told, record in zip(RECORDS, records, strict=True)},
        **{statement: execute(statement) for statement in statements},
    }  # fmt: skip
    for name, change in changes.items():
        with subtests.test(change=name):
            assert verify_changed(run, tmp_path, change) == 1


def test_a_database_cut_short_refutes(run: Path, tmp_path: Path) -> None:
    for share in (0.0, 0.01, 0.5, 0.99):

        def cut(folder: Path, share: float = share) -> None:
            with sqlite3.connect(folder / "live.sqlite") as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            path = folder / "live.sqlite"
            os.truncate(path, int(path.stat().st_size * share))

        assert verify_changed(run, tmp_path, cut) == 1, share


def test_sealed_shards_that_are_gone_or_damaged_refute(run: Path, tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    shutil.copytree(run, sealed)
    with RolloutStore.open(sealed) as store:
        store.seal()

    def each(change: Change) -> Change:
        return lambda folder: [change(path) for path in (folder / "finished").glob("*.parquet")]

    assert verify_changed(sealed, tmp_path, lambda _: None) == 0
    assert verify_changed(sealed, tmp_path, each(Path.unlink)) == 1
    assert verify_changed(sealed, tmp_path, each(lambda p: os.truncate(p, 99))) == 1


def test_links_pipes_and_folders_are_not_followed(run: Path, tmp_path: Path) -> None:
    def link(path: Path) -> None:
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)

    def pipe(path: Path) -> None:
        shutil.rmtree(path) if path.name == "finished" else path.unlink()
        os.mkfifo(path)

    for name in ("lock.json", "live.sqlite", "summary.json", "finished"):
        for change in (link, pipe):
            folder = tmp_path / f"{change.__name__}-{name}"
            shutil.copytree(run, folder)
            change(folder / name)
            assert main(["verify", str(folder)]) == 2, folder.name
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("empty", "file", "missing"):
        assert main(["verify", str(tmp_path / name)]) == 2, name


def test_a_folder_that_cannot_be_written_is_verified_and_other_files_are_named(
    run: Path, tmp_path: Path, capsys: Any
) -> None:
    def change(folder: Path) -> None:
        (folder / "README.md").write_text("We solved all of it.")
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)

    try:
        assert verify_changed(run, tmp_path, change) == 0
    finally:
        for folder in tmp_path.iterdir():
            for path in (folder, folder / "finished"):
                path.chmod(0o755)
    assert "not of the run, and not looked at: README.md" in capsys.readouterr().out
