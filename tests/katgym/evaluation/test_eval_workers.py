"""`katgym eval --workers N`: the same rollouts as without, also when workers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from katgym.cli.main import main
from katgym.errors import InfrastructureError
from katgym.evaluation.store import read_rollouts
from katgym.play.engine import EngineConfig, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.workers.player_pool import PlayerPool
from katgym.play.workers.worker_calls import EngineRef
from katgym.play.workers.worker_process import WorkerProcess
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Sampling

ENVS = ["katgym/TreasureHunt-v1?level=2", "katgym/Arithmetic-v1"]
SLOW_ENV = """
import asyncio, os, katgym

class Slow(katgym.Env):
    splits = ("test",)

    def __init__(self, *, log, **kwargs):
        super().__init__(**kwargs)
        self.log = log

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"test-{n}", prompt=str(n), answer=str(n)) for n in range(24)]

    async def setup(self):
        self.write("begun")
        await asyncio.sleep(0.05)
        while os.path.exists(self.log + ".hold") and not self.takes_pass():
            await asyncio.sleep(0.02)
        self.write("ended")

    def takes_pass(self):
        try:
            os.remove(self.log + ".pass")
        except FileNotFoundError:
            return False
        return True

    def write(self, what):
        with open(self.log, "a") as file:
            file.write(f"{what} {self.task.task_id} {os.getpid()}\\n")

    def oracle_action(self):
        return self.task.answer

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer


class Deadly(Slow):
    async def setup(self):
        os._exit(9)
"""
HOOKS = """
import os, pluggy

with open(os.environ.get("KATGYM_TEST_LOG", os.devnull), "a") as file:
    file.write(f"loaded - {os.getpid()}\\n")

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("slow/Slow-v0", "kp_slow_env:Slow", description="It takes its time.")
    register("slow/Deadly-v0", "kp_slow_env:Deadly", description="It ends its process.")
"""


def played(folder: Path) -> dict[tuple[str, str, int], Any]:
    """Return all that is recorded of each rollout, but times and the episode's name."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("episode_id", "wall_s", "called_s", "started_s", "sent_s", "completed_s",
                        "ended_s")  # fmt: skip
            return {name: bare(v) for name, v in value.items() if name not in left_out}
        return [bare(item) for item in value] if isinstance(value, list) else value

    found = read_rollouts(folder)
    keyed = {(r.env_id, r.task_id, r.attempt): bare(r.to_json()) for r in found}
    assert len(keyed) == len(found)
    return keyed


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "oracle"])
def test_workers_play_what_one_process_plays(tmp_path: Path, policy: str) -> None:
    options = ["--policy", policy, "--tasks", "15", "--group-size", "2", "--seed", "3"]
    for workers in (0, 1, 3):
        out = tmp_path / str(workers)
        told = ["--workers", str(workers), "--out", str(out)]
        assert main(["eval", *ENVS, *options, *told]) == 0
        assert main(["verify", str(out)]) == 0
    alone = played(tmp_path / "0")
    assert len(alone) == 60
    assert len({str(rollout["turns"]) for rollout in alone.values()}) > 15
    assert played(tmp_path / "1") == alone
    assert played(tmp_path / "3") == alone


def test_a_run_is_continued_with_another_number_of_workers(tmp_path: Path) -> None:
    out, common = tmp_path / "run", ["--policy", "random", "--seed", "3"]
    assert main(["eval", *ENVS, *common, "--tasks", "4", "--out", str(tmp_path / "all")]) == 0
    for workers in (2, 0, 1):
        told = ["--tasks", "4", "--workers", str(workers), "--out", str(out)]
        assert main(["eval", *ENVS, *common, *told]) == 0
    assert played(out) == played(tmp_path / "all")


def test_wrong_numbers_of_workers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, text in {"-1": "num_workers is >= 0, got -1", "two": "--workers"}.items():
        options = ["--policy", "oracle", "--workers", number, "--out", str(tmp_path / "run")]
        assert main(["eval", *ENVS, *options]) == 2
        assert text in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "run").exists()


# ---- killing and stopping, with an env that takes its time


@pytest.fixture
def slow(plugin_tree: Any) -> Any:
    plugin_tree.add_module("kp_slow", HOOKS)
    plugin_tree.add_module("kp_slow_env", SLOW_ENV)
    plugin_tree.add_distribution("katgym-plugin-slow", {"slow": "kp_slow"})
    return plugin_tree


def start(slow: Any, out: Path, *options: str) -> subprocess.Popen[str]:
    log = str(out.parent / "log")
    env = f"slow/Slow-v0?log={log}"
    path = os.pathsep.join([str(slow.folder), *sys.path])
    command = ["-m", "katgym", "eval", env, "--policy", "oracle", "--tasks", "24", "--json"]
    return subprocess.Popen(
        [sys.executable, *command, "--concurrency", "4", "--out", str(out), *options],
        env={**os.environ, "PYTHONPATH": path, "KATGYM_TEST_LOG": log},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(out: Path, what: str) -> list[tuple[str, int]]:
    """Return tasks and processes of what was logged."""
    log = out.parent / "log"
    words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(task, int(pid)) for kind, task, pid in words if kind == what]


def let_pass(out: Path, num: int) -> None:
    """Let some of those on hold end, one after the other."""
    for _ in range(num):
        num_before = len(lines(out, "ended"))
        (out.parent / "log.pass").touch()
        wait_until(lambda n=num_before: len(lines(out, "ended")) > n, "a task to end")


def find_victim(out: Path) -> int | None:
    """Return the process of a worker that has ended a task and plays another."""
    begun, ended = (Counter(pid for _, pid in lines(out, what)) for what in ("begun", "ended"))
    return next((pid for pid in ended if begun[pid] > ended[pid]), None)


def let_pass_until_a_third_plays(out: Path) -> None:
    """Let one task of those on hold end every two seconds: the next goes to who is least busy."""
    wait_until(lambda: len({pid for _, pid in lines(out, "loaded")}) == 4, "a third to start")
    while len({pid for _, pid in lines(out, "begun")}) < 3:
        let_pass(out, 1)
        time.sleep(2)


def wait_for_end(pids: set[int]) -> None:
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "workers to end")


def num_stored(out: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{out / 'live.sqlite'}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM sessions").fetchone()[0])


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_finished(slow: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    hold = tmp_path / "log.hold"  # else the other worker may play all before a third is there
    hold.touch()
    process = start(slow, out, "--workers", "2")
    let_pass(out, 6)
    victim = wait_until(lambda: find_victim(out), "a worker to play on")
    os.kill(victim, signal.SIGKILL)
    let_pass_until_a_third_plays(out)
    hold.unlink()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"(process {victim}) has ended; what it played is played again" in " ".join(
        errors.split()
    )
    assert json.loads(output)["envs"]
    assert len(played(out)) == 24
    begun, ended = Counter(task for task, _ in lines(out, "begun")), lines(out, "ended")
    assert set(begun) == {f"test-{n}" for n in range(24)}
    # Of what it played at that moment, and of nothing else, there was a second try.
    assert sum(begun.values()) - 24 <= 4 and max(begun.values()) <= 2
    assert len({pid for _, pid in ended}) == 3
    wait_for_end({pid for _, pid in ended})


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_command_which_continues_with_another_number(
    slow: Any, tmp_path: Path, how: signal.Signals
) -> None:
    out = tmp_path / "run"
    hold = tmp_path / "log.hold"
    hold.touch()
    process = start(slow, out, "--workers", "2")
    let_pass(out, 6)
    wait_until(lambda: num_stored(out) >= 4, "what has ended to be stored")
    process.send_signal(how)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL), errors
    assert "Traceback" not in errors
    wait_for_end({pid for _, pid in lines(out, "begun")})
    before = len(played(out))
    assert 4 <= before < 24
    hold.unlink()
    again = start(slow, out, "--workers", "3")
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert len(played(out)) == 24
    # Played again: what was open, and what had ended and was not written yet.
    assert len(lines(out, "begun")) <= 24 + 8


@pytest.mark.slow
def test_an_env_that_ends_its_process_is_given_up_by_name(slow: Any, tmp_path: Path) -> None:
    ref = EngineRef(
        policy="oracle", limits=Limits(), sampling=Sampling(), config=EngineConfig(max_retries=0)
    )
    env = EnvRef(env_id="slow/Deadly-v0", kwargs={"log": str(tmp_path / "log")})

    async def play() -> None:
        async with PlayerPool([WorkerProcess(ref, 0)]) as pool:
            with pytest.raises(InfrastructureError, match=r"task 'test-3' .* what ends them"):
                await pool.play(RolloutRequest(env=env, task_id="test-3"))

    asyncio.run(play())
