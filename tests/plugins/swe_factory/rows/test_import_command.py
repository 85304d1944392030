"""`katgym swe import`: output, files and exit codes."""

import json
from pathlib import Path

import pytest

from katgym.cli.main import main

ROW = {
    "instance_id": "acme__words-12",
    "patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n",
    "problem_statement": "It is wrong.",
    "FAIL_TO_PASS": '["tests/test_x.py::test_a"]',
    "PASS_TO_PASS": "[]",
}


def rows(folder: Path, *given: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return str(path)


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swe", "import", "--help"]) == 0
    assert "katgym swe import swe-bench-verified.parquet --out" in capsys.readouterr().out


def test_sound_rows_become_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "set"
    assert main(["swe", "import", rows(tmp_path, ROW), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"1 rows in {str(out)!r}, 0 broken\n"
    assert main(["swe", "list", str(out)]) == 0
    assert "acme__words-12" in capsys.readouterr().out


def test_broken_rows_are_named_and_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rows(tmp_path, ROW, {**ROW, "instance_id": "b", "patch": ""})
    assert main(["swe", "import", file]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told == [f"{file}: line 2 (b): patch: is missing or empty", "1 rows, 1 broken"]
    assert main(["swe", "import", file, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "rows": ["acme__words-12"],
        "broken": [
            {"line": 2, "instance_id": "b", "field": "patch", "reason": "is missing or empty"}
        ],
    }


def test_a_format_may_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rows(tmp_path, ROW)
    assert main(["swe", "import", file, "--format", "swe-rebench"]) == 1
    assert "install_config.test_cmd: neither it nor test_cmds" in capsys.readouterr().out


def test_a_missing_file_and_a_full_folder_exit_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["swe", "import", str(tmp_path / "no.jsonl")]) == 2
    assert main(["swe", "import", rows(tmp_path, ROW), "--out", str(tmp_path)]) == 2
    assert "no empty folder" in " ".join(capsys.readouterr().err.split())
