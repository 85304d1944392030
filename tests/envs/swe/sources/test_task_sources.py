"""Sets of tasks on disk: what is visible, what is refused, what is made again bit by bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox.layer import tree_digest
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.open_source import DATA, open_source
from katgym_envs.swe.sources.row_set import visible_row


def copied(folder: Path, change: str = "", new: str = "") -> MutationSet:
    """Return the toy set in another folder, with a text of its first line replaced."""
    (folder / "packages").mkdir(parents=True)
    for path in (DATA / "toy" / "packages").iterdir():
        (folder / "packages" / path.name).write_bytes(path.read_bytes())
    lines = (DATA / "toy" / "specs.jsonl").read_text().splitlines()
    if change:
        assert change in lines[0]
        lines[0] = lines[0].replace(change, new, 1)
    (folder / "specs.jsonl").write_text("\n".join(lines) + "\n")
    return MutationSet(folder)


def test_the_toy_set_is_made_again_to_the_byte() -> None:
    source = MutationSet(DATA / "toy")
    assert len(source.specs) == 16
    for instance_id, spec in source.specs.items():
        assert tree_digest(source.base_files(instance_id)) == spec.workspace_sha256
        row = source.row(instance_id)
        assert row.katgym.hidden_files and row.patch.startswith("diff --git ")
        assert SweRow.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_the_visible_row_holds_nothing_that_is_graded() -> None:
    source = MutationSet(DATA / "toy")
    instance_id = next(iter(source.specs))
    row = visible_row(source.row(instance_id))
    assert (row.patch, row.test_patch, row.FAIL_TO_PASS, row.PASS_TO_PASS) == ("", "", [], [])
    assert row.katgym.hidden_files == {}
    assert row.problem_statement


def test_a_bug_that_does_not_fit_the_workspace_is_refused(tmp_path: Path) -> None:
    digest = next(iter(MutationSet(DATA / "toy").specs.values())).workspace_sha256
    source = copied(tmp_path, digest, "0" * 64)
    with pytest.raises(UsageError, match="made by another version of katgym"):
        source.base_files(next(iter(source.specs)))


@pytest.mark.parametrize(
    ("change", "new", "words"),
    [
        ('"fail_to_pass":[', '"fail_to_pass":[99999,', "has to number some of the"),
        ('{"id":', '{"id"', "line 1"),
        ('"split":"train"', '"split":7', "line 1.*split"),
        ('"package":"parcelkit-1.0.0"', '"package":"none-1.0"', "cannot be read"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, change: str, new: str, words: str) -> None:
    source = copied(tmp_path, change, new)
    with pytest.raises(UsageError, match=words):
        for task in source.tasks():
            source.row(task.instance_id)


def test_unknown_names_suggest_known_ones(tmp_path: Path) -> None:
    source = MutationSet(DATA / "toy")
    known = next(iter(source.specs))
    with pytest.raises(UnknownNameError, match=f"Did you mean '{known}'"):
        source.row(known + "0")
    with pytest.raises(UsageError, match="neither 'shipped', 'toy' nor a folder"):
        open_source("tyo")
    with pytest.raises(UsageError, match="holds no finished set"):
        open_source(tmp_path)
