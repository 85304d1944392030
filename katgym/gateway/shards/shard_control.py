"""All shards of a folder: started together, told together, and started again one by one.

What the owner controls is decided here and told to every shard: versions and pauses before a shard
lets a call out, admission before it begins a session. `pause` returns when no shard lets calls out
any more, whatever became of its process; one that starts is told before it takes calls.

Not here: one shard (`shard.py`); HTTP (`front.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from katgym.gateway.config import GatewayConfig
from katgym.gateway.rollout_control import RolloutControl
from katgym.gateway.shards.shard import Shard
from katgym.rollout_store.store_folders import shard_of
from katgym.system.concurrency import run_all
from katgym.system.locks.folder_lease import FolderLease

_MAX_KNOWN = 100_000


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
        self._known: OrderedDict[str, Shard] = OrderedDict()
        """Where sessions are that were asked for last."""

    def shard_for(self, session_id: str, group_id: str = "") -> Shard:
        """Return the shard for a session: that of its group, which has to be whole in a store.

        Where everybody is let in, sessions begin before anybody tells of groups.
        """
        name = group_id if self.config.auth == "keys" and group_id else session_id
        return self.shards[shard_of(name, len(self.shards))]

    async def find(self, session_id: str) -> Shard | None:
        """Return the shard that has a session; None if there is no such session."""
        shard = self._known.get(session_id)
        if shard is None:
            answers = await run_all(s.ask("GET", f"/s/{quote(session_id)}") for s in self.shards)
            found = [s for s, a in zip(self.shards, answers, strict=True) if a.status == 200]
            shard = found[0] if found else None
        if shard is not None:
            self._known[session_id] = shard
            self._known.move_to_end(session_id)
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return shard

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
