"""Section [cluster] of a run's file; without it nothing of Ray is imported.

Not here: what Ray is asked for (`ray_cluster.py`, `rollout_actors.py`,
`server_actors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.errors import UsageError

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with the command."""


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

    patience_s: float = 600.0
    """Wall seconds that a model server waits for its first place before the run ends; what it
    waits for is told every 30. One that had a place waits on."""

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise UsageError(
                f"address {self.address!r} is of a Ray client, which no run was tested with: run"
                " the command on a node of the cluster (ray job submit), with address 'auto'"
            )
        if self.address not in ("auto", LOCAL) and not self.address.rpartition(":")[2].isdigit():
            raise UsageError(f"address is HOST:PORT, 'auto' or 'local', got {self.address!r}")
        if self.rollout_workers < 0:
            raise UsageError(f"rollout_workers is >= 0, got {self.rollout_workers!r}")
        if not self.cpus_per_worker >= 0:
            raise UsageError(f"cpus_per_worker is >= 0, got {self.cpus_per_worker!r}")
        if not self.patience_s > 0:
            raise UsageError(f"patience_s is > 0, got {self.patience_s!r}")
