"""Rollouts of finished and of interrupted runs are read back; what is no rollout is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_rollouts import short_rollout

from katgym import make
from katgym.evaluation.plan import EvalConfig
from katgym.evaluation.run import evaluate
from katgym.storage import to_lines
from katgym_trainer.rollouts.rollout_files import read_rollouts
from katgym_trainer.rollouts.rollout_rows import rollout_rows

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
    envs = ("katgym/Arithmetic-v0?level=2", "katgym/MathProblems-v0")
    config = EvalConfig(envs=envs, policy="oracle", num_tasks=2, group_size=2)
    asyncio.run(evaluate(config, folder))
    return folder


@pytest.mark.parametrize("name", ["", "rollouts.jsonl"])
def test_a_run_comes_back_with_its_tools(
    run_folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    read = list(read_rollouts(str(run_folder / name)))
    assert len(read) == 8
    text = (run_folder / "rollouts.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [rollout.to_json() for rollout in read] == lines
    arithmetic = make("katgym/Arithmetic-v0", level=2)
    schemas = [tool.to_openai() for tool in arithmetic.tools.values()]
    assert schemas
    for rollout in read:
        assert list(rollout.tools) == (schemas if "Arithmetic" in rollout.env_id else [])
    assert list(warnings(caplog)) == []


def test_tokens_come_back_from_a_file_alone_and_tools_are_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = list(read_rollouts(write(tmp_path / "some.jsonl")))
    assert read == ROLLOUTS
    assert [rollout_rows(r)[0].token_ids.tolist() for r in read] == [[1, 2, 3, 4], [1, 2, 5]]
    assert list(warnings(caplog)) == [
        f"no lock.json in {tmp_path}: its rollouts come without their tools' schemas, which prompts"
        " rendered of their messages need"
    ]


def test_a_line_that_a_kill_cut_short_is_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = to_lines([ROLLOUTS[0].to_json()])
    for end in (b"{", whole[:-2], whole[:-1]):  # also a line that lacks its end alone
        caplog.clear()
        path = write(tmp_path / "rollouts.jsonl", end=end)
        assert list(read_rollouts(tmp_path)) == ROLLOUTS
        assert list(warnings(caplog))[1:] == [f"left out the last line of {path}, which has no end"]


@pytest.mark.parametrize("content", [b"", b"{"])
def test_a_file_without_a_whole_line_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rollouts.jsonl").write_bytes(content)
    assert list(read_rollouts(tmp_path)) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{]\n", "line 3: not JSON"),
        (b"\n", "line 3: not JSON"),
        (b"[1]\n", "line 3: a row is a JSON object, got list"),
        (b"{}\n", "line 3: not a rollout: KeyError: 'env_id'"),
    ],
)
def test_a_line_that_is_no_rollout_is_named_after_those_before_it(
    tmp_path: Path, line: bytes, words: str
) -> None:
    path = write(tmp_path / "rollouts.jsonl", end=line + to_lines([ROLLOUTS[0].to_json()]))
    found = read_rollouts(path)
    assert [next(found), next(found)] == ROLLOUTS
    with pytest.raises(ValueError) as caught:
        next(found)
    assert str(caught.value).startswith(f"{str(path)!r} {words}")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("status", "gone", "ValueError: 'gone' is not a valid RolloutStatus"),
        ("reward", 1.0, "AttributeError: 'float' object has no attribute 'get'"),
        ("sampling", {"temprature": 1}, "TypeError: Sampling.__init__"),
        ("reward", {"value": None, "is_valid": True}, "UsageError: a valid reward has a finite"),
        ("tokens", {"turns": [{"tool_results": [], "record": None}]}, "TypeError: Turn.__init__"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    tmp_path: Path, field: str, value: object, words: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(to_lines([{**ROLLOUTS[0].to_json(), field: value}]))
    with pytest.raises(ValueError) as caught:
        list(read_rollouts(path))
    assert f"line 1: not a rollout: {words}" in str(caught.value)


def test_what_is_no_file_or_no_lock_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(ValueError, match="wanted a run folder, its rollouts") as caught:
            read_rollouts(path)
        assert repr(str(path)) in str(caught.value)
    write(tmp_path / "rollouts.jsonl")
    (tmp_path / "lock.json").write_text("{}")
    with pytest.raises(ValueError, match="has format None; this katgym reads 1"):
        read_rollouts(tmp_path)
