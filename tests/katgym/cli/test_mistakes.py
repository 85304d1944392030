"""What users get wrong: exit code, message, no traceback; what a message names as the fix works."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.run import evaluate, play_run
from katgym.play.rollout import Rollout
from katgym.policies.uri import policy
from katgym.rollout_store import RolloutStore

ENV = "katgym/Arithmetic-v1"
ORACLE = ("--policy", "oracle")
DEAD = "openai:http://127.0.0.1:9/v1#gpt"
SUITE = 'envs = ["{env}"]\n{more}\n[[models]]\npolicy = "oracle"\n'
FILES = {
    "syntax.toml": "[models\n",
    "key.toml": SUITE.format(env=ENV, more="num_task = 3"),
    "env.toml": SUITE.format(env="katgym/Arithmetik-v1", more=""),
    "free.toml": SUITE.format(env=ENV, more="max_cost = 1.0"),
    "secret.toml": SUITE.format(env=ENV, more="") + 'key = "KATGYM_NO_SUCH_KEY"\n',
    "twice.toml": SUITE.format(env=f'{ENV}", "{ENV}?level=1', more=""),
    "script.jsonl": "{}",
}


class TwoRollouts:
    """A budget of two."""

    def __init__(self) -> None:
        self.num_left = 2

    def may_begin(self) -> bool:
        self.num_left -= 1
        return self.num_left >= 0

    def count(self, rollout: Rollout) -> None:
        pass


async def stop_early(folder: Path) -> None:
    """Play two of six rollouts, as a run that was stopped."""
    plan = Plan.of(EvalConfig(envs=(f"{ENV}?level=1",), policy="random", num_tasks=6))
    await play_run(plan, policy("random"), folder, budget=TwoRollouts())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, whole and broken, and files."""
    place = tmp_path_factory.mktemp("place")
    config = EvalConfig(envs=(f"{ENV}?level=1",), policy="oracle", num_tasks=6)
    asyncio.run(evaluate(config, place / "runs/whole"))
    asyncio.run(stop_early(place / "runs/stopped"))
    for name in ("lock", "format", "empty", "garbage"):
        shutil.copytree(place / "runs/whole", place / "broken" / name)
    (place / "broken/lock/lock.json").write_text("{")
    (place / "broken/format/lock.json").write_text('{"format": 99}')
    for path in (place / "broken/empty").glob("live.sqlite*"):
        path.unlink()
    shutil.rmtree(place / "broken/empty/finished", ignore_errors=True)
    (place / "broken/garbage/live.sqlite").write_bytes(b"\x00garbage" * 500)
    for name, text in FILES.items():
        (place / name).write_text(text)
    return place


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was written to standard error, lines joined."""
    return " ".join(capsys.readouterr().err.split())


CASES = {
    "": (2, "list environments"),
    "evl": (2, "Did you mean 'eval'?"),
    "train": (2, "supervised: all rollouts of teachers"),
    "rollouts": (2, "show"),
    f"eval {ENV}": (2, "--policy says who plays: one of hf, noop, openai, oracle, random"),
    "eval --policy oracle": (2, "the following arguments are required: ENV"),
    "eval katgym/Mth-v0 --policy oracle": (2, "Did you mean 'katgym/Math"),
    "eval arithmetic --policy oracle": (2, "Did you mean 'katgym/Arithmetic-v1'"),
    "eval Arithmetic --policy oracle": (2, "Did you mean 'katgym/Arithmetic-v1'"),
    f"eval {ENV} {ENV}?level=1 --policy oracle": (2, "is named twice"),
    f"eval {ENV}?levl=3 --policy oracle": (2, "Did you mean 'level'?"),
    f"eval {ENV}?level=hard --policy oracle": (2, "level is an int from 1 to 10"),
    f"eval {ENV}?level=99 --policy oracle": (2, "level is an int from 1 to 10"),
    f"eval {ENV} --policy orcle": (2, "Did you mean 'oracle'? Schemes: hf, noop"),
    f"eval {ENV} --policy scripted:missing.json": (2, "missing.json"),
    f"eval {ENV} --policy hf:./nowhere": (2, "there is no folder './nowhere'"),
    f"eval {ENV} --policy openai:127.0.0.1:9#gpt": (2, "its form is openai:URL#MODEL"),
    f"eval {ENV} --policy openai:gpt-4o": (2, "as in openai:https://api.openai.com/v1#gpt"),
    f"eval {ENV} --policy {DEAD}?key=KATGYM_NO_SUCH_KEY": (2, "'KATGYM_NO_SUCH_KEY', which holds"),
    f"eval {ENV} --policy oracle --tasks 0": (2, "num_tasks is >= 1, got 0"),
    f"eval {ENV} --policy oracle --tasks two": (2, "invalid int value: 'two'"),
    f"eval {ENV} --policy oracle --task 3": (2, "Did you mean '--tasks'?"),
    f"eval {ENV} --policy oracle --num-tasks 3": (2, "Did you mean '--tasks'"),
    f"eval {ENV} --model gpt": (2, "unknown option of katgym eval '--model'"),
    f"eval {ENV} --policy oracle --set limits.turns=3": (2, "Did you mean 'limits.max_turns'"),
    f"eval {ENV} --policy oracle --set seed=3": (2, "has an option of its own, --seed"),
    f"eval {ENV} --policy oracle --split tset": (2, "split"),
    f"eval {ENV} --policy oracle --out script.jsonl": (2, "is a file; --out names a folder"),
    f"eval {ENV} --policy oracle --out broken": (2, "is not empty and holds no lock.json"),
    "eval missing.toml": (2, "cannot read 'missing.toml'"),
    "eval syntax.toml": (2, "'syntax.toml' is not TOML"),
    "eval key.toml": (2, "'num_task'. Did you mean 'num_tasks'?"),
    "eval env.toml": (2, "Did you mean 'katgym/Arithmetic-v1'?"),
    "eval free.toml": (2, "max_cost holds nothing back: no model has a prompt_price"),
    "eval secret.toml": (2, "environment variable 'KATGYM_NO_SUCH_KEY'"),
    "eval twice.toml": (2, "env 'katgym/Arithmetic-v1' is there 2 times"),
    "eval key.toml --policy oracle": (2, "leave out --policy"),
    "compare runs runs/whole": (2, "Runs in 'runs': runs/stopped runs/whole"),
    "compare runs/whole runs/hole": (2, "'runs/hole' is no folder. Runs in 'runs': runs/stopped"),
    "compare runs/whole broken/empty": (1, "no task has a valid reward in both runs"),
    "compare runs/whole broken/lock": (2, "'broken/lock/lock.json' is not valid JSON"),
    "compare runs/whole broken/format": (2, "has format 99; this katgym reads 1"),
    "compare runs/whole broken/garbage": (2, "broken/garbage"),
    "view runs --env katgym/Chess-v1": (2, "name a run's folder"),
    "view nowhere": (2, "nowhere"),
    "view broken/empty": (1, "0 of 0 rollouts shown"),
    "view runs/whole --env katgym/Chess-v1": (1, "0 of 0 rollouts shown"),
    "view runs/whole --step 3": (2, "; add --html"),
    "view runs/whole --html --json": (2, "leave it out with --html"),
    "leaderboard runs": (2, "Runs in 'runs': runs/stopped runs/whole"),
    "leaderboard broken/empty": (2, "no run of the leaderboard has any rollouts"),
    "verify runs": (2, "Runs in 'runs': runs/stopped runs/whole"),
    "runs nowhere": (2, "'nowhere' is no folder"),
    "rollouts export runs/whole --out x --format mesages": (2, "Did you mean 'messages'"),
    "envs katgym/Arithmetic": (2, "katgym/Arithmetic-v1"),
    "check katgym/Arithmetik-v1": (2, "katgym/Arithmetic-v1"),
}  # fmt: skip


@pytest.mark.parametrize("command", CASES)
def test_a_mistake_is_told_and_harms_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = sorted(place.rglob("*"))
    code, words = CASES[command]
    assert main(shlex.split(command)) == code
    assert words in said(capsys)
    made = set(place.rglob("*")) - set(before)
    assert not [path for path in made if path.name == "lock.json"]


def named_command(text: str) -> list[str]:
    """Return the command that a message ends with, without `katgym`."""
    command = shlex.split(re.search(r"[Ff]inish it with: (katgym .*)", text)[1])
    return command[1:]


@pytest.mark.parametrize(
    "command", ["compare runs/whole runs/again", "view runs/again", "leaderboard runs/again"]
)
def test_an_unfinished_run_names_the_command_that_finishes_it(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    shutil.rmtree("runs/again", ignore_errors=True)
    shutil.copytree("runs/stopped", "runs/again")
    assert main(shlex.split(command)) == 0
    told = said(capsys)
    assert "runs/again is unfinished: 2 of 6 rollouts have ended. Finish it with: katgym" in told
    assert main(named_command(told)) == 0
    with RolloutStore.open(Path("runs/again"), create=False) as store:
        assert store.num_sessions() == 6
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    assert "unfinished" not in said(capsys)
    shutil.rmtree("runs/again")


def test_an_unfinished_run_is_shown_and_not_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "runs/whole", "runs/stopped"]) == 0
    board = capsys.readouterr().out
    assert "stopped is unfinished and not ranked: 2 of 6 rollouts have ended." in board
    assert "different sets of tasks" not in board
    _, _, below = board.partition("Unfinished, not ranked\n")
    assert [line.split()[:2] for line in below.splitlines()[1:2]] == [["–", "stopped"]]


def test_runs_that_a_message_offers_are_what_the_command_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["leaderboard", "runs"]) == 2
    found = said(capsys).partition("Runs in 'runs': ")[2].split()
    assert main(["leaderboard", *found]) == 0
    assert "whole" in capsys.readouterr().out


def test_the_policy_that_a_message_shows_plays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", ENV]) == 2
    shown = re.search(r"as in (--policy \w+)", said(capsys))[1]
    assert main(["eval", ENV, *shown.split(), "--tasks", "1", "--out", "shown"]) == 0


def test_every_configuration_has_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def folder(*arguments: str) -> str:
        assert main(["eval", *arguments, "--tasks", "1"]) == 0
        return re.search(r"rollouts in (\S+)", capsys.readouterr().out)[1]

    commands = [
        (ENV, *ORACLE), (f"{ENV}?level=1", *ORACLE), (ENV, *ORACLE, "--seed", "1"),
        (ENV, "--policy", "noop"), ("katgym/TreasureHunt-v1", *ORACLE),
    ]  # fmt: skip
    found = [folder(*command) for command in commands]
    assert len(set(found)) == len(commands)
    assert found[0].startswith("runs/Arithmetic-v1-oracle-")
    assert folder(*commands[0]) == found[0]  # the same command goes on there
    assert main(["eval", ENV, "--policy", "noop", "--tasks", "1", "--out", found[0]]) == 2
    told = said(capsys)
    assert 'policy: there "oracle", here "noop"' in told and "Leave out --out" in told
    for path in found:
        shutil.rmtree(path)


def test_a_refused_connection_is_not_asked_again_and_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", ENV, "--policy", DEAD, "--tasks", "3", "--out", "dead"]) == 1
    told = said(capsys)
    assert told.count("Is the server running, and the URL right?") == 1
    assert "retry" not in told


def test_help_and_unknown_commands_cost_no_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/help\n/oracel\n//half\n"))
    assert main(["play", ENV]) == 0  # the third line is an answer, which ends the episode
    shown = capsys.readouterr()
    assert "/send ends the turn" in shown.out and "reward: 0" in shown.out
    assert "unknown command '/oracel'. Did you mean '/oracle'?" in shown.err
