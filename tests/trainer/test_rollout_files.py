"""Rollouts of finished and of interrupted runs are read back; what is no rollout is named."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from made_rollouts import short_rollout
from plain_rollout import plain_json

from katgym import make
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.policies.rendering.chatml_renderer import ChatMLRenderer
from katgym.rollout_store import exporter
from katgym.rollout_store.exporting import write_rows
from katgym.rollout_store.rollouts import as_session
from katgym.system import to_lines
from katgym_trainer.rollouts.rollout_files import read_rollouts
from katgym_trainer.rollouts.rollout_rows import rollout_rows
from katgym_trainer.rollouts.supervised_rows import supervised_rows
from katgym_trainer.rollouts.teacher_tokens import tokenize_rollout

ROLLOUTS = [short_rollout("a", 1.0, 3, 4), short_rollout("b", 0.5, 5)]


def write(path: Path, *, end: bytes = b"") -> Path:
    path.write_bytes(to_lines(rollout.to_json() for rollout in ROLLOUTS) + end)
    return path


def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    return (record.getMessage() for record in caplog.records if record.name.startswith("katgym_t"))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two envs, one with arguments and a tool."""
    folder = tmp_path_factory.mktemp("run")
    envs = ("katgym/Arithmetic-v1?level=2", "katgym/MathProblems-v1")
    config = EvalConfig(envs=envs, policy="oracle", num_tasks=2, group_size=2)
    asyncio.run(evaluate(config, folder))
    return folder


def test_a_run_comes_back_with_its_tools(
    run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = list(read_rollouts(str(run_folder)))
    assert len(read) == 8
    arithmetic = make("katgym/Arithmetic-v1", level=2)
    schemas = [tool.to_openai() for tool in arithmetic.tools.values()]
    assert schemas
    for rollout in read:
        assert list(rollout.tools) == (schemas if "Arithmetic" in rollout.env_id else [])
    assert list(warnings(caplog)) == []


def test_rollouts_come_back_from_a_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = list(read_rollouts(write(tmp_path / "some.jsonl")))
    assert [plain_json(r) for r in read] == [plain_json(r) for r in ROLLOUTS]
    assert [rollout_rows(r)[0].token_ids.tolist() for r in read] == [[1, 2, 3, 4], [1, 2, 5]]
    assert list(warnings(caplog)) == []


def test_a_line_that_a_kill_cut_short_is_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = to_lines([ROLLOUTS[0].to_json()])
    for end in (b"{", whole[:-2], whole[:-1]):  # also a line that lacks its end alone
        caplog.clear()
        path = write(tmp_path / "rollouts.jsonl", end=end)
        assert [r.episode_id for r in read_rollouts(path)] == ["a", "b"]
        assert list(warnings(caplog)) == [f"left out the last line of {path}, which has no end"]
    for content in (b"", b"{"):  # no whole line at all
        path.write_bytes(content)
        assert list(read_rollouts(path)) == []


def test_a_line_that_is_no_rollout_is_named_after_those_before_it(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for line, words in [
        (b"{]\n", "line 3: not JSON"),
        (b"\n", "line 3: not JSON"),
        (b"[1]\n", "line 3: a row is a JSON object, got list"),
        (b"{}\n", "line 3: not a rollout as this katgym writes them: it has no 'turns'"),
    ]:
        path = write(tmp_path / "rollouts.jsonl", end=line + to_lines([ROLLOUTS[0].to_json()]))
        found = read_rollouts(path)
        with subtests.test(line=line):
            assert [next(found).episode_id, next(found).episode_id] == ["a", "b"]
            with pytest.raises(ValueError, match=re.escape(f"{str(path)!r} {words}")):
                next(found)


def test_a_field_that_does_not_fit_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for field, value, words in [
        ("status", "gone", "Invalid enum value 'gone' - at `$.status`"),
        ("reward", 1.0, "Expected `object`, got `float` - at `$.reward`"),
        ("sampling", {"temprature": 1}, "unknown field 'temprature'. Did you mean 'temperature'?"),
        ("reward", {"value": None, "is_valid": True}, "a valid reward has a finite"),
        ("turns", [{"num_messages": 1}], "unknown field 'num_messages'"),
        ("tokens", {}, "unknown field 'tokens'"),
    ]:
        path = tmp_path / "x.jsonl"
        path.write_bytes(to_lines([{**ROLLOUTS[0].to_json(), field: value}]))
        words = f"line 1: not a rollout as this katgym writes them: .*{re.escape(words)}"
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            list(read_rollouts(path))


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(ValueError, match="wanted the folder of a run") as caught:
            read_rollouts(path)
        assert repr(str(path)) in str(caught.value)


def test_trajectories_of_atif_come_back_with_what_they_say(
    run_folder: Path, tmp_path: Path
) -> None:
    rollouts = list(read_rollouts(run_folder))
    sessions = [as_session(r, group_id="g", metadata={}, ended_s=9.0) for r in rollouts]
    write_rows(tmp_path / "all.jsonl", "atif", exporter("atif"), sessions)
    found = list(read_rollouts(tmp_path / "all.jsonl"))
    assert [r.messages for r in found] == [r.messages for r in rollouts]
    assert [(r.task_id, r.attempt, r.reward.value) for r in found] == [
        (r.task_id, r.attempt, r.reward.value) for r in rollouts
    ]
    renderer = ChatMLRenderer(byte_tokenizer())
    for one, other in zip(found, rollouts, strict=True):
        (row,), (wanted,) = (supervised_rows([tokenize_rollout(r, renderer)]) for r in (one, other))
        assert row.token_ids.tolist() == wanted.token_ids.tolist()
        assert row.loss_mask.tolist() == wanted.loss_mask.tolist()
    whole = json.dumps(json.loads((tmp_path / "all.jsonl").read_text().splitlines()[0]), indent=2)
    (tmp_path / "trajectory.json").write_text(whole)
    (alone,) = read_rollouts(tmp_path / "trajectory.json")
    assert alone.messages == rollouts[0].messages


def test_what_is_no_trajectory_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, text, said in [
        ("a.json", "{}", "no trajectory of ATIF"),
        ("a.json", "{", "Expecting"),
        ("a.jsonl", '{"schema_version": "ATIF-v1.8"}\n', "line 1: not a trajectory of ATIF"),
    ]:
        (tmp_path / name).write_text(text)
        with subtests.test(text=text), pytest.raises(ValueError, match=said):
            list(read_rollouts(tmp_path / name))
