"""Readiness: whether this gateway takes calls, and why not.

A call whose answer could not be written down is refused before it is sampled: when the disk has
less room than the calls that are out may take, and from a write that failed until one succeeds.

Not here: whether the process lives (`GET /health`); model servers (`upstreams/`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from pathlib import Path

from katgym.errors import KatgymError
from katgym.gateway.admission import RolloutManager
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.pool import UpstreamPool
from katgym.rollout_store.group_commit import GroupCommit

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = 1 << 20
"""Of the store's disk, beside what the calls that are out may take."""
_MIN_RECORD_BYTES = 64 << 10
_PROBE_S = 1.0
_LONG_S = 5.0
"""Seconds that a transaction takes until the gateway says that it is not ready."""


class Readiness:
    """Knows what keeps a gateway from taking calls.

    Example:
        readiness.check_store()  # raises STORE while nothing can be written down
        readiness.reasons()  # ["no model server is healthy"]
    """

    def __init__(
        self, folder: Path, writer: GroupCommit, manager: RolloutManager, pool: UpstreamPool
    ) -> None:
        self.is_open = False
        """Whether the model servers were reached once, and the gateway is not stopping."""
        self._folder = folder
        self._writer = writer
        self._manager = manager
        self._pool = pool

    def check_store(self) -> None:
        """Raise `STORE` while an answer could not be written down."""
        reason = self._store_reason()
        if reason:
            raise GatewayError(
                ErrorKind.STORE, f"calls are refused before they are sampled: {reason}"
            )

    def reasons(self) -> list[str]:
        """Return why no calls are taken; nothing if they are."""
        found = [self._store_reason()]
        if self._writer.busy_s > _LONG_S:
            found.append(f"the store has not been written for {self._writer.busy_s:.0f} s")
        if not any(upstream.is_healthy for upstream in self._pool.upstreams):
            found.append("no model server is healthy")
        if self._manager.state.is_paused:
            found.append("paused: weights move")
        if not self.is_open:
            found.append("starting or stopping")
        return [reason for reason in found if reason]

    async def watch_store(self) -> None:
        """Try again and again to write to a store that could not be written."""
        while True:
            await asyncio.sleep(_PROBE_S)
            if self._writer.last_error is None:
                continue
            try:
                await self._writer.probe()
            except (KatgymError, sqlite3.Error, OSError):
                continue
            logger.warning("the store at %s can be written again", self._folder)

    def _store_reason(self) -> str:
        writer = self._writer
        if writer.last_error is not None:
            return f"the store could not be written: {writer.last_error}"
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        largest = max(2 * writer.largest_bytes, _MIN_RECORD_BYTES)
        needed = MIN_FREE_BYTES + (self._manager.num_in_flight + 1) * largest
        if free >= needed:
            return ""
        return (
            f"the disk of the store {str(self._folder)!r} is full: it has {free >> 10} KiB free,"
            f" and calls may need {needed >> 10} KiB; free some space"
        )
