"""Two Ray nodes play four rollouts; ranks on two machines meet."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from pretended_hosts import pretended_hosts

from katgym.cluster.cluster_config import ClusterConfig
from katgym.cluster.ray_cluster import connected
from katgym.cluster.rollout_actors import RayWorker
from katgym.play.engine import EngineConfig, RolloutRequest
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout
from katgym.play.workers.player_pool import PlayerPool
from katgym.play.workers.worker_calls import EngineRef
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Sampling

# Ray leaves sockets and processes to the interpreter's end.
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore")]


def test_two_nodes_play_two_rollouts_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):  # one processor each: a node has room for one worker
            cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        groups, workers = asyncio.run(play_two_groups(cluster.address))
    finally:
        cluster.shutdown()
    assert [[r.reward.value for r in group] for group in groups] == [[1.0, 1.0], [1.0, 1.0]]
    assert [worker["num_calls"] for worker in workers] == [1, 1]
    nodes = {worker["name"].partition(" on node ")[2] for worker in workers}
    assert len(nodes) == 2 and "" not in nodes, workers


async def play_two_groups(address: str) -> tuple[list[list[Rollout]], list[dict[str, Any]]]:
    """Play two groups of two at the same time; return them, and what the workers did."""
    config = ClusterConfig(address=address, rollout_workers=2)
    engine = EngineRef(policy="oracle", limits=Limits(), sampling=Sampling(), config=EngineConfig())
    env = EnvRef(env_id="katgym/Arithmetic-v1", kwargs={"level": 1})
    with connected(address):
        async with PlayerPool([RayWorker(engine, n, config) for n in range(2)]) as pool:
            groups = await asyncio.gather(
                *(
                    pool.play_group(
                        [RolloutRequest(env=env, seed=seed, attempt=n) for n in range(2)]
                    )
                    for seed in range(2)
                )
            )
            return list(groups), [state.to_json() for state in pool.states]


JOIN = """
from katgym_trainer.ranks.ranks import Ranks
with Ranks.join() as ranks:
    print(ranks.gather(ranks.number))
"""


def test_ranks_on_two_machines_meet_whose_names_are_their_own_loopback() -> None:
    with pretended_hosts(2) as hosts:
        runs = []
        for rank, address in enumerate(hosts.addresses):
            hosts.write_names(rank, f"127.0.1.1 node{rank + 1}")  # as Debian writes it
            env = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
            env |= {"RANK": str(rank), "LOCAL_RANK": "0", "KATGYM_NODE_ADDRESS": address}
            runs.append(hosts.start(rank, sys.executable, "-c", JOIN, env=env))
        told = [run.communicate() for run in runs]
    assert [out for out, _ in told] == ["[0, 1]\n"] * 2, told
