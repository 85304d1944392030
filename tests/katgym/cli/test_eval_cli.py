"""`katgym eval` as a user meets it: results, resume after kill -9, Ctrl-C, wrong use."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from slow_oracle import start_slow_oracle
from waiting import wait_until

from katgym.cli.main import main
from katgym.evaluation.store import read_rollouts
from katgym.rollout_store import RolloutStore, SessionRecord

ARITHMETIC = "katgym/Arithmetic-v1"
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


def test_eval_writes_every_rollout_once_and_a_summary(tmp_path, capsys):
    assert main(command(tmp_path / "run", "--json")) == 0
    found = read_rollouts(tmp_path / "run")
    assert len({(r.task_id, r.attempt) for r in found}) == len(found) == 60
    assert {r.reward.value for r in found} == {1.0}
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_same_command_again_plays_nothing(tmp_path, capsys):
    assert main(command(tmp_path / "run")) == 0
    before = sessions(tmp_path / "run")
    assert main(command(tmp_path / "run")) == 0
    assert sessions(tmp_path / "run") == before
    assert "60 rollouts" in capsys.readouterr().out


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_and_repeats_nothing(tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    for count in (1, 9, 25):  # of all that were written so far
        process = start(tmp_path)
        try:
            wait_for_lines(tmp_path / "played", count)
        finally:
            process.kill()
            process.communicate()
        assert len(sessions(tmp_path / "run")) >= count
    hold.unlink()
    last = start(tmp_path)
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors.decode()
    found = [record.rollout for record in sessions(tmp_path / "run")]
    pairs = [(rollout.task_id, rollout.attempt) for rollout in found if rollout]
    assert len(pairs) == len(set(pairs)) == 60
    # what was reported as stored was stored once and never played again
    reported = (tmp_path / "played").read_text().splitlines()
    assert len(reported) == len(set(reported))


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_command_continues(tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    process = start(tmp_path)
    wait_for_lines(tmp_path / "played", 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors.decode()
    text = errors.decode()
    assert "Traceback" not in text
    assert "The same command continues there." in " ".join(text.split())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())
    stopped = len(sessions(tmp_path / "run"))
    assert 3 <= stopped < 60
    hold.unlink()
    again = start(tmp_path)
    again.communicate(timeout=300)
    assert again.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["katgym/Arithmetik-v0", "--policy", "oracle"], "Did you mean 'katgym/Arithmetic-v1'?"),
        ([ARITHMETIC, "--policy", "orakle"], "Did you mean 'oracle'?"),
        ([ARITHMETIC, "--policy", "oracle", "--split", "tests"], "unknown split 'tests'"),
        ([f"{ARITHMETIC}?lvel=1", "--policy", "oracle"], "Did you mean 'level'?"),
        ([ARITHMETIC, "--policy", "oracle", "--tasks", "0"], "num_tasks is >= 1, got 0"),
        ([ARITHMETIC, ARITHMETIC, "--policy", "oracle"], "is named twice"),
        (["katgym/OpenSpiel-v0?game=tic_tac_toe&opponent=self", "--policy", "oracle"], "2 seats"),
        ([ARITHMETIC, "--policy", "oracle", "--concurrency", "0"], "max_concurrency is >= 1"),
        ([ARITHMETIC, "--policy", "oracle", "--temperature", "-1"], "temperature is >= 0"),
    ],
)
def test_wrong_use_exits_2_and_says_what_to_do(tmp_path, capsys, arguments, text):
    out = tmp_path / "run"
    assert main(["eval", *arguments, "--out", str(out)]) == 2
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
