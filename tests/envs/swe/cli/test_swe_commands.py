"""`katgym swe` as a person uses it, on the toy set."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from katgym.cli.main import main
from katgym.sandbox import close_shared_backends
from katgym_envs.swe.cli.swe_command import SUBCOMMANDS
from katgym_envs.swe.sources.open_source import open_source

Capture = pytest.CaptureFixture[str]
TASK = open_source("toy").tasks()[0].instance_id


def swe(*arguments: str) -> int:
    return main(["swe", *arguments])


def test_help_has_an_example(capsys: Capture) -> None:
    assert SUBCOMMANDS
    for name in SUBCOMMANDS:
        assert swe(name, "--help") == 0, name
        assert f"  katgym swe {name}" in capsys.readouterr().out


def test_list_and_show_tell_nothing_that_is_hidden(capsys: Capture) -> None:
    assert swe("list", "toy", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 16
    known = {"instance_id", "split", "repo", "version", "license", "trust", "title"}
    assert set(listed[0]) == known
    assert {task["trust"] for task in listed} == {"complete", "partial"}
    assert swe("show", f"toy#{TASK}") == 0
    text = capsys.readouterr().out
    assert swe("show", f"toy#{TASK}", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["problem_statement"].strip() in text
    assert "patch" not in row and "FAIL_TO_PASS" not in row and "origin" not in row["katgym"]


def test_wrong_use_is_exit_code_2_with_what_is_wrong(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    grading = ("grade", "--task", f"toy#{TASK}", "--patch")
    cases = (
        (("show", f"toy#{TASK}x"), f"Did you mean '{TASK}'"),
        (("show", "toy#"), "unknown task"),
        (("list", "/no/such"), "no set of tasks"),
        ((*grading, "/no/such"), "cannot read patch"),
        ((*grading, "-", "--sandbox", "lokal"), "local"),
        (("export-predictions", "/no", "--out", "x"), "'/no' is no folder"),
    )
    for arguments, words in cases:
        with subtests.test(arguments=arguments):
            monkeypatch.setattr(sys, "stdin", _Stdin(b"x"))
            assert swe(*arguments) == 2
            said = capsys.readouterr().err
            assert words in said and "Traceback" not in said


class _Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def graded(capsys: Capture, patch: str) -> tuple[int, dict[str, Any]]:
    code = swe("grade", "--task", f"toy#{TASK}", "--patch", patch, "--json")
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_patch_is_graded_from_a_file_a_folder_and_standard_input(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = graded(capsys, "gold")
    assert (code, report["outcome"]) == (0, "resolved")
    gold = open_source("toy").load_hidden(TASK)
    monkeypatch.setattr(sys, "stdin", _Stdin(gold.gold_patch.encode()))
    assert graded(capsys, "-")[0] == 0
    work = tmp_path / "work"
    assert swe("checkout", f"toy#{TASK}", str(work)) == 0
    assert open_source("toy").tasks()[0].problem_statement.strip() in capsys.readouterr().out
    assert graded(capsys, str(work))[1]["outcome"] == "patch_empty"
    for path, content in gold.gold_files.items():
        (work / path).write_bytes(content)
    (work / "__pycache__").mkdir()
    (work / "__pycache__" / "x.pyc").write_bytes(b"\0")
    code, report = graded(capsys, str(work))
    assert (code, report["outcome"]) == (0, "resolved")
    assert report["dropped_paths"] == {"__pycache__/x.pyc": "byte code"}
    wrong = tmp_path / "wrong.diff"
    wrong.write_text("no diff\n")
    code, report = graded(capsys, str(wrong))
    assert (code, report["outcome"]) == (1, "patch_invalid")
    assert swe("checkout", f"toy#{TASK}", str(work)) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_grading_prints_what_a_person_needs(capsys: Capture) -> None:
    assert swe("grade", "--task", f"toy#{TASK}", "--patch", "gold") == 0
    text = capsys.readouterr().out
    assert f"{TASK}: resolved" in text and "to fix" in text and "canaries" in text


@pytest.mark.slow
def test_a_run_exports_its_patches(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    command = ["eval", "katgym/SWE-v0?tasks=toy", "--policy", "oracle", "--tasks", "2"]
    assert main([*command, "--out", str(run)]) == 0
    close_shared_backends()
    summary = json.loads((run / "summary.json").read_text())
    metrics = summary["envs"]["katgym/SWE-v0"]["components"]
    assert metrics["edit_distance"]["mean"] == 0.0
    out = tmp_path / "predictions.jsonl"
    assert swe("export-predictions", str(run), "--out", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert set(line) == {"instance_id", "model_name_or_path", "model_patch"}
        assert line["model_name_or_path"] == "oracle"
        gold = open_source("toy").load_hidden(line["instance_id"]).gold_patch
        assert line["model_patch"] == gold
    capsys.readouterr()
    assert swe("export-predictions", str(run), "--out", str(out), "--model-name", "mine") == 0
    renamed = [json.loads(line) for line in out.read_text().splitlines()]
    assert renamed == [{**line, "model_name_or_path": "mine"} for line in lines]
    assert swe("export-predictions", str(run), "--out", str(out), "--attempt", "3") == 1
    assert "no attempt 3" in capsys.readouterr().err


@pytest.mark.slow
def test_without_the_factory_its_subcommands_name_what_to_install() -> None:
    environment = {**os.environ, "KATGYM_PLUGINS": "katgym.swe"}
    command = [sys.executable, "-m", "katgym.cli.main", "swe"]
    for more in (["make", "--package", "x==1", "-v"], ["from-prs", "--help"]):
        done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert f"`katgym swe {more[0]}` comes with a distribution of its own: pip" in done.stderr
        assert "pip install katgym-plugin-swe-factory" in done.stderr.replace("\n", " ")
    done = subprocess.run([*command, "list", "toy"], env=environment)
    assert done.returncode == 0
