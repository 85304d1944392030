"""Section [cluster] of a run's file; without it nothing of Ray is imported.

Not here: what Ray is asked for (`ray_cluster.py`, `rollout_actors.py`, `server_actors.py`,
`rank_gang.py`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from katgym.errors import UsageError

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with the command."""


JOINED = "KATGYM_CLUSTER"
"""Variable of processes that were placed on a cluster: its address, in place of their file's."""

NODE_ADDRESS = "KATGYM_NODE_ADDRESS"
"""Variable of trainer ranks that were placed on a cluster: their node's address there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Which cluster, and what is placed there.

    Example:
        ClusterConfig(address="auto", rollout_workers=8)
    """

    address: str = "auto"
    """HOST:PORT of the cluster's head; auto: the cluster that this machine is a node of; local:
    one that is started here."""
    rollout_workers: int = 0
    """Processes that play; 0: the run's own."""
    cpus_per_worker: float = 1.0
    """Processors that a worker is given room for; how many it uses is its own."""
    trainer_ranks: int = 0
    """Processes that train one model together, placed and started again as one gang; 0: the
    command's own, or those that torchrun started."""
    gpus_per_rank: int = 1
    """1, or 0 where ranks train on processors."""
    cpus_per_rank: float = 1.0
    """Processors that a rank is given room for; OMP_NUM_THREADS says how many it uses."""
    max_rank_restarts: int = 3
    """Times in a row that a gang is started again without a new checkpoint; then the run ends."""
    patience_s: float = 600.0
    """Wall seconds that ranks, and each model server, wait for their first place before the run
    ends; what they wait for is told every 30. Who had a place waits on."""

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise UsageError(
                f"address {self.address!r} is of a Ray client, which no run was tested with: run"
                " the command on a node of the cluster (ray job submit), with address 'auto'"
            )
        if self.address not in ("auto", LOCAL) and not self.address.rpartition(":")[2].isdigit():
            raise UsageError(f"address is HOST:PORT, 'auto' or 'local', got {self.address!r}")
        for name in (
            "rollout_workers", "cpus_per_worker", "trainer_ranks", "cpus_per_rank",
            "max_rank_restarts",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is >= 0, got {getattr(self, name)!r}")
        if self.gpus_per_rank not in (0, 1):
            raise UsageError(
                f"gpus_per_rank is 1, or 0 for ranks on processors, got {self.gpus_per_rank!r}:"
                " more GPUs are more trainer_ranks"
            )
        if not self.patience_s > 0:
            raise UsageError(f"patience_s is > 0, got {self.patience_s!r}")
        if not self.trainer_ranks:
            for name, default in _OF_RANKS.items():
                if getattr(self, name) != default:
                    raise UsageError(f"{name} changes nothing with trainer_ranks = 0")


_OF_RANKS = {"gpus_per_rank": 1, "cpus_per_rank": 1.0, "max_rank_restarts": 3}
"""Keys that are of trainer ranks alone, and their defaults."""


def is_placed() -> bool:
    """Return whether this process is one that was placed on a cluster."""
    return JOINED in os.environ
