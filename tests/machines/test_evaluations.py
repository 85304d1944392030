"""`katgym eval` on three machines, whose cables are cut and mended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import CONDITIONS, LOST_HEAD, Command, Machines

from katgym.evaluation.store import read_rollouts

pytestmark = [pytest.mark.machines]
NUM_TASKS = 120
NUM_FREE = 40
"""Tasks that end while others are held."""


def start_eval(
    machines: Machines, env: str, *words: str, host: int = 0, **env_vars: str
) -> Command:
    """Start an evaluation, half of which stands still while there is a file `hold`."""
    folder = machines.folder
    env += f"{'&' if '?' in env else '?'}folder={folder}&num_free={NUM_FREE}"
    told = ["--policy", "oracle", "--split", "test", "--tasks", str(NUM_TASKS)]
    told += ["--concurrency", "12", "--out", str(folder / "run")]
    return machines.katgym(host, "eval", env, *told, *words, **env_vars)


def start_workers(machines: Machines, *, host: int = 0, num: int = 3) -> Command:
    """Start one with a worker on each machine that has room."""
    words = ["--workers", str(num), "--set", "cluster=auto"]
    return start_eval(machines, "paced/Paced-v0", *words, host=host)


def check_rewards(machines: Machines) -> None:
    """Every planned rollout is there, once, and well."""
    run = machines.folder / "run"
    found = read_rollouts(run)
    assert len({r.task_id for r in found}) == len(found) == NUM_TASKS
    assert all(rollout.reward.value == 1.0 for rollout in found)


def check_kept(machines: Machines) -> None:
    """And what is there is proven."""
    check_rewards(machines)
    said = machines.katgym(0, "verify", machines.folder / "run").end()
    assert "verified (rewards; policy)" in said and "not looked at" not in said


def told(run: Path) -> dict[str, Any]:
    path = run / "cluster.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def num_up(run: Path) -> int:
    """Return how many workers play."""
    return sum(worker["is_up"] for worker in told(run).get("workers", []))


def hold(machines: Machines, *, cpus_of_head: int = 1) -> Callable[[], None]:
    """Start Ray; have the run stand still in its middle; return what lets it go on."""
    machines.write_plugin()
    for host in range(3):
        machines.start_ray(host, 1 if host else cpus_of_head)
    file = machines.folder / "hold"
    file.touch()
    return file.unlink


@pytest.mark.parametrize("condition", CONDITIONS)
def test_workers_on_three_machines_play_all(machines: Machines, condition: str) -> None:
    machines.set_condition(condition)
    go_on = hold(machines)
    run, folder = start_workers(machines), machines.folder / "run"
    run.until(lambda: num_up(folder) == 3, "three workers")
    assert "cluster auto (198.51.100.1, " in machines.katgym(0, "cluster", "status", folder).end()
    go_on()
    run.end()
    assert len(list(machines.folder.glob("begun-node*"))) == 3
    assert sum(worker["num_calls"] for worker in told(folder)["workers"]) == NUM_TASKS
    assert set(machines.begun().values()) == {1}
    check_kept(machines)


def test_a_worker_whose_machine_is_cut_off_and_comes_back(machines: Machines) -> None:
    go_on = hold(machines)
    run, folder = start_workers(machines), machines.folder / "run"
    run.until(lambda: len(machines.begun()) >= NUM_FREE, "tasks to begin")
    machines.hosts.cut(2)
    run.until(lambda: num_up(folder) == 2, "a worker to be lost")
    machines.hosts.mend(2)
    machines.end_ray(2)
    machines.start_ray(2)
    run.until(lambda: num_up(folder) == 3, "it to come back")
    go_on()
    assert "what it played is played again" in run.end()
    check_kept(machines)


def test_a_cable_that_is_out_for_a_moment_costs_nothing(machines: Machines) -> None:
    go_on = hold(machines)
    run = start_workers(machines)
    run.until(lambda: len(machines.begun()) >= NUM_FREE, "tasks to begin")
    machines.hosts.cut(2)
    time.sleep(8)  # whether Ray notices decides nothing: it is counted what is there
    machines.hosts.mend(2)
    go_on()
    run.end()
    check_kept(machines)


def test_a_head_that_is_cut_off_goes_on_when_others_are_back(machines: Machines) -> None:
    """The command runs on the head's machine."""
    go_on = hold(machines)
    run, folder = start_workers(machines), machines.folder / "run"
    run.until(lambda: len(machines.begun()) >= NUM_FREE, "tasks to begin")
    machines.hosts.cut(0)
    run.until(lambda: num_up(folder) == 1, "two workers to be lost")
    machines.hosts.mend(0)
    for host in (1, 2):
        machines.end_ray(host)
        machines.start_ray(host)
    run.until(lambda: num_up(folder) == 3, "them to come back")
    go_on()
    run.end()
    check_kept(machines)


def test_workers_play_to_their_end_without_a_head(machines: Machines) -> None:
    go_on = hold(machines, cpus_of_head=0)
    run = start_workers(machines, host=1, num=2)
    run.until(lambda: len(machines.begun()) >= NUM_FREE, "tasks to begin")
    machines.hosts.cut(0)
    go_on()
    run.end()
    check_kept(machines)


def test_a_command_whose_head_is_cut_off_ends_and_goes_on_with_another_cluster(
    machines: Machines,
) -> None:
    """The command runs on another machine than the head."""
    go_on = hold(machines)
    run = start_workers(machines, host=1)
    run.until(lambda: len(machines.begun()) >= NUM_FREE, "tasks to begin")
    machines.hosts.cut(0)
    assert LOST_HEAD in run.end(code=1)
    go_on()
    for host in (1, 2):
        machines.end_ray(host)
        machines.start_ray(host, 2, head=1)
    start_workers(machines, host=1).end()
    check_kept(machines)
