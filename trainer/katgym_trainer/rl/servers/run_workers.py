"""The rollout workers of a run on a cluster, and what they are told of its servers.

    async with RunWorkers(pool_of_servers, config, folder).open() as player:
        rollouts = await player.play_group(requests)

Workers hear of new weights before the run begins groups with them, and of servers that sleep, died
or came back within half a second. Not here: placing and restarting workers (`katgym.cluster`), who
plays what (`katgym.play.workers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from katgym.cluster.cluster_file import keep_file
from katgym.cluster.ray_cluster import connected, list_hosts
from katgym.cluster.rollout_actors import RayWorker
from katgym.errors import KatgymError, UsageError
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.play.rollout import Rollout
from katgym.play.workers.player_pool import PlayerPool
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.rl.servers.server_pool import ServerPool
from katgym_trainer.rl.servers.worker_servers import RunEngineRef, ServerState

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RunWorkers:
    """A `GroupPlayer` that plays on a cluster."""

    def __init__(
        self, servers: ServerPool, config: RlConfig, *, folder: Path, engine: RolloutEngine
    ) -> None:
        """folder: the run's, where `cluster.json` says how everybody is doing. engine: this
        process's, which plays where there are no workers.
        """
        assert config.cluster is not None, "there is a section [cluster]"
        self._servers, self._config, self._cluster = servers, config, config.cluster
        self._told: Sequence[ServerState] = ()
        self._telling = asyncio.Lock()
        self._engine_here = engine
        self._file = folder / "cluster.json"
        self._hosts: Sequence[str] = ()
        self.pool: PlayerPool

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[RunWorkers]:
        """Return a context in which the workers play.

        Raises `UsageError` where no cluster answers, or workers could not reach the servers.
        """
        with connected(self._cluster.address):
            self._told = self._servers.states()
            self._hosts = list_hosts()
            ref, num = self._engine(), self._cluster.rollout_workers
            if num:
                _check_reach([state.url for state in self._told], self._hosts)
            self.pool = PlayerPool([RayWorker(ref, n, self._cluster) for n in range(num)])
            address, hosts = self._cluster.address, self._hosts
            async with (
                self.pool,
                keep_file(self._file, self._describe, address=address, hosts=hosts),
            ):
                self._servers.followers.append(self.tell)
                looking = asyncio.create_task(self._look())
                try:
                    yield self
                finally:
                    self._servers.followers.remove(self.tell)
                    looking.cancel()
                    await asyncio.gather(looking, return_exceptions=True)

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Have a worker play requests, and another one where that one ends."""
        player = self.pool if self._cluster.rollout_workers else self._engine_here
        return await player.play_group(requests)

    async def tell(self) -> None:
        """Tell the workers of the servers as they are, if that is news; returns when they know."""
        async with self._telling:
            states = self._servers.states()
            if states == self._told:
                return
            before, self._told = self._told, states
            try:
                await self.pool.renew(self._engine())
            except KatgymError as e:  # a server ended meanwhile; it is told of again
                logger.warning("a rollout worker cannot take note of the servers: %s", e)
                self._told = before

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.tell()

    def _describe(self, _: bool) -> dict[str, Any]:
        """Return what `katgym cluster status` shows of workers and servers."""
        names = ("url", "place", "is_up", "is_open", "version", "num_restarts", "error", "end")
        servers = self._servers.states()
        return {
            "workers": [state.to_json() for state in self.pool.states],
            "servers": [{name: getattr(state, name) for name in names} for state in servers],
        }

    def _engine(self) -> RunEngineRef:
        rollouts, num = self._config.rollouts, self._cluster.rollout_workers
        return RunEngineRef(
            policy=self._config.policy.uri,
            limits=rollouts.limits,
            sampling=self._config.policy.sampling,
            config=EngineConfig(
                max_concurrency=-(-rollouts.max_concurrency // max(1, num)),
                max_retries=rollouts.max_retries,
            ),
            servers=tuple(self._told),
        )


def _check_reach(urls: Sequence[str], hosts: Sequence[str]) -> None:
    """Raise `UsageError` for servers that only their own machine can ask."""
    for url in urls:
        if len(hosts) > 1 and urlsplit(url).hostname in _LOOPBACK:
            raise UsageError(
                f"the server at {url} is reached from its own machine alone, and the cluster has"
                f" {len(hosts)} ({', '.join(hosts[:4])}): start it with katgym vllm serve --host"
                " ADDRESS and give its url in [[policy.servers]], or have Ray start it (gpus = 1)"
            )
