"""Reading problem files: formats, columns, splits, filters, the cache and every error text."""

import importlib.util
import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import katgym
from katgym.errors import MissingDependencyError, UnknownNameError, UsageError
from katgym_envs.math.problems.problem_set import ProblemSource, load_problems
from katgym_envs.math.problems.rows import read_rows

ROWS: list[dict[str, Any]] = [
    {"id": "a", "problem": "1 + 1?", "answer": "2", "subject": "algebra", "level": 1},
    {"id": "b", "problem": "2 + 2?", "answer": 4, "subject": "algebra", "level": 2},
    {"id": "c", "problem": "3 / 2?", "answer": 1.5, "subject": "number theory", "level": 2},
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(data: str, **options: Any) -> list[katgym.Task]:
    """Return every task of every split, in file order where there is one split."""
    found = load_problems(ProblemSource(data=data, **options))
    return [task for tasks in found.values() for task in tasks]


def error_of(data: str | Path, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load_problems(ProblemSource(data=str(data), **options))
    return str(caught.value)


# ---- what is read


def test_jsonl_rows_become_tasks(tmp_path: Path) -> None:
    tasks = load(write_jsonl(tmp_path / "p.jsonl", ROWS))
    by_id = {task.task_id: task for task in tasks}
    assert sorted(by_id) == ["a", "b", "c"]
    assert [by_id[i].answer for i in "abc"] == ["2", "4", "1.5"]
    assert by_id["c"].prompt == "3 / 2?"
    assert by_id["c"].data == {"subject": "number theory", "level": 2}


def test_parquet_gives_the_same_tasks_as_jsonl(tmp_path: Path) -> None:
    rows = [{**row, "answer": str(row["answer"])} for row in ROWS]
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "p.parquet")
    from_parquet = load(str(tmp_path / "p.parquet"))
    from_jsonl = load(write_jsonl(tmp_path / "p.jsonl", rows))
    assert [task.sha256 for task in from_parquet] == [task.sha256 for task in from_jsonl]
    assert [task.split for task in from_parquet] == [task.split for task in from_jsonl]


def test_other_column_names_are_taken(tmp_path: Path) -> None:
    data = write_jsonl(
        tmp_path / "p.jsonl", [{"question": "1 + 1?", "solution": "2", "part": "dev"}]
    )
    (task,) = load(data, problem_column="question", answer_column="solution", split_column="part")
    assert (task.prompt, task.answer, task.split) == ("1 + 1?", "2", "validation")


def test_blank_lines_are_skipped_and_errors_keep_the_line_number(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\n{"problem": "1?", "answer": "1"}\n\n{"problem": "2?"}\n')
    assert error_of(path) == (
        f"{path}, line 4: no column 'answer'; it has 'problem'. Name another with answer_column=..."
    )


def test_ids_without_an_id_column_do_not_depend_on_the_order(tmp_path: Path) -> None:
    rows = [{"problem": f"{n} + 1?", "answer": n + 1} for n in range(20)]
    forth = load(write_jsonl(tmp_path / "forth.jsonl", rows))
    back = load(write_jsonl(tmp_path / "back.jsonl", rows[::-1]))
    assert {(t.task_id, t.split) for t in forth} == {(t.task_id, t.split) for t in back}


def test_splits_by_hash_are_near_80_10_10_and_disjoint(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(2_000)]
    found = load_problems(ProblemSource(data=write_jsonl(tmp_path / "p.jsonl", rows)))
    sizes = {split: len(tasks) for split, tasks in found.items()}
    assert sizes == {"train": 1614, "validation": 188, "test": 198}


def test_a_repeated_problem_is_used_once_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"problem": "1 + 1?", "answer": "2"}
    with caplog.at_level(logging.WARNING):
        assert len(load(write_jsonl(tmp_path / "p.jsonl", [row, row, row]))) == 1
    assert caplog.messages == ["2 problems occur twice; the first row of each is used"]


def test_filters_keep_what_was_asked_for(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", ROWS)
    assert [t.task_id for t in load(data, subject="number theory")] == ["c"]
    assert [t.task_id for t in load(data, level=1)] == ["a"]
    assert [t.task_id for t in load(data, level="2", subject="algebra")] == ["b"]


# ---- the cache


def test_2048_sources_share_one_set_of_tasks(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", ROWS)
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda _: load_problems(ProblemSource(data=data)), range(2_048)))
    assert all(one is found[0] for one in found)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    assert len(load(write_jsonl(path, ROWS))) == 3
    write_jsonl(path, ROWS[:2])
    assert len(load(str(path))) == 2
    os.utime(path, ns=(1, 1))
    assert len(load(str(path))) == 2


# ---- what is refused


def test_a_malformed_row_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    told = {
        b'{"problem": "1?"': "not valid JSON: Expecting ',' delimiter: line 2 column 1 (char 17)",
        b"[1, 2]": "a row is a JSON object, got list",
        b'{"problem": "\xff"}': "not UTF-8: invalid start byte at byte 13",
        b'{"question": "1?", "answer": "1"}': "no column 'problem'; it has 'question', 'answer'."
        " Name another with problem_column=...",
        b"{}": "no column 'problem'; it has none. Name another with problem_column=...",
        b'{"problem": "1?", "answer": null}': f"'answer' {WANTED}, got None",
        b'{"problem": "1?", "answer": " "}': f"'answer' {WANTED}, got ' '",
        b'{"problem": "1?", "answer": NaN}': f"'answer' {WANTED}, got nan",
        b'{"problem": "1?", "answer": true}': f"'answer' {WANTED}, got True",
        b'{"problem": ["1?"], "answer": "1"}': f"'problem' {WANTED}, got ['1?']",
    }
    found = {}
    for line in told:
        path.write_bytes(b'{"problem": "0?", "answer": "0"}\n' + line + b"\n")
        found[line] = error_of(path)
    assert found == {line: f"{path}, line 2: {text}" for line, text in told.items()}


WANTED = "is a non-empty text or a number"


def test_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write_jsonl(path, [*ROWS, {**ROWS[0], "problem": "other"}])
    assert error_of(path) == f"{path}, line 4: id 'a' occurs twice, first in {path}, line 1"


def test_what_holds_no_problems_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    for content in ("", "\n \n"):
        path.write_text(content)
        assert error_of(path) == f"{path} holds no problems"
    kinds = "data is a .jsonl or .parquet file, a folder written by save_to_disk, or 'hf:NAME'"
    assert error_of(tmp_path) == (
        f"{str(tmp_path)!r} is a folder without a saved dataset (dataset_dict.json,"
        f" dataset_info.json, state.json); {kinds}"
    )
    path = tmp_path / "p.csv"
    path.write_text("problem,answer\n")
    assert error_of(path) == f"cannot read {str(path)!r}: {kinds}"
    path = tmp_path / "p.parquet"
    path.write_text("no parquet")
    assert error_of(path).startswith(f"{path} is not a readable Parquet file: Parquet magic bytes")


def test_a_missing_file_names_the_nearest_one_or_the_missing_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "problems.jsonl", ROWS)
    assert error_of(tmp_path / "probems.jsonl") == (
        "unknown data file 'probems.jsonl'. Did you mean 'problems.jsonl'?"
        f" Looked in {str(tmp_path)!r}."
    )
    path = tmp_path / "nowhere" / "p.jsonl"
    folder = str(path.parent)
    assert error_of(path) == f"no data file {str(path)!r}: the folder {folder!r} does not exist"


def test_an_unknown_split_value_lists_the_known_ones(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", [{**ROWS[0], "split": "hidden"}])
    assert error_of(data, split_column="split") == (
        f"{data}, line 1: split 'hidden' is none of 'train', 'validation', 'test', 'valid', 'dev'"
    )


def test_an_unknown_subject_names_the_nearest(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", ROWS)
    with pytest.raises(UnknownNameError) as caught:
        load(data, subject="algbra")
    assert str(caught.value) == (
        f"unknown subject 'algbra'. Did you mean 'algebra'? Looked in {data!r}."
    )


def test_a_filter_without_its_column_is_refused(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", [{"problem": "1?", "answer": "1"}])
    assert error_of(data, level=3) == f"{data} has no column 'level', so level=3 fits nothing"


def test_a_hub_dataset_without_the_package_names_the_install_command() -> None:
    if importlib.util.find_spec("datasets") is not None:
        pytest.skip("the datasets package is installed: nothing is missing")
    with pytest.raises(MissingDependencyError) as caught:
        load("hf:someone/math")
    assert str(caught.value) == (
        "reading 'hf:someone/math' needs the datasets package. Install it: pip install datasets"
    )


def save_dataset(folder: Path, splits: dict[str, list[dict[str, Any]]]) -> None:
    """Write what `DatasetDict.save_to_disk` writes, by hand: tables, their state and their info."""
    for split, rows in splits.items():
        (folder / split).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(folder / split / "data.arrow", table.schema) as stream:
            stream.write_table(table)
        state = {
            "_data_files": [{"filename": "data.arrow"}],
            "_fingerprint": split,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        (folder / split / "state.json").write_text(json.dumps(state))
        (folder / split / "dataset_info.json").write_text("{}")
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))


def test_a_saved_dataset_keeps_its_own_splits(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the datasets package")
    rows = [{**row, "answer": str(row["answer"])} for row in ROWS]
    save_dataset(tmp_path / "saved", {"train": rows[:2], "test": rows[2:]})
    tasks = load(str(tmp_path / "saved"))
    assert [(t.task_id, t.split) for t in tasks] == [("a", "train"), ("b", "train"), ("c", "test")]


def test_reading_jsonl_imports_no_pyarrow(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "p.jsonl", ROWS)
    before = set(sys.modules)
    assert [row.place for row in read_rows(data)] == [f"{data}, line {n}" for n in (1, 2, 3)]
    assert "katgym_envs.math.problems.parquet_file" not in set(sys.modules) - before
