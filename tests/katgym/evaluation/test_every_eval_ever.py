"""The export to Every Eval Ever: its numbers, its files, and what cannot be exported."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from katgym import FailureKind, Rollout, RolloutStatus
from katgym.evaluation.leaderboard.every_eval_ever import ExportInfo, write_every_eval_ever
from katgym.evaluation.statistics.summary import RunSummary, summarize

Make = Callable[..., Rollout]
PACKAGE = "every-eval-ever==0.3.0"

CHAT = [
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "What is 2 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I should compute.",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "add", "arguments": '{"x": 2, "why": "sum", "z": [1]}'},
            },
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{oops"}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "4"},
    {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "bad JSON"},
    {"role": "assistant", "content": "4"},
]
INFO = ExportInfo(
    model_id="example/tiny:1b",
    organization="Example Lab",
    evaluator_relationship="third_party",
    timestamp_s=1767225600,
    katgym_version="0.1.0",
    deployment_type="self_deployed",
    model_availability="open_weights",
    sampling={"temperature": 0.6, "top_p": 0.95, "top_k": 0, "max_tokens": 512, "min_p": 0.1},
    plugin_versions={"katgym/Toy-v0": "1.2"},
)


def _lines(make_line: Make) -> list[Rollout]:
    single = {
        "num_turns": 1,
        "num_tool_calls": 0,
        "num_parallel_calls": 0,
        "messages": [CHAT[1], {"role": "assistant", "content": "4", "reasoning_content": "easy"}],
    }
    multi = {"num_tool_calls": 0, "num_parallel_calls": 0, "messages": [CHAT[1], CHAT[5]] * 2}
    lines = [
        make_line("a", 1.0, 0, messages=CHAT, task_sha256="f00"),
        make_line("a", 0.5, 1, messages=CHAT),
        make_line("b", 0.0, 0, **single),
        make_line("b", 1.0, 1, **multi),
        make_line("c", None, 0, messages=CHAT),
        make_line("c", 0.0, 1, messages=CHAT, seed=None),
    ]
    timeout = make_line("d", 0.0, 0, messages=CHAT, status=RolloutStatus.TRUNCATED)
    why = {"failure_kind": FailureKind.MAX_TURNS, "reason": "8 of 8"}
    timeout = replace(timeout, reward=replace(timeout.reward, **why))
    return [*lines, timeout, *[replace(line, env_id="katgym/Words-v0") for line in lines]]


def _export(
    make_line: Make, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], RunSummary]:
    """Write the export; return the first env's aggregate, its samples, and the summary."""
    lines = _lines(make_line)
    summary = summarize(lines)
    paths = write_every_eval_ever(folder, lines, summary, INFO)
    assert len(paths) == 2
    log = json.loads(paths[0].read_text())
    text = (folder / log["detailed_evaluation_results"]["file_path"]).read_text()
    return log, [json.loads(line) for line in text.splitlines()], summary


def test_aggregate_holds_the_summarys_numbers(make_line: Make, tmp_path: Path) -> None:
    log, _, summary = _export(make_line, tmp_path)
    env = summary.envs["katgym/Toy-v0"]
    assert env.t_interval is not None and env.success_interval is not None
    assert log["schema_version"] == "0.3.0"
    assert log["evaluation_id"] == "katgym/Toy-v0/example/tiny:1b/1767225600"
    assert log["source_metadata"] == {
        "source_name": "katgym",
        "source_type": "evaluation_run",
        "source_organization_name": "Example Lab",
        "evaluator_relationship": "third_party",
    }
    results = {r["evaluation_result_id"].rpartition("#")[2]: r for r in log["evaluation_results"]}
    assert list(results) == ["mean_reward", "success_rate", "pass_at_k_1", "pass_hat_k_1"]
    reward = results["mean_reward"]["score_details"]
    assert reward["score"] == env.mean_reward
    assert reward["details"]["num_invalid"] == "1"
    assert reward["uncertainty"] == {
        "num_samples": 6,
        "confidence_interval": {
            "lower": env.t_interval.low,
            "upper": env.t_interval.high,
            "confidence_level": 0.95,
            "method": "t interval, standard error clustered by task (CR1)",
        },
        "standard_error": {"value": env.stderr, "method": "clustered by task (CR1)"},
    }
    success = results["success_rate"]["score_details"]
    assert success["score"] == env.success_rate
    assert success["uncertainty"]["confidence_interval"]["upper"] == env.success_interval.high
    assert results["pass_at_k_1"]["score_details"]["score"] == env.pass_at_k[1]
    assert results["pass_at_k_1"]["metric_config"]["metric_parameters"]["k"] == 1
    assert results["mean_reward"]["source_data"]["additional_details"]["plugin_version"] == "1.2"
    assert results["mean_reward"]["generation_config"] == {
        "generation_args": {"temperature": 0.6, "top_p": 0.95, "top_k": None, "max_tokens": 512},
        "additional_details": {"min_p": "0.1"},
    }


def test_samples_are_the_scored_rollouts(make_line: Make, tmp_path: Path) -> None:
    log, rows, _ = _export(make_line, tmp_path)
    assert [(r["sample_id"], r["metadata"]["attempt"]) for r in rows] == [
        ("a", "0"),
        ("a", "1"),
        ("b", "0"),
        ("b", "1"),
        ("c", "1"),
        ("d", "0"),
    ]
    assert [r["interaction_type"] for r in rows] == [
        *("agentic", "agentic", "single_turn", "multi_turn", "agentic", "agentic")
    ]
    first = rows[0]
    assert first["evaluation"] == {
        "score": 1.0,
        "is_correct": True,
        "num_turns": 2,
        "tool_calls_count": 3,
    }
    assert first["token_usage"]["total_tokens"] == 120
    assert first["input"]["raw"] == "Use the tools.\n\nWhat is 2 + 2?"
    assert first["performance"] == {"latency_ms": 500.0}
    assert first["metadata"]["task_sha256"] == "f00"
    assert first["evaluation_result_id"] == f"{log['evaluation_id']}#mean_reward"
    assert first["messages"][2]["tool_calls"] == [
        {"id": "call_0", "name": "add", "arguments": {"x": "2", "why": "sum", "z": "[1]"}},
        {"id": "call_1", "name": "f", "arguments": {"raw": "{oops"}},
    ]
    assert first["messages"][3]["tool_call_id"] == ["call_0"]
    assert rows[2]["output"] == {"raw": ["4"], "reasoning_trace": ["easy"]}
    assert "messages" not in rows[2]
    assert rows[5]["error"] == "max_turns: 8 of 8"
    assert "seed" not in rows[4]["metadata"]


def test_files_stand_where_the_datastore_wants_them_and_are_the_same_again(
    make_line: Make, tmp_path: Path
) -> None:
    log, rows, _ = _export(make_line, tmp_path)
    detail = log["detailed_evaluation_results"]
    uuid4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(
        rf"data/katgym_Toy-v0/example/tiny_1b/{uuid4}_samples\.jsonl", detail["file_path"]
    )
    samples = tmp_path / detail["file_path"]
    assert detail["total_rows"] == len(rows)
    assert detail["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    assert samples.with_name(samples.name.replace("_samples.jsonl", ".json")).exists()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json*")}
    _export(make_line, tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json*")} == before
    assert len(before) == 4


def test_what_cannot_be_exported_is_an_error_and_nothing_is_written(
    make_line: Make, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    lines = [make_line("a", 1.0), make_line("a", None, env_id="katgym/Zzz-v0")]
    with pytest.raises(ValueError, match=r"env 'katgym/Zzz-v0' has no rollout with a valid reward"):
        write_every_eval_ever(tmp_path, lines, summarize(lines), INFO)
    with pytest.raises(ValueError, match="env 'katgym/Toy-v0' of the rollouts is not in the summ"):
        write_every_eval_ever(tmp_path, [make_line()], RunSummary(envs={}), INFO)
    assert list(tmp_path.iterdir()) == []
    for model_id in ("gpt-4o", "a/", "../x", "a/b/../c", "data/x", "unknown/x"):
        with subtests.test(id=model_id), pytest.raises(ValueError, match="no 'developer/model'"):
            replace(INFO, model_id=model_id)


def _validator() -> Path:
    """Return the package's own command, installed once into a cached environment."""
    candidates = [shutil.which("python3.12")]
    candidates += sorted(map(str, Path.home().glob(".pyenv/versions/3.12*/bin/python3.12")))
    working = [
        c
        for c in candidates
        if c and subprocess.run([c, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    if not working:
        pytest.skip("no Python 3.12: the package every-eval-ever needs it")
    venv = Path.home() / ".cache" / "katgym" / PACKAGE.replace("==", "-")
    command = venv / "bin" / "every_eval_ever"
    if not command.exists():
        subprocess.run([working[0], "-m", "venv", "--clear", str(venv)], check=True)
        install = subprocess.run(
            [str(venv / "bin" / "pip"), "install", "--quiet", PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if install.returncode:
            pytest.skip(f"cannot install {PACKAGE}: {install.stderr[-300:]}")
    return command


@pytest.mark.slow
def test_package_itself_accepts_the_export(make_line: Make, tmp_path: Path) -> None:
    command = _validator()
    _export(make_line, tmp_path)
    files = sorted(tmp_path.rglob("*.json*"))
    result = subprocess.run(
        [str(command), "validate", "--format", "json", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    # 0 is clean; 1 means errors and 2 warnings only.
    assert result.returncode == 0, result.stdout + result.stderr
    reports = json.loads(result.stdout)
    assert [r["valid"] for r in reports] == [True] * 4
    assert sorted(r["line_count"] for r in reports) == [0, 0, 5, 6]

    broken = json.loads(files[0].read_text())
    del broken["model_info"]["id"]
    files[0].write_text(json.dumps(broken))
    again = subprocess.run(
        [str(command), "validate", str(files[0])], capture_output=True, check=False
    )
    assert again.returncode == 1
