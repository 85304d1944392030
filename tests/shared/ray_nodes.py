"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import HANG_S


@pytest.fixture
def start_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Any]]:
    """Starts a head without processors and some nodes with two each; ends them all."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    started: list[Any] = []

    def start(num_nodes: int) -> Any:
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80_000_000}
        head["wait"] = False
        cluster = Cluster(initialize_head=True, head_node_args=head)
        started.append(cluster)
        for _ in range(num_nodes):
            cluster.add_node(wait=False, num_cpus=2, object_store_memory=80_000_000)
            cluster.wait_for_nodes(HANG_S)
        return cluster

    yield start
    for cluster in started:
        cluster.shutdown()
