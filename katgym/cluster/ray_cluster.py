"""The connection to a Ray cluster.

Not here: what is placed there (`rollout_actors.py`, `server_actors.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from katgym.cluster.cluster_config import LOCAL
from katgym.errors import MissingDependencyError, UsageError

try:
    import ray as ray  # for the other modules here, too
except ImportError as e:
    raise MissingDependencyError(
        f"a cluster needs {e.name!r}. Install: pip install 'katgym[cluster]'"
    ) from e

_REACH_S = 10.0
"""Within this time a head answers."""


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, or start one; one that it has joined before stays joined.

    Raises `UsageError` where none answers.
    """
    if ray.is_initialized():
        yield
        return
    told: dict[str, Any] = {"address": address}
    if address == LOCAL:
        # Workers see what this process sees; nodes elsewhere have what is installed there.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        told |= {
            "include_dashboard": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": path}},
        }
    try:
        if address not in ("auto", LOCAL):  # Ray itself waits for minutes, and ends the process
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_REACH_S).close()
        ray.init(**told, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as e:
        raise UsageError(
            f"no Ray cluster answers at {address!r}: {e}. Start one (ray start --head), name"
            " another, or take 'local', which starts one on this machine"
        ) from e
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints there which nodes have died
            yield
    finally:
        ray.shutdown()


def node_address() -> str:
    """Return the address at which others of the cluster reach this machine."""
    found: str = ray.util.get_node_ip_address()
    return found


def list_hosts() -> list[str]:
    """Return the addresses of the nodes that are up."""
    return sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
