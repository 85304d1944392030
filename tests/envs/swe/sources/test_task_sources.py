"""Sets of tasks on disk: what is visible, what is refused, what is made again bit by bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import DATA, open_source
from katgym_envs.swe.sources.row_set import visible_row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the toy set."""
    return Path(shutil.copytree(DATA / "toy", tmp_path / "toy"))


def change(folder: Path, **fields: object) -> str:
    """Change the first spec; return its id."""
    path = folder / "specs.jsonl"
    first, *rest = path.read_text().splitlines()
    spec = {**json.loads(first), **fields}
    path.write_text("\n".join([json.dumps(spec), *rest]) + "\n")
    return str(spec["id"])


def test_the_toy_set_is_made_again_to_the_byte_from_wherever_it_lies(folder: Path) -> None:
    source = MutationSet(folder)
    assert len(source.specs) == 16
    for instance_id, spec in source.specs.items():
        assert tree_digest(source.base_files(instance_id)) == spec.workspace_sha256
        row = source.row(instance_id)
        assert row.katgym.hidden_files and row.patch.startswith("diff --git ")
        assert SweRow.from_json(json.loads(json.dumps(row.to_json()))) == row
        shown = visible_row(row)
        assert (shown.patch, shown.test_patch) == ("", "")
        assert (shown.FAIL_TO_PASS, shown.PASS_TO_PASS) == ([], [])
        assert shown.katgym.hidden_files == {}
        assert shown.problem_statement


def test_a_bug_that_does_not_fit_the_workspace_is_refused(folder: Path) -> None:
    task = change(folder, workspace_sha256="0" * 64)
    for load in (MutationSet(folder).load_files, MutationSet(folder).base_files):
        with pytest.raises(UsageError, match=r"the spec says '0000.*another version of katgym"):
            load(task)


def test_edits_that_do_not_fit_and_files_that_are_not_there_are_refused(folder: Path) -> None:
    task = change(folder, edits={"parcelkit/__init__.py": [[0, 999999, ""]]})
    with pytest.raises(UsageError, match=r"end=999999.* does not fit \d+ bytes"):
        MutationSet(folder).load_files(task)
    change(folder, edits={"nosuch.py": [[0, 0, "x"]]})
    with pytest.raises(UsageError, match=r"unknown file 'nosuch\.py'"):
        MutationSet(folder).load_files(task)


def test_a_broken_line_is_named(folder: Path, subtests: pytest.Subtests) -> None:
    path = folder / "specs.jsonl"
    sound = path.read_text()
    cases = (
        ('"fail_to_pass":[', '"fail_to_pass":[99999,', "has to number some of the"),
        ('{"id":', '{"id"', "line 1: not JSON"),
        ('"split":"train"', '"split":7', "line 1 .*split"),
        ('"fail_to_pass":[', '"fail_to_pass":["x",', "line 1 .*fail_to_pass"),
        ('{"id":', '{"mutations":[],"id":', "line 1 .*mutations.* has to be made again"),
        ('"package":"parcelkit-1.0.0"', '"package":"none-1.0"', r"none-1\.0\.json' cannot be read"),
    )
    for old, new, words in cases:
        assert old in sound
        path.write_text(sound.replace(old, new, 1))
        with subtests.test(new=new), pytest.raises(UsageError, match=words):
            source = MutationSet(folder)
            for task in source.tasks():
                source.row(task.instance_id)
    path.write_text(sound + '{"id": \n')
    with pytest.raises(UsageError, match="line 17: not JSON"):
        MutationSet(folder).tasks()


def test_unknown_names_suggest_known_ones(tmp_path: Path) -> None:
    source = MutationSet(DATA / "toy")
    known = next(iter(source.specs))
    with pytest.raises(UnknownNameError, match=f"Did you mean '{known}'"):
        source.row(known + "0")
    with pytest.raises(UsageError, match="neither 'shipped', 'toy' nor a folder"):
        open_source("tyo")
    with pytest.raises(UsageError, match="holds no finished set"):
        open_source(tmp_path)
