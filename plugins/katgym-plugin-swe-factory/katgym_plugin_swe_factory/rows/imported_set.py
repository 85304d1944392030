"""Turns a file of another data set's rows into a set of ours; broken rows are named, not guessed.

    imported = read_rows_of(Path("swe-bench.jsonl"))
    write_set(imported, Path("tasks"))

The base state stays in each row's image. Not here: one row (`normalise.py`), files
(`row_file.py`), sets (`katgym_envs.swe.sources.row_set`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from katgym.errors import UsageError
from katgym_envs.swe.hidden import HiddenTests, TestFunction, split_node_id
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.row_set import RowSetWriter, write_visible
from katgym_plugin_swe_factory.rows.broken_row import BrokenRow, RowError
from katgym_plugin_swe_factory.rows.normalise import normalise
from katgym_plugin_swe_factory.rows.row_file import read_objects
from katgym_plugin_swe_factory.rows.row_format import RowFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRows:
    """What a file holds, in its order."""

    rows: tuple[SweRow, ...]
    broken: tuple[BrokenRow, ...]


def read_rows_of(
    path: Path, *, row_format: RowFormat | None = None, split: str | None = None
) -> ImportedRows:
    """Return a file's rows in our form; `row_format` None detects it row by row.

    split: of all rows; None keeps what a row says, "train" if it says nothing. `UsageError` only
    for a file that cannot be read.
    """
    rows: dict[str, tuple[int, SweRow]] = {}
    broken: list[BrokenRow] = []
    for line, data in read_objects(path):
        name = "" if isinstance(data, RowError) else str(data.get("instance_id") or "")[:80]
        try:
            if isinstance(data, RowError):
                raise data
            row = normalise(data, row_format=row_format)
            if row.instance_id in rows:
                first = rows[row.instance_id][0]
                raise RowError("instance_id", f"occurs in line {first} already")
        except RowError as e:
            broken.append(BrokenRow(line=line, instance_id=name, field=e.field, reason=e.text))
            continue
        if split is not None:
            part = msgspec.structs.replace(row.katgym, split=split)
            row = msgspec.structs.replace(row, katgym=part)
        rows[row.instance_id] = (line, row)
    return ImportedRows(rows=tuple(row for _, row in rows.values()), broken=tuple(broken))


def write_set(rows: Sequence[SweRow], folder: Path) -> None:
    """Write rows as a set whose base states lie in images.

    Raises `UsageError` for a folder that has something in it, `InfrastructureError` when the disk
    is full.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} exists and is no empty folder; name another with --out")
    writer = RowSetWriter(folder)
    for row in rows:
        writer.add(row, make_hidden(row), None)
    writer.finish(rows)
    write_visible(folder, rows)


def make_hidden(row: SweRow) -> HiddenTests:
    """Return the grader's side of a row, as far as the row tells: no test files, no canaries."""
    cases: dict[tuple[str, str], dict[str, None]] = {}
    for node in (*row.FAIL_TO_PASS, *row.PASS_TO_PASS):
        path, qualname, case = split_node_id(node)
        if qualname:
            cases.setdefault((path, qualname), {})[case] = None
    return HiddenTests(
        instance_id=row.instance_id,
        gold_patch=row.patch,
        fail_to_pass=tuple(row.FAIL_TO_PASS),
        pass_to_pass=tuple(row.PASS_TO_PASS),
        files={},
        test_modules=tuple(sorted({path for path, _ in cases})),
        functions=tuple(
            TestFunction(path=path, qualname=qualname, case_ids=tuple(found))
            for (path, qualname), found in cases.items()
        ),
        protected_paths=row.katgym.protected_paths,
        timeout_s=row.katgym.timeout_s,
    )
