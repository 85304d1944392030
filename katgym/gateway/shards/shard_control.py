"""All shards of a folder: started together, told together, and started again one by one.

What the owner controls is decided here and told to every shard: versions and pauses before a shard
lets a call out, admission before it begins a session. `pause` returns when no shard lets calls out
any more, whatever became of its process; one that starts is told before it takes calls.

Not here: one shard (`shard.py`); HTTP (`front.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from katgym.gateway.config import GatewayConfig
from katgym.gateway.rollout_control import RolloutControl
from katgym.gateway.shards.shard import Shard
from katgym.rollout_store.store_folders import shard_of
from katgym.system.concurrency import run_all
from katgym.system.folder_lease import FolderLease


class ShardControl(RolloutControl):
    """The rollout control of several gateways."""

    def __init__(
        self,
        config: GatewayConfig,
        folder: Path,
        shards: Sequence[Shard],
        *,
        lease: FolderLease,
    ) -> None:
        """Read what is kept in the folder, which the lease holds; `UsageError` if it cannot be."""
        super().__init__(folder)
        self.config = config
        self.shards = shards
        self.is_open = False
        """Whether all shards have been up, and the gateway is not stopping."""
        self._lease = lease
        self._beating: asyncio.Task[None] | None = None
        self._telling = asyncio.Lock()

    def shard_of(self, session_id: str) -> Shard:
        """Return the shard of a session."""
        return self.shards[shard_of(session_id, len(self.shards))]

    async def open(self) -> None:
        """Start all shards; raises why one does not start."""
        self._beating = asyncio.create_task(self._lease.keep())
        starts = await run_all(shard.start() for shard in self.shards)
        for shard, start in zip(self.shards, starts, strict=True):
            shard.num_begun = start.num_begun
        newest = max(starts, key=lambda start: start.version)
        self.begin(
            self.config,
            self._lease.clock.now_s,
            num_counted=sum(start.num_begun for start in starts),
            version=newest.version,
            model=newest.model,
        )
        for shard in self.shards:
            shard.watch(self._revive)
        async with self._telling:
            await self._tell_all()
        self.is_open = True

    def stop(self) -> None:
        """Say that no calls are taken any more."""
        self.is_open = False

    async def aclose(self) -> None:
        """End all shards."""
        self.stop()
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.gather(*(shard.aclose() for shard in self.shards))

    async def pause(self) -> None:
        async with self._telling:
            await super().pause()
            await self._tell_all()

    async def resume(self, version: int | None = None, model: str = "") -> None:
        async with self._telling:
            await super().resume(version, model)
            await self._tell_all()

    async def _tell_all(self) -> None:
        await run_all(self._tell(shard) for shard in self.shards)

    async def _tell(self, shard: Shard) -> None:
        state = self.manager.state
        await shard.tell(version=state.version, model=state.model, is_paused=state.is_paused)

    async def _revive(self, shard: Shard) -> None:
        """Start a shard again, and tell it what the others know."""
        start = await shard.start(is_paused=self.manager.state.is_paused)
        # Sessions whose making nobody was told of count from here on as they are in the store.
        self.manager.replace(shard.num_begun - start.num_begun)
        shard.num_begun = start.num_begun
        async with self._telling:
            await self._tell(shard)
