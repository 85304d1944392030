"""`katgym eval FILE.toml`: one command for models by envs by seeds, against two chat APIs."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from chat_server import ChatServer, chat_server

from katgym.cli.main import main
from katgym.evaluation.suite_config import SuiteConfig, make_schemas

SUITE = """
envs = ["katgym/Arithmetic-v1?level=1", "katgym/TreasureHunt-v1"]
seeds = [0, 1]
num_tasks = 3
limits.max_turns = 2

[[models]]
name = "wrong"
policy = "openai:{0}#gpt-a"
key = "KEY_A"
prompt_price = 2.0
completion_price = 10.0
context_tokens = 4000
max_concurrency = 1

[[models]]
policy = "openai:{1}#gpt-b"
key = "KEY_B"

[[models]]
name = "gold"
policy = "oracle"
"""
CALL_COST = (1000 * 2.0 + 100 * 10.0) / 1e6
"""Of one call of the first model, as `chat_server` counts tokens."""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ChatServer]]:
    monkeypatch.setenv("KEY_A", "sk-a")
    monkeypatch.setenv("KEY_B", "sk-b")
    with ExitStack() as stack:
        yield [
            stack.enter_context(chat_server(lambda _: "Answer: 12345", key=f"sk-{name}"))
            for name in "ab"
        ]


@pytest.fixture
def suite(tmp_path: Path, servers: list[ChatServer], monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(SUITE.format(*(server.url for server in servers)))
    monkeypatch.chdir(tmp_path)
    return path


def played(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run the suite and return what it prints as JSON."""
    assert main(["eval", "mine.toml", "--json", *arguments]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_one_command_plays_everything_and_makes_one_board(
    suite: Path, servers: list[ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    found = played(capsys)
    assert found["is_finished"] and found["problems"] == {}
    assert len(found["runs"]) == 3 * 2 * 2
    assert {(run["model"], run["success_rate"]) for run in found["runs"]} == {
        ("wrong", 0.0), ("gpt-b", 0.0), ("gold", 1.0),
    }  # fmt: skip
    # Arithmetic ends with its answer, the hunt with its second turn; three tasks of two seeds each.
    assert [server.num_calls for server in servers] == [6 * 1 + 6 * 2] * 2
    assert [server.num_refused for server in servers] == [0, 0]
    assert found["spent"] == pytest.approx(18 * CALL_COST)
    before = [server.num_calls for server in servers]
    assert main(["eval", "mine.toml"]) == 0
    assert [server.num_calls for server in servers] == before  # nothing is played again
    board = capsys.readouterr().out
    rows = [line.split() for line in board.splitlines() if line.split()[1:2] == ["wrong"]]
    assert [row[-2] for row in rows] == ["$0.05", "$0.02", "$0.04"]  # overall, and each env
    assert "All 3 runs played the same 12 tasks with the same env seeds." in board
    assert {path.name for path in Path("runs/mine").iterdir() if path.is_file()} == {
        "suite.json", "leaderboard.md", "leaderboard.html",
    }  # fmt: skip
    kept = json.loads(Path("runs/mine/suite.json").read_text())
    assert kept["runs"] == found["runs"] and kept["spent"] == pytest.approx(found["spent"])


@pytest.mark.slow
def test_a_dry_run_says_what_it_costs_at_most_and_plays_nothing(
    suite: Path, servers: list[ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    found = played(capsys, "--dry-run")
    assert not Path("runs").exists() and [server.num_calls for server in servers] == [0, 0]
    first = found["runs"][0]
    assert (first["num_rollouts"], first["num_calls"], first["num_completion_tokens"]) == (
        3, 3 * 2, 3 * 2 * 512,
    )  # fmt: skip
    assert first["max_cost"] == pytest.approx(6 * 4000 * 2.0 / 1e6 + 6 * 512 * 10.0 / 1e6)
    assert (found["num_rollouts"], found["spent"]) == (36, 0.0)
    played(capsys)
    left = played(capsys, "--dry-run")
    assert (left["num_rollouts"], left["max_cost"]) == (0, 0.0)
    assert left["spent"] < found["max_cost"]


@pytest.mark.slow
def test_a_budget_stops_the_suite_and_more_of_it_goes_on(
    suite: Path, servers: list[ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = 4 * CALL_COST
    found = played(capsys, "--set", f"max_cost={limit}", code=1)
    assert not found["is_finished"]
    # One rollout at a time, of two calls at most, may begin under the limit and end over it.
    assert limit - 1e-9 <= found["spent"] < limit + 2 * CALL_COST - 1e-9
    assert servers[1].num_calls == 0
    assert main(["eval", "mine.toml", "--set", f"max_cost={limit}"]) == 1
    told = capsys.readouterr().err
    assert "the budget is used up" in told and "the suite is unfinished" in told
    command = shlex.split(told.rpartition("Raise max_cost, then finish it with: katgym ")[2])
    assert command == ["eval", "mine.toml"]
    assert main(command) == 0
    assert [server.num_calls for server in servers] == [18, 18]


@pytest.mark.slow
def test_a_model_that_fails_is_named_and_the_others_are_played(
    suite: Path, servers: list[ChatServer], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KEY_A", "sk-old")
    found = played(capsys, "--set", "num_tasks=16", "--set", "seeds=[0]", code=1)
    assert "16 rollouts in a row failed (policy_rejected)" in found["problems"]["wrong"]
    states = {(run["model"], run["state"]) for run in found["runs"]}
    assert {("gpt-b", "finished"), ("gold", "finished")} < states
    assert found["spent"] == 0.0


def test_more_envs_play_what_is_new_alone(
    suite: Path, servers: list[ChatServer], capsys: pytest.CaptureFixture[str]
) -> None:
    one_env = ["--set", 'envs=["katgym/Arithmetic-v1?level=1"]']
    assert len(played(capsys, *one_env)["runs"]) == 6
    assert servers[0].num_calls == 6
    assert len(played(capsys)["runs"]) == 12
    assert servers[0].num_calls == 18


def test_the_schema_is_committed_and_allows_what_the_guide_shows() -> None:
    root = Path(__file__).parents[3]
    ((name, schema),) = make_schemas().items()
    committed = json.loads((root / "katgym/evaluation/schemas" / name).read_text())
    assert committed == schema, "write it anew: python docs/make_schemas.py"
    jsonschema.Draft202012Validator.check_schema(committed)


def test_the_guide_shows_a_suite_that_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/evaluate.md").read_text()
    shown = guide.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "shown.toml").write_text(shown)
    monkeypatch.setenv("EXAMPLE_API_KEY", "unused")
    config = SuiteConfig.read(tmp_path / "shown.toml")
    assert [model.label for model in config.models] == ["gpt-4.1-mini", "other", "chance"]
    schema = make_schemas()["eval-suite.json"]
    jsonschema.validate(tomllib.loads(shown), schema)
