"""Sets of specs: a base state is compared with its digest, and what is broken is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import DATA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "toy", tmp_path / "toy"))


def change(folder: Path, **fields: object) -> str:
    """Change the first spec; return its id."""
    path = folder / "specs.jsonl"
    first, *rest = path.read_text().splitlines()
    spec = {**json.loads(first), **fields}
    path.write_text("\n".join([json.dumps(spec), *rest]) + "\n")
    return str(spec["id"])


def test_edits_give_the_workspaces_bit_by_bit(folder: Path) -> None:
    source = MutationSet(folder)
    for spec in source.specs.values():
        assert tree_digest(source.base_files(spec.id)) == spec.workspace_sha256


def test_another_digest_is_refused(folder: Path) -> None:
    task = change(folder, workspace_sha256="0" * 64)
    with pytest.raises(UsageError, match=r"the spec says '0000.*another version of katgym"):
        MutationSet(folder).load_files(task)


def test_an_unknown_package_and_an_unknown_task_are_refused(folder: Path) -> None:
    task = change(folder, package="nosuch-1.0")
    with pytest.raises(UsageError, match=r"nosuch-1\.0\.json' cannot be read"):
        MutationSet(folder).row(task)
    with pytest.raises(UnknownNameError, match=task):
        MutationSet(folder).row(task + "0")


def test_a_broken_line_is_named(folder: Path) -> None:
    with (folder / "specs.jsonl").open("a") as file:
        file.write('{"id": \n')
    with pytest.raises(UsageError, match="line 17: not JSON"):
        MutationSet(folder).tasks()
    change(folder, fail_to_pass="x")
    with pytest.raises(UsageError, match=r"line 1 .*fail_to_pass"):
        MutationSet(folder).tasks()


def test_edits_that_do_not_fit_and_files_that_are_not_there_are_refused(folder: Path) -> None:
    task = change(folder, edits={"parcelkit/__init__.py": [[0, 999999, ""]]})
    with pytest.raises(UsageError, match=r"end=999999.* does not fit \d+ bytes"):
        MutationSet(folder).load_files(task)
    change(folder, edits={"nosuch.py": [[0, 0, "x"]]})
    with pytest.raises(UsageError, match=r"unknown file 'nosuch\.py'"):
        MutationSet(folder).load_files(task)


def test_a_set_of_another_version_is_to_be_made_again(folder: Path) -> None:
    change(folder, mutations=[])
    with pytest.raises(UsageError, match=r"line 1 .*mutations.* has to be made again"):
        MutationSet(folder).tasks()
