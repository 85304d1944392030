"""The way of a command to a cluster, if it was asked to run on one; only then is Ray imported.

Not here: the connection (`ray_cluster.py`), what the section says (`cluster_config.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from katgym.cluster.cluster_config import ClusterConfig


@contextlib.contextmanager
def joined(cluster: ClusterConfig | None) -> Iterator[None]:
    """Have this process join a cluster, if there is one; raises as `ray_cluster.connected`."""
    if cluster is None:
        yield
        return
    from katgym.cluster.ray_cluster import connected  # it imports Ray

    with connected(cluster.address):
        yield
