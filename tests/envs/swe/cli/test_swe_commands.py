"""`katgym swe`: help, wrong input and exit codes of the subcommands for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym_envs.swe.sources.open_source import open_source

COMMANDS = ("list", "show", "checkout", "grade", "make", "check", "export-predictions")


def first() -> str:
    return open_source("toy").tasks()[0].instance_id


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swe", command, "--help"]) == 0
    assert f"example:\n  katgym swe {command}" in capsys.readouterr().out


def test_list_and_show_print_json_without_what_is_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["swe", "list", "--tasks", "toy", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [t["instance_id"] for t in listed] == [t.instance_id for t in open_source("toy").tasks()]
    assert main(["swe", "show", f"toy#{first()}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["instance_id"] == first()
    assert not {"patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"} & set(shown)


def test_an_unknown_task_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swe", "show", f"toy#{first()}0"]) == 2
    assert f"Did you mean {first()!r}" in "".join(capsys.readouterr().err.split("\n")).replace(
        "  ", " "
    )


def test_a_missing_patch_and_a_missing_run_are_wrong_usage(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.diff")
    assert main(["swe", "grade", "--task", f"toy#{first()}", "--patch", missing]) == 2
    out = str(tmp_path / "p.jsonl")
    assert main(["swe", "export-predictions", str(tmp_path), "--out", out]) == 2
    assert not Path(out).exists()


def test_an_empty_patch_is_not_resolved_and_gold_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = tmp_path / "a.diff"
    patch.write_text("")
    grade = ["swe", "grade", "--task", f"toy#{first()}", "--patch", str(patch), "--json"]
    assert main(grade) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "patch_empty"
    patch.write_text(open_source("toy").hidden(first()).gold_patch)
    assert main(grade) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "resolved"


def test_checkout_writes_the_base_state_into_a_new_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    assert main(["swe", "checkout", f"toy#{first()}", str(folder)]) == 0
    written = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert written == dict(open_source("toy").base_files(first()))
    assert main(["swe", "checkout", f"toy#{first()}", str(folder)]) == 2
