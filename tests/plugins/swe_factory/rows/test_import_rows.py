"""Rows of other data sets, as their files have them, read into ours by `katgym swe import`."""

import json
from pathlib import Path
from typing import Any

import pytest

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.sources.row_set import read_rows
from katgym_plugin_swe_factory.rows.broken_row import RowError
from katgym_plugin_swe_factory.rows.imported_set import make_hidden, read_rows_of, write_set
from katgym_plugin_swe_factory.rows.normalise import normalise
from katgym_plugin_swe_factory.rows.reverse_patch import reverse_patch
from katgym_plugin_swe_factory.rows.row_format import RowFormat, detect_format

PATCH = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
TEST_PATCH = PATCH.replace("x.py", "tests/test_x.py")
NODES = [
    "tests/test_x.py::test_a[1-x]",
    "tests/test_x.py::test_a[2-y]",
    "tests/test_x.py::A::test_b",
]


def swe_bench(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "acme__words-12",
        "repo": "acme/words",
        "base_commit": "3f" * 20,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "problem_statement": "It is wrong.",
        "hints_text": "",
        "created_at": "2025-03-01T12:00:00Z",
        "version": "1.2",
        "FAIL_TO_PASS": json.dumps(NODES[:1]),
        "PASS_TO_PASS": json.dumps(NODES[1:]),
        "environment_setup_commit": "3f" * 20,
        **changes,
    }


def swe_smith(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "acme__words.3f3f3f3f.func_pm_op_swap__abc",
        "repo": "swesmith/acme__words.3f3f3f3f",
        "image_name": "swebench/swesmith.x86_64.acme_1776_words.3f3f3f3f",
        "patch": PATCH,
        "problem_statement": "It is wrong.",
        "FAIL_TO_PASS": NODES[:1],
        "PASS_TO_PASS": NODES[1:],
        **changes,
    }


def swe_rebench(**changes: Any) -> dict[str, Any]:
    return {
        **swe_bench(FAIL_TO_PASS=NODES[:1], PASS_TO_PASS=NODES[1:]),
        "docker_image": "swerebench/sweb.eval.x86_64.acme_1776_words-12",
        "install_config": {
            "python": "3.9",
            "test_cmd": "pytest --no-header -rA",
            "log_parser": "parse_log_pytest",
        },
        "meta": {"num_modified_files": 1},
        **changes,
    }


def written(folder: Path, *lines: object) -> Path:
    path = folder / "rows.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def test_a_swe_bench_row_keeps_its_fields_and_reads_lists_given_as_text() -> None:
    row = normalise(swe_bench())
    assert NODES[:1] == row.FAIL_TO_PASS
    assert NODES[1:] == row.PASS_TO_PASS
    assert (row.patch, row.test_patch, row.version) == (PATCH, TEST_PATCH, "1.2")
    assert row.image == "swebench/sweb.eval.x86_64.acme_1776_words-12:latest"
    assert row.katgym.env.kind == "image"
    assert row.katgym.env.image == row.image
    assert row.katgym.origin.kind == "import"
    assert row.katgym.protected_paths == ("tests/test_x.py",)


def test_keys_of_version_5_are_kept_and_written_back() -> None:
    five = {
        "image": "registry/words@sha256:12",
        "eval_script": "pytest -rA\n",
        "log_parser": "pytest",
        "eval_type": "pass_and_fail",
        "image_assets": {"problem_statement": []},
        "difficulty": "1-4 hours",
    }
    row = normalise(swe_bench(**five))
    data = row.to_json()
    assert {name: data[name] for name in five} == five
    assert SweRow.from_json(json.loads(json.dumps(data))) == row


def test_the_gold_patch_of_swe_smith_is_its_patch_turned_around() -> None:
    row = normalise(swe_smith())
    assert "-a = 2\n+a = 1\n" in row.patch
    assert row.image == "swebench/swesmith.x86_64.acme_1776_words.3f3f3f3f"
    assert reverse_patch(row.patch) == PATCH


def test_swe_rebench_says_how_to_test_in_its_install_config() -> None:
    row = normalise(swe_rebench())
    assert row.image == "swerebench/sweb.eval.x86_64.acme_1776_words-12"
    assert row.other["eval_script"] == "pytest --no-header -rA\n"
    assert row.other["log_parser"] == "parse_log_pytest"
    assert row.other["meta"] == {"num_modified_files": 1}


def test_commands_of_a_live_row_are_rebuilt_then_tested() -> None:
    data = swe_rebench(rebuild_cmds=["pip install -e ."], test_cmds=["pytest -rA tests"])
    del data["install_config"]
    assert normalise(data).other["eval_script"] == "pip install -e .\npytest -rA tests\n"


def test_formats_are_told_apart_by_their_keys() -> None:
    rows = [swe_bench(), swe_smith(), swe_rebench(), swe_bench(katgym={"split": "test"})]
    assert [detect_format(row) for row in rows] == [
        RowFormat.SWE_BENCH, RowFormat.SWE_SMITH, RowFormat.SWE_REBENCH, RowFormat.KATGYM,
    ]  # fmt: skip


UNFIT = [
    (swe_bench(instance_id="../etc"), "instance_id", "a name of letters"),
    (swe_bench(instance_id=None), "instance_id", "got None"),
    (swe_bench(patch=""), "patch", "is missing or empty"),
    (swe_bench(patch="rm -rf"), "patch", "not a unified diff"),
    (swe_bench(problem_statement="  "), "problem_statement", "is missing or empty"),
    (swe_bench(FAIL_TO_PASS="[]"), "FAIL_TO_PASS", "no test is listed"),
    (swe_bench(FAIL_TO_PASS="[1"), "FAIL_TO_PASS", "neither a list nor the JSON text"),
    (swe_bench(PASS_TO_PASS=[1]), "PASS_TO_PASS", "a list of test names is needed"),
    (swe_bench(created_at=5), "created_at", "a text is needed, got int"),
    (swe_rebench(install_config="{"), "install_config", "JSON text"),
    (swe_rebench(install_config={"python": "3.9"}), "install_config.test_cmd", "how to test"),
    (swe_smith(patch="GIT binary patch\n--- a\n"), "patch", "a binary diff"),
    (swe_smith(patch="--- a/x\n"), "patch", "no hunk"),
    (swe_bench(katgym={"splitt": "test"}), "katgym", "splitt"),
]


def test_a_field_that_does_not_fit_is_named(subtests: pytest.Subtests) -> None:
    for data, field, text in UNFIT:
        with subtests.test(field=field, text=text):
            with pytest.raises(RowError) as caught:
                normalise(data)
            assert caught.value.field == field and text in caught.value.text


def test_broken_rows_are_named_by_line_and_the_others_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        swe_bench(),
        "",
        "{nonsense",
        "[1]",
        swe_bench(instance_id="acme__words-13", FAIL_TO_PASS=[]),
        swe_bench(problem_statement="again"),
        swe_smith(),
    )
    imported = read_rows_of(path)
    assert [row.instance_id for row in imported.rows] == [
        "acme__words-12",
        swe_smith()["instance_id"],
    ]
    told = [str(b) for b in imported.broken]
    assert told[0].startswith("line 3: not JSON")
    assert told[1] == "line 4: a row is a JSON object, got list"
    assert told[2].startswith("line 5 (acme__words-13): FAIL_TO_PASS: no test is listed")
    assert told[3] == "line 6 (acme__words-12): instance_id: occurs in line 1 already"


def test_an_array_and_a_parquet_file_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [swe_bench(), swe_bench(instance_id="acme__words-14", FAIL_TO_PASS=NODES)]
    array = tmp_path / "rows.json"
    array.write_text(json.dumps(rows))
    assert [r.FAIL_TO_PASS for r in read_rows_of(array).rows] == [NODES[:1], NODES]
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow to write a Parquet file")
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([swe_smith(), swe_smith(instance_id="other")]), path)
    assert [r.instance_id for r in read_rows_of(path).rows] == [swe_smith()["instance_id"], "other"]


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("[{")
    (tmp_path / "c.parquet").write_text("x")
    for name in ("a.jsonl", "b.json", "c.parquet"):
        with pytest.raises(UsageError, match=name):
            read_rows_of(tmp_path / name)


def test_an_imported_set_shows_no_patch_and_no_test_to_a_rollout(tmp_path: Path) -> None:
    imported = read_rows_of(written(tmp_path, swe_bench(), swe_smith()), split="validation")
    out = tmp_path / "set"
    write_set(imported.rows, out)
    visible = (out / "tasks.jsonl").read_text()
    assert "a = 2" not in visible
    assert "test_a" not in visible
    assert (out / "hidden").stat().st_mode & 0o777 == 0o700
    source = open_source(out)
    assert [t.split for t in source.tasks()] == ["validation", "validation"]
    hidden = source.load_hidden("acme__words-12")
    assert hidden.fail_to_pass == tuple(NODES[:1])
    assert hidden.gold_patch == PATCH
    assert source.workspace("acme__words-12").layer is None
    assert [t.env.kind for t in source.tasks()] == ["image", "image"]
    with pytest.raises(UsageError, match="no empty folder"):
        write_set(imported.rows, out)


def test_hidden_tests_of_a_row_are_grouped_by_function() -> None:
    functions = make_hidden(normalise(swe_bench())).functions
    assert [(f.path, f.qualname, f.case_ids) for f in functions] == [
        ("tests/test_x.py", "test_a", ("1-x", "2-y")),
        ("tests/test_x.py", "A::test_b", ("",)),
    ]


def test_our_own_rows_come_back_as_they_were(tmp_path: Path) -> None:
    row = normalise(swe_bench(katgym={"split": "test", "timeout_s": 7.0}))
    again = read_rows_of(written(tmp_path, row.to_json())).rows[0]
    assert again == row
    assert again.katgym.timeout_s == 7.0
    assert read_rows(tmp_path / "rows.jsonl")["acme__words-12"] == row


ROW = {
    "instance_id": "acme__words-12",
    "patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n",
    "problem_statement": "It is wrong.",
    "FAIL_TO_PASS": '["tests/test_x.py::test_a"]',
    "PASS_TO_PASS": "[]",
}


def test_sound_rows_become_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "set"
    assert main(["swe", "import", str(written(tmp_path, ROW)), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"1 rows in {str(out)!r}, 0 broken\n"
    assert main(["swe", "list", str(out)]) == 0
    assert "acme__words-12" in capsys.readouterr().out


def test_broken_rows_are_named_and_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(tmp_path, ROW, {**ROW, "instance_id": "b", "patch": ""}))
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
    file = str(written(tmp_path, ROW))
    assert main(["swe", "import", file, "--format", "swe-rebench"]) == 1
    assert "install_config.test_cmd: neither it nor test_cmds" in capsys.readouterr().out


def test_a_missing_file_and_a_full_folder_exit_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["swe", "import", str(tmp_path / "no.jsonl")]) == 2
    assert main(["swe", "import", str(written(tmp_path, ROW)), "--out", str(tmp_path)]) == 2
    assert "no empty folder" in " ".join(capsys.readouterr().err.split())
