"""`katgym rollouts`: what its subcommands print, write and return."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from katgym import assistant, user
from katgym.cli.main import main
from katgym.environment.reward import Component, Reward
from katgym.play.rollout import Turn
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.version_span import one_span
from katgym.rollout_store import (
    FailedCall,
    RolloutStore,
    SessionRecord,
    SessionStatus,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    said = {"messages": [user("two and [two]?")], "answer": assistant("four")}
    one = one_span(3, 1)
    first = TokenRecord(prompt_ids=[1, 2], completion_ids=[3], policy_logprobs=[-0.5],
                        version_spans=one)  # fmt: skip
    second = TokenRecord(parent=0, num_shared=1, prompt_ids=[4], completion_ids=[5],
                         policy_logprobs=[-0.5], version_spans=one,
                         branch=BranchReason.REWRITE)  # fmt: skip
    counted = {"num_prompt_tokens": 2, "num_completion_tokens": 1}
    held = {"constraint": "json_schema:1f0c3a9b2d4e"}
    turns = [
        Turn(**said, **counted, tokens=first, call_id="a", model="tiny", completed_s=0.5),
        Turn(**said, **counted, tokens=second, call_id="b", finish_reason="length", sampling=held),
    ]
    reward = Reward(value=0.5, components={"tests": Component(score=0.5)})
    failed = FailedCall(call_id="x", route="r", status=400, kind="malformed", reason="bad [body]")
    with RolloutStore.open(tmp_path / "store") as store:
        store.create_session(
            SessionRecord(session_id="s1", created_s=1000.0, metadata={"env_id": "e"})
        )
        store.append("s1", turns, [failed])
        store.update_session("s1", status=SessionStatus.FINISHED, reward=reward, ended_s=1002.0)
        store.create_session(SessionRecord(session_id="s2", created_s=2000.0))
    return tmp_path / "store"


def out_of(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["rollouts", *map(str, args)]) == 0
    return capsys.readouterr().out


def test_show_lists_sessions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "show", folder).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["session", "group", "status", "reward"],
        ["s1", "-", "finished", "0.5"],
        ["s2", "-", "open", "-"],
    ]
    assert "1970-01-01 00:16:40" in lines[1]
    assert [s["session_id"] for s in json.loads(out_of(capsys, "show", folder, "--json"))] == [
        "s1", "s2",
    ]  # fmt: skip
    assert "s2" not in out_of(capsys, "show", folder, "--status", "finished")
    assert "s1" not in out_of(capsys, "show", folder, "--limit", 1)


def test_show_draws_a_session_as_a_tree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = out_of(capsys, "show", folder, "s1")
    assert "s1: finished, reward 0.5" in out
    assert "env_id: e" in out
    assert "reward component tests: 0.5" in out
    assert "0: +2 prompt, 1 sampled | stop | version 3 | 0.50 s | tiny" in out
    assert "1: +1 prompt, 1 sampled | shares 1 | branch: rewrite | constrained: json_schema:" in out
    assert "1f0c3a9b2d4e | length | version 3" in out
    assert "failed call x: 400 malformed: bad [body]" in out
    assert "four" not in out
    text = out_of(capsys, "show", folder, "s1", "--text")
    assert "user: two and [two]?" in text
    assert "assistant: four" in text
    data = json.loads(out_of(capsys, "show", folder, "s1", "--json"))
    assert data["turns"][1]["tokens"]["branch"] == "rewrite"
    assert data["turns"][1]["answer"] is None
    with_text = json.loads(out_of(capsys, "show", folder, "s1", "--json", "--text"))
    assert with_text["turns"][0]["answer"]["content"] == "four"


def test_a_long_session_is_not_drawn_into_the_margin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls that go on stand below each other; forks stand inside, at the same depth."""
    with RolloutStore.open(tmp_path) as store:
        store.create_session(SessionRecord(session_id="s"))
        for index in range(60):
            is_fork = index % 20 == 19
            tokens = TokenRecord(
                completion_ids=[index],
                parent=index - 1 - is_fork if index else None,
                branch=BranchReason.REWRITE if is_fork else None,
            )
            store.append("s", [Turn(tokens=tokens, call_id=f"{index}")], first=index)
    lines = out_of(capsys, "show", tmp_path, "s").splitlines()[1:]
    found = [re.fullmatch(r"(\W*)(\d+): \+0 prompt.*", line) for line in lines]
    depths = {int(match[2]): len(match[1]) // 4 for match in found if match}
    assert depths == {index: 1 + (index + 1) // 20 for index in range(60)}


def test_stats_prints_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = out_of(capsys, "stats", folder)
    assert "finished 1, open 1" in out
    assert "rewrite 1" in out
    assert "malformed 1" in out
    assert "sharing ratio 1.20" in out
    data = json.loads(out_of(capsys, "stats", folder, "--json"))
    assert (data["num_prompt_tokens"], data["num_sampled_tokens"]) == (4, 2)
    assert data["versions"] == {"3": 2}


def test_export_writes_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    base = ["export", folder, "--format", "messages", "--out", out]
    assert out_of(capsys, *base) == ""
    # The other branch ends with an answer that was held to a schema.
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [0.5]
    out_of(capsys, *base, "--min-reward", 0.75)
    assert out.read_text() == ""
    out_of(capsys, *base, "--status", "open", "--status", "failed")
    assert out.read_text() == ""
    assert main(["rollouts", "export", str(folder), "--format", "mesages", "--out", "x.jsonl"]) == 2
    assert "Did you mean 'messages'?" in capsys.readouterr().err


def test_gc_seals_and_a_dry_run_does_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "would be sealed: 1 sessions" in out_of(capsys, "gc", folder, "--dry-run")
    data: dict[str, Any] = json.loads(out_of(capsys, "gc", folder, "--json"))
    assert data["sealed"] == ["s1"]
    assert "branch: rewrite" in out_of(capsys, "show", folder, "s1")
    assert "dropped: 0 sessions, 1 shards" in out_of(capsys, "gc", folder, "--older-than", 1)
    assert main(["rollouts", "gc", str(folder), "--older-than", "-1"]) == 2
    assert "--older-than is a number of days >= 0" in capsys.readouterr().err


def test_a_damaged_shard_is_named_and_exits_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_of(capsys, "gc", folder)
    for path in (folder / "finished").glob("*.parquet"):
        path.write_bytes(b"PAR1 nothing")
    name = path.stem.partition("-")[2]
    export = ["export", str(folder), "--format", "rows", "--out", str(tmp_path / "o.jsonl")]
    for args in (["show", str(folder)], ["stats", str(folder)], export):
        assert main(["rollouts", *args]) == 1, args
        said = " ".join(capsys.readouterr().err.split())
        assert f"--drop-shard {name}" in said.replace("-drop- shard", "-drop-shard")
    out_of(capsys, "gc", folder, "--drop-shard", name)
    assert [s["session_id"] for s in json.loads(out_of(capsys, "show", folder, "--json"))] == ["s2"]


def test_wrong_usage_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", "show", str(tmp_path / "nowhere")]) == 2
    assert "there is no rollout store at" in capsys.readouterr().err
    with RolloutStore.open(tmp_path / "store"):
        pass
    assert main(["rollouts", "show", str(tmp_path / "store"), "s9"]) == 2
    assert "unknown session 's9'" in capsys.readouterr().err
