"""Groups on a cluster of several nodes: each comes back once, whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until_async

from katgym.cli.main import main
from katgym.cluster.cluster_config import ClusterConfig
from katgym.errors import PolicyError
from katgym.evaluation.store import read_rollouts
from katgym.play.engine import EngineConfig, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.workers.player_pool import PlayerPool
from katgym.play.workers.worker_calls import EngineRef
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

Start = Callable[[int], Any]


@contextlib.asynccontextmanager
async def pool_on(cluster: Any, num_workers: int, policy: str = "oracle") -> AsyncIterator[Any]:
    from katgym.cluster.ray_cluster import connected
    from katgym.cluster.rollout_actors import RayWorker

    config = ClusterConfig(address=cluster.address, rollout_workers=num_workers)
    ref = EngineRef(
        policy=policy, limits=Limits(), sampling=Sampling(), config=EngineConfig(max_retries=0)
    )
    with connected(config.address):
        async with PlayerPool([RayWorker(ref, n, config) for n in range(num_workers)]) as pool:
            yield pool


def group(log: Path, number: int, name: str = "Slow", size: int = 4) -> list[RolloutRequest]:
    env = EnvRef(env_id=f"dying/{name}-v0", kwargs={"log": str(log)})
    return [
        RolloutRequest(env=env, seed=number, task_id=f"t{number}", attempt=attempt)
        for attempt in range(size)
    ]


def begun(log: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in log.read_text().splitlines())


def pids(log: Path) -> list[int]:
    return [int(line.split()[1]) for line in log.read_text().splitlines()]


async def play_lanes(pool: PlayerPool, log: Path, numbers: range, lanes: int) -> list[list[Any]]:
    """Play groups, some at a time, and return them in order."""
    waiting, found = iter(numbers), {}

    async def lane() -> None:
        for number in waiting:
            assert number not in found
            found[number] = await pool.play_group(group(log, number))

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return [found[number] for number in numbers]


def check_groups(found: list[list[Any]]) -> None:
    for number, rollouts in enumerate(found):
        assert [(r.task_id, r.attempt) for r in rollouts] == [(f"t{number}", a) for a in range(4)]
        assert [r.reward.value for r in rollouts] == [1.0] * 4


def test_a_node_that_is_killed_in_mid_run_loses_no_group(
    start_cluster: Start, dying: Any, tmp_path: Path
) -> None:
    log, hold, cluster = tmp_path / "log", tmp_path / "log.hold", start_cluster(2)
    log.touch()
    hold.touch()
    victim = sorted(cluster.worker_nodes, key=lambda node: node.node_id)[0]

    async def play() -> tuple[list[list[Any]], list[dict[str, Any]]]:
        async with asyncio.timeout(900), pool_on(cluster, 4) as pool:
            playing = asyncio.create_task(play_lanes(pool, log, range(120), 8))
            await wait_until_async(lambda: len(begun(log)) >= 30, "30 groups to begin")
            await asyncio.to_thread(cluster.remove_node, victim, allow_graceful=False)
            await wait_until_async(
                lambda: not all(state.is_up for state in pool.states), "a worker to be lost"
            )
            hold.unlink()
            cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
            found = await playing
            return found, [state.to_json() for state in pool.states]

    found, states = asyncio.run(play())
    check_groups(found)
    again = {task: num // 4 for task, num in begun(log).items() if num > 4}
    assert len(again) <= 8  # at most what the node's two workers played
    assert sum(state["num_calls"] for state in states) == 120


def test_a_worker_that_dies_between_finishing_and_answering_plays_once_more(
    start_cluster: Start, dying: Any, tmp_path: Path
) -> None:
    log, cluster = tmp_path / "log", start_cluster(1)

    async def play() -> tuple[list[Any], list[int]]:
        async with asyncio.timeout(900), pool_on(cluster, 1) as pool:
            found = await pool.play_group(group(log, 7, "Unsent", 1))
            return found, [state.num_restarts for state in pool.states]

    (rollout,), restarts = asyncio.run(play())
    assert (rollout.task_id, rollout.reward.value) == ("t7", 1.0)
    assert (begun(log), restarts) == (Counter(t7=2), [1])
    assert len(set(pids(log))) == 2


def test_killed_workers_cost_at_most_the_groups_that_they_played(
    start_cluster: Start, dying: Any, tmp_path: Path
) -> None:
    log, hold, cluster = tmp_path / "log", tmp_path / "log.hold", start_cluster(1)
    log.touch()
    hold.touch()

    async def play() -> tuple[list[list[Any]], int]:
        killed: set[int] = set()

        def find_alive() -> int:
            return next((pid for pid in reversed(pids(log)) if pid not in killed), 0)

        async with asyncio.timeout(900), pool_on(cluster, 2) as pool:
            playing = asyncio.create_task(play_lanes(pool, log, range(60), 2))
            while len(killed) < 5:
                pid = await wait_until_async(find_alive, "a worker to play")
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            hold.unlink()
            return await playing, len(killed)

    found, num_killed = asyncio.run(play())
    check_groups(found)
    # Two lanes on two workers: each kill loses one group at most, of four rollouts.
    assert num_killed == 5
    assert sum(begun(log).values()) - 240 <= 4 * num_killed


def test_an_evaluation_on_a_cluster_plays_what_one_process_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--policy", "random", "--tasks", "12", "--group-size", "2", "--seed", "3"]
    command = ["eval", "katgym/TreasureHunt-v1?level=2", *options]
    assert main([*command, "--out", str(tmp_path / "0")]) == 0
    placed = ["--workers", "2", "--set", "cluster=local", "--out", str(tmp_path / "2")]
    assert main([*command, *placed]) == 0
    alone, there = (
        {(r.task_id, r.attempt): (r.messages, r.reward, r.seed) for r in read_rollouts(folder)}
        for folder in (tmp_path / "0", tmp_path / "2")
    )
    assert len(alone) == 24 and there == alone

    # Who has played is shown of the run on a cluster alone, also after it goes on without one.
    capsys.readouterr()
    file = tmp_path / "2/cluster.json"
    assert main(["cluster", "status", str(file.parent)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("cluster local (") and "the run has ended" in shown
    row = r"rollout worker (\d) \(process \d+ on node \w+\) yes 0 (\d+) 0"
    num_played = {int(number): int(num) for number, num in re.findall(row, shown)}
    assert set(num_played) == {0, 1} and sum(num_played.values()) == 24
    assert not (tmp_path / "0/cluster.json").exists()
    assert main(["cluster", "status", str(tmp_path / "0")]) == 2
    assert "no --set cluster=ADDRESS" in " ".join(capsys.readouterr().err.split())
    written = file.read_bytes()
    assert main([*command, "--out", str(file.parent)]) == 0
    assert file.read_bytes() == written


def test_what_cannot_work_is_refused_with_what_to_do(
    start_cluster: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "katgym/TreasureHunt-v1", "--policy", "oracle", "--out", str(tmp_path / "r")]
    assert main([*command, "--set", "cluster=auto"]) == 2
    assert "needs a number of workers" in capsys.readouterr().err
    assert main([*command, "--set", "cluster=127.0.0.1:9", "--workers", "1"]) == 2
    assert "no Ray cluster answers at '127.0.0.1:9'" in " ".join(capsys.readouterr().err.split())

    async def play() -> None:
        uri = "vllm:http://127.0.0.1:9#tiny?max_retries=0"
        async with asyncio.timeout(900), pool_on(start_cluster(1), 1, policy=uri):
            pass

    with pytest.raises(PolicyError):
        asyncio.run(play())
