"""`[cluster] trainer_ranks`: a killed rank, a killed node, one that hangs; the run is the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from held_run import hold, let_go
from rl_play import wait_for_steps
from started_ranks import assert_equal, start, wait_for_checkpoints
from test_train_ranks import write_config
from waiting import wait_until

from katgym.cli.main import main

ON_CPUS = "\n[cluster]\naddress = 'local'\ntrainer_ranks = 2\ngpus_per_rank = 0\n"


def start_gang(kind: str, config: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start the command that starts the ranks."""
    return subprocess.Popen(
        [sys.executable, "-m", "katgym", "train", kind, str(config), "--out", str(out), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ranks_of(out: Path, restarts: int, run: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the ranks of a run that were started again so many times, with their processes."""

    def they_are_up() -> list[dict[str, Any]]:
        assert run.poll() is None, run.communicate()[1]
        file = out / "ranks.json"
        told: list[dict[str, Any]] = json.loads(file.read_text())["ranks"] if file.exists() else []
        is_so = all(rank["num_restarts"] == restarts and rank["is_up"] for rank in told)
        return told if is_so else []

    told = wait_until(they_are_up, f"ranks that were started again {restarts} times", limit_s=600)
    for rank in told:
        pid, node = re.findall(r"process (\d+) on node (\w+)", rank["name"])[0]
        rank |= {"pid": int(pid), "node": node}
    return told


def alive(ranks: list[dict[str, Any]]) -> list[int]:
    """Return the processes of ranks that are there."""
    return [rank["pid"] for rank in ranks if Path(f"/proc/{rank['pid']}").exists()]


@pytest.mark.slow  # 40 s: eight Pythons with torch and transformers
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_after_a_killed_rank_and_a_killed_node_a_run_is_bit_for_bit_that_of_torchrun(
    start_cluster: Callable[[int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums have one order
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    config = write_config(tmp_path)
    text = config.read_text().replace("num_steps = 8", "num_steps = 30")
    config.write_text(text.replace("every_steps = 2", "every_steps = 5"))
    undisturbed = start(2, "sft", config, tmp_path / "one")
    _, told = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, told

    cluster, out = start_cluster(3), tmp_path / "gang"
    text = ON_CPUS.replace("local", cluster.address)
    config.write_text(f"{config.read_text()}{text}cpus_per_rank = 2\n{hold(tmp_path, 7, 17)}")
    run = start_gang("sft", config, out, "--json")
    wait_for_steps(out, 7, run)
    os.kill(ranks_of(out, 0, run)[1]["pid"], signal.SIGKILL)
    moved = ranks_of(out, 1, run)
    let_go(tmp_path, 7)
    wait_for_steps(out, 17, run)
    (node,) = [n for n in cluster.worker_nodes if n.node_id.startswith(moved[0]["node"])]
    cluster.remove_node(node, allow_graceful=False)
    let_go(tmp_path, 17)
    printed, told = run.communicate(timeout=600)
    assert run.returncode == 0, told
    # 3: of a rank that still held the run's folder while its node ended.
    assert told.count("all ranks are started again, from step") in (2, 3), told
    found = json.loads(printed)
    assert (found["resumed_from"], found["step"]) == (15, 30)
    assert_equal(out, tmp_path / "one")


@pytest.mark.slow  # 100 s: it is waited for who hangs, and for who knows of it
@pytest.mark.cluster
def test_a_rank_that_hangs_is_started_again_and_none_outlives_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = write_config(tmp_path), tmp_path / "run"
    config.write_text(f"{config.read_text()}{ON_CPUS}[trainer.ranks]\ntimeout_s = 60\n")
    run = start_gang("sft", config, out, "--set", "train.num_steps=100000")
    wait_for_checkpoints(run, out, 1)
    first = ranks_of(out, 0, run)
    os.kill(first[1]["pid"], signal.SIGSTOP)
    again = ranks_of(out, 1, run)
    wait_until(lambda: not alive(first), "the end of the first ranks")
    assert "rank 1" in again[0]["error"] and "does not answer" in again[0]["error"]
    assert main(["cluster", "status", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"rank 1 (process {again[1]['pid']} on node {again[1]['node']}) yes 1" in shown
    run.kill()
    run.communicate()
    wait_until(lambda: not alive(again), "the end of the ranks")


@pytest.mark.slow
@pytest.mark.cluster
def test_who_waits_for_gpus_says_so_and_sigterm_ends_it(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.write_text(config.read_text() + ON_CPUS.replace("gpus_per_rank = 0\n", ""))
    run = start_gang("sft", config, tmp_path / "run")
    assert run.stderr is not None
    line = next(line for line in run.stderr if "wait" in line)
    run.terminate()
    told = " ".join((line + run.communicate(timeout=600)[1]).split())
    assert "2 trainer ranks wait for 1 CPU, 1 GPU each, all at once; the cluster has" in told
    assert run.returncode == 143, told
    assert not (tmp_path / "run").exists()


def test_ranks_of_two_starters_and_of_stages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sft.toml"
    data = "[data]\nrollouts = ['x']\n"
    config.write_text(f"[model]\npath = '{tmp_path}'\n{data}{ON_CPUS}")

    def refused(*more: str) -> str:
        assert main(["train", "sft", str(config), "--out", str(tmp_path / "run"), *more]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "rollout_workers are of katgym train rl" in refused("--set", "cluster.rollout_workers=1")
    more = ("cluster.trainer_ranks=0", "cluster.gpus_per_rank=1")
    told = refused(*(word for each in more for word in ("--set", each)))
    assert "[cluster] changes nothing with trainer_ranks = 0: leave it out" in told
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun started this process, and [cluster] trainer_ranks = 2" in refused()
    stage = ON_CPUS.replace("[cluster]", "[stage.cluster]")
    config.write_text(
        f"[model]\npath = '{tmp_path}'\n[[stage]]\nkind = 'sft'\n"
        f"[stage.data]\nrollouts = ['x']\n{stage}"
    )
    assert main(["train", "rl", str(config), "--out", str(tmp_path / "run")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "[cluster] trainer_ranks are of a run of one stage" in told
