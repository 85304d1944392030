"""The connection to a Ray cluster, and waiting for places there.

Not here: what is placed there (`rollout_actors.py`, `server_actors.py`, `rank_gang.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from katgym.cluster.cluster_config import JOINED, LOCAL
from katgym.errors import InfrastructureError, MissingDependencyError, UsageError

try:
    import ray as ray  # for the other modules here, too
    import ray.util.scheduling_strategies
except ImportError as e:
    raise MissingDependencyError(
        f"a cluster needs {e.name!r}. Install: pip install 'katgym[cluster]'"
    ) from e

logger = logging.getLogger(__name__)

T = TypeVar("T")
_REACH_S = 10.0
"""Within this time a head answers."""
_LOOK_S = 30.0
"""Between two times that somebody says who waits for a place."""


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster, or start one; one that it has joined before stays joined.

    Raises `UsageError` where none answers.
    """
    if ray.is_initialized():
        yield
        return
    address = os.environ.get(JOINED, address)
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
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
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


async def place(
    placing: Coroutine[Any, Any, T],
    asked: str,
    *,
    first_s: float = 30.0,
    patience_s: float = math.inf,
) -> T:
    """Return what is placed; say every half a minute who waits for what, and what there is.

    asked: as in "rollout worker 1 waits for 1 CPU". first_s: after which it is said first. Raises
    `InfrastructureError` after `patience_s`.
    """
    task, until, look_s = asyncio.create_task(placing), time.monotonic() + patience_s, first_s
    try:
        while not (
            await asyncio.wait([task], timeout=min(look_s, max(0.0, until - time.monotonic())))
        )[0]:
            free, look_s = ray.available_resources(), _LOOK_S
            there = ", ".join(
                f"{num:g} {kind} ({free.get(kind, 0):g} free)"
                for kind, num in sorted({"GPU": 0.0, **ray.cluster_resources()}.items())
                if kind in ("CPU", "GPU")
            )
            if time.monotonic() >= until:
                raise InfrastructureError(
                    f"{asked}; the cluster has {there}, and no place was found within"
                    f" {patience_s:g} s: ask for less, add nodes, or raise [cluster] patience_s"
                )
            logger.warning("%s; the cluster has %s", asked, there)
        return await task
    finally:
        task.cancel()
