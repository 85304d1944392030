"""`katgym eval`: results, kill -9, Ctrl-C, wrong use; and FILE.toml: models by envs by seeds."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from chat_server import ChatServer, chat_server
from slow_oracle import start_slow_oracle
from waiting import wait_until

from katgym.cli.main import main
from katgym.evaluation.store import read_rollouts
from katgym.evaluation.suite_config import SuiteConfig, make_schemas
from katgym.rollout_store import RolloutStore, SessionRecord

ARITHMETIC = "katgym/Arithmetic-v1?level=1"
EVALUATE = """
played = open(sys.argv[1], "a", buffering=1)

import katgym.evaluation.run as run
run.make_policy = lambda uri: Slow()
from katgym.evaluation.store import PlanStore
append = PlanStore.append
def traced(self, rollouts):
    append(self, rollouts)
    for r in rollouts:
        played.write(f"{r.task_id} {r.attempt}\\n")
PlanStore.append = traced
sys.exit(main(sys.argv[2:]))
"""


def command(out: Path, *extra: str) -> list[str]:
    options = ["--policy", "oracle", "--tasks", "30", "--group-size", "2", "--concurrency", "4"]
    return ["eval", ARITHMETIC, *options, "--out", str(out), *extra]


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    args = [tmp_path / "played", *command(tmp_path / "run")]
    return start_slow_oracle(tmp_path, EVALUATE, *args)


def wait_for_lines(path: Path, count: int) -> None:
    """Wait until `count` rollouts were reported as written."""
    wait_until(
        lambda: path.exists() and path.read_bytes().count(b"\n") >= count,
        f"{path} to reach {count} lines",
    )


def sessions(folder: Path) -> list[SessionRecord]:
    with RolloutStore.open(folder, create=False) as store:
        return store.sessions()


def test_eval_writes_every_rollout_once_and_the_same_command_again_plays_nothing(tmp_path, capsys):
    assert main(command(tmp_path / "run", "--json")) == 0
    found = read_rollouts(tmp_path / "run")
    assert len({(r.task_id, r.attempt) for r in found}) == len(found) == 60
    assert {r.reward.value for r in found} == {1.0}
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "run" / "summary.json").read_text())
    before = sessions(tmp_path / "run")
    assert main(command(tmp_path / "run")) == 0
    assert sessions(tmp_path / "run") == before
    assert "60 rollouts" in capsys.readouterr().out


@pytest.mark.slow
def test_kill_9_and_ctrl_c_lose_and_repeat_nothing_and_the_command_continues(tmp_path):
    played, hold = tmp_path / "played", tmp_path / "hold"
    hold.touch()
    for count in (1, 9, 25):  # of all that were written so far
        process = start(tmp_path)
        try:
            wait_for_lines(played, count)
        finally:
            process.kill()
            process.communicate()
        assert len(sessions(tmp_path / "run")) >= count
    process = start(tmp_path)
    wait_for_lines(played, 28)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    text = " ".join(errors.decode().split())
    assert process.returncode == 130, text
    assert "Traceback" not in text
    assert "The same command continues there." in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 28 <= len(sessions(tmp_path / "run")) < 60
    hold.unlink()
    last = start(tmp_path)
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors.decode()
    found = [record.rollout for record in sessions(tmp_path / "run")]
    pairs = [(rollout.task_id, rollout.attempt) for rollout in found if rollout]
    assert len(pairs) == len(set(pairs)) == 60
    # what was reported as stored was stored once and never played again
    reported = played.read_text().splitlines()
    assert len(reported) == len(set(reported))


def test_wrong_use_that_is_found_late_exits_2_and_plays_nothing(tmp_path, capsys):
    """What is found before a folder is made stands in `test_mistakes.py`."""
    self_play = "katgym/OpenSpiel-v0?game=tic_tac_toe&opponent=self"
    for number, (arguments, text) in enumerate(
        [
            ([self_play], "2 seats"),
            ([ARITHMETIC, "--concurrency", "0"], "max_concurrency is >= 1"),
            ([ARITHMETIC, "--temperature", "-1"], "temperature is >= 0"),
        ]
    ):
        out = tmp_path / f"run{number}"
        assert (
            main(["eval", *arguments, "--policy", "oracle", "--tasks", "1", "--out", str(out)]) == 2
        )
        assert text in " ".join(capsys.readouterr().err.split())
        assert not RolloutStore.is_at(out) or not sessions(out)


def test_a_server_that_is_down_gives_typed_invalid_rollouts_and_exit_1(tmp_path, capsys):
    out = tmp_path / "run"
    uri = "openai:http://127.0.0.1:9/v1#model?max_retries=0"
    options = ["--tasks", "3", "--set", "max_retries=0", "--out", str(out)]
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    assert main(["eval", ARITHMETIC, "--policy", uri, *options]) == 1
    found = read_rollouts(out)
    assert {r.reward.failure_kind for r in found} == {"policy_unavailable"}
    assert {r.reward.value for r in found} == {None}
    assert "3 rollouts have no valid reward" in " ".join(capsys.readouterr().err.split())


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
    few = ["--set", "num_tasks=1", "--set", "seeds=[0]"]
    one_env = [*few, "--set", 'envs=["katgym/Arithmetic-v1?level=1"]']
    assert len(played(capsys, *one_env)["runs"]) == 3
    assert servers[0].num_calls == 1
    assert len(played(capsys, *few)["runs"]) == 6
    assert servers[0].num_calls == 3


def test_the_guide_shows_a_suite_that_is_valid_by_the_committed_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[3]
    ((name, schema),) = make_schemas().items()
    committed = json.loads((root / "katgym/evaluation/schemas" / name).read_text())
    assert committed == schema, "write it anew: python docs/make_schemas.py"
    jsonschema.Draft202012Validator.check_schema(committed)
    guide = (root / "docs/guides/evaluate.md").read_text()
    shown = guide.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "shown.toml").write_text(shown)
    monkeypatch.setenv("EXAMPLE_API_KEY", "unused")
    config = SuiteConfig.read(tmp_path / "shown.toml")
    assert [model.label for model in config.models] == ["gpt-4.1-mini", "other", "chance"]
    jsonschema.validate(tomllib.loads(shown), schema)
