"""Workers: processor time of the driver for each rollout, and groups that random kills cost.

    python benchmarks/workers.py cpu        # 8 rollouts a group, process and Ray workers
    python benchmarks/workers.py kills      # kill -9 of workers and nodes until there were 100

Both append rows to workers.csv. `kills` plays groups of 8 on a Ray cluster of three nodes on this
machine, as many lanes as workers; every 2 to 4 s a worker, or a node with its worker, is killed,
and a node is added in its place. A group takes 0.6 s, half of it after it was played: kills hit
groups that play, and some that were finished and not answered. A group is counted by its number:
lost, answered twice, played again. Not here: kills in a run that trains
(`trainer/benchmarks/cluster/kills.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import katgym
from katgym.cluster.cluster_config import ClusterConfig
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.play.workers.player_pool import PlayerPool, Worker
from katgym.play.workers.worker_calls import EngineRef
from katgym.play.workers.worker_process import WorkerProcess
from katgym.policies.base import Sampling

ENV = "katgym/TreasureHunt-v1"
CSV = Path(__file__).with_suffix(".csv")
COLUMNS = ("what", "workers", "group_size", "groups", "driver_cpu_ms_a_rollout", "rollouts_a_s",
           "kills", "node_kills", "groups_lost", "groups_doubled", "groups_played_again",
           "most_again_a_killed_worker", "wall_s", "load", "commit")  # fmt: skip
MEMORY = 80_000_000


class SlowEngine(RolloutEngine):
    """Takes its time before it plays a group, and before it answers."""

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        await asyncio.sleep(0.3)
        rollouts = await super().play_group(requests)
        await asyncio.sleep(0.3)
        return rollouts


class SlowRef(EngineRef):
    """Makes a slow engine."""

    def make(self) -> RolloutEngine:
        return SlowEngine(super().make().policy)


def write_row(**row: Any) -> None:
    """Append a row, and print it."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    row |= {"load": round(os.getloadavg()[0], 1), "commit": commit}
    is_new = not CSV.exists()
    with CSV.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: row.get(name, "") for name in COLUMNS})
    print(row, flush=True)


def requests(env: katgym.Env, number: int) -> list[RolloutRequest]:
    """Return a group of 8."""
    return [RolloutRequest(env=env, seed=number, attempt=attempt) for attempt in range(8)]


@contextlib.asynccontextmanager
async def open_player(
    kind: str, num_workers: int, address: str, ref_of: type[EngineRef] = EngineRef
) -> AsyncIterator[Any]:
    """Return who plays: this process, processes or actors."""
    ref = ref_of(policy="oracle", limits=Limits(), sampling=Sampling(), config=EngineConfig())
    if kind == "here":
        yield RolloutEngine(katgym.policy("oracle"), config=EngineConfig())
        return
    with contextlib.ExitStack() as opened:
        workers: list[Worker] = [WorkerProcess(ref, n) for n in range(num_workers)]
        if kind == "ray":
            from katgym.cluster.ray_cluster import connected
            from katgym.cluster.rollout_actors import RayWorker

            config = ClusterConfig(address=address, rollout_workers=num_workers)
            opened.enter_context(connected(address))
            workers = [RayWorker(ref, n, config) for n in range(num_workers)]
        async with PlayerPool(workers) as pool:
            yield pool


async def measure_cpu(kind: str, num_workers: int, num_groups: int) -> None:
    """Play groups in four lanes a worker, and write what the driver's processor did."""
    env = katgym.make(ENV, level=2)
    async with open_player(kind, num_workers, "local") as player:
        await asyncio.gather(*(player.play_group(requests(env, n)) for n in range(8)))  # warm
        numbers = iter(range(num_groups))

        async def lane() -> None:
            for number in numbers:
                await player.play_group(requests(env, number))

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(lane() for _ in range(4 * max(1, num_workers))))
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    write_row(
        what=f"cpu {kind}", workers=num_workers, group_size=8, groups=num_groups,
        driver_cpu_ms_a_rollout=round(cpu_s / num_groups / 8 * 1e3, 3),
        rollouts_a_s=round(8 * num_groups / wall_s), wall_s=round(wall_s, 1),
    )  # fmt: skip


class Cluster:
    """A Ray cluster on this machine, and what may be killed of it."""

    def __init__(self, seed: int) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        self.ray = RayCluster(initialize_head=True, head_node_args=head)
        self.rng = random.Random(seed)
        for _ in range(3):
            self.add_node()

    def add_node(self) -> None:
        """Add a node with room for one worker."""
        self.ray.add_node(num_cpus=1, object_store_memory=MEMORY)

    async def kill_node(self) -> None:
        """Kill a node and all that runs there, and add another."""
        nodes = sorted(self.ray.worker_nodes, key=lambda node: node.node_id)
        victim = self.rng.choice(nodes)
        await asyncio.to_thread(self.ray.remove_node, victim, allow_graceful=False)
        self.add_node()


async def measure_kills(num_kills: int, seed: int) -> None:
    """Play groups until so many kills have been survived."""
    cluster = Cluster(seed)
    env, began = katgym.make(ENV, level=2), time.perf_counter()
    answered: Counter[int] = Counter()
    asked = kills = node_kills = again = most = 0
    is_over = False
    from workers import SlowRef as Slow  # by a name that workers find, too

    async with open_player("ray", 3, cluster.ray.address, Slow) as pool:

        async def lane() -> None:
            nonlocal asked
            while not is_over:
                number, asked = asked, asked + 1
                rollouts = await pool.play_group(requests(env, number))
                assert [(r.seed, r.attempt) for r in rollouts] == [(number, a) for a in range(8)]
                answered[number] += 1

        lanes = [asyncio.create_task(lane()) for _ in range(3)]
        while kills < num_kills:
            await asyncio.sleep(cluster.rng.uniform(2, 4))
            up = [state for state in pool.states if state.is_up and "process" in state.worker.name]
            if not up:
                continue
            before = sum(state.num_running for state in pool.states) // 8
            if cluster.rng.random() < 0.2:
                await cluster.kill_node()
                node_kills += 1
            else:
                state = cluster.rng.choice(up)
                held = state.num_running // 8
                pid = int(state.worker.name.split("process ")[1].split()[0])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                again, most = again + held, max(most, held)
            kills += 1
            print(f"{kills} kills, {sum(answered.values())} groups, {before} open", flush=True)
        is_over = True
        await asyncio.wait_for(asyncio.gather(*lanes), 120)
    write_row(
        what="kills", workers=3, group_size=8, groups=asked, kills=kills, node_kills=node_kills,
        groups_lost=sum(answered[n] == 0 for n in range(asked)),
        groups_doubled=sum(num > 1 for num in answered.values()), groups_played_again=again,
        most_again_a_killed_worker=most, wall_s=round(time.perf_counter() - began, 1),
    )  # fmt: skip
    cluster.ray.shutdown()


def main() -> None:
    """Measure what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cpu", "kills"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if args.what == "kills":
        asyncio.run(measure_kills(args.kills, args.seed))
        return
    for kind, num_workers in (("here", 0), ("processes", 1), ("processes", 2), ("ray", 1),
                              ("ray", 2)):  # fmt: skip
        asyncio.run(measure_cpu(kind, num_workers, 300))


if __name__ == "__main__":
    main()
