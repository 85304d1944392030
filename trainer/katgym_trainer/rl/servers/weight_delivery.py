"""`WeightDelivery`: a step's weights on their way to the policy while the next step begins.

Not here: how they get there (`policy_hosts.py`, `server_pool.py`).
"""

from __future__ import annotations

import asyncio
import time

from katgym_trainer.rl.group_stream import GroupFeed
from katgym_trainer.rl.servers.policy_hosts import PolicyHost


class WeightDelivery:
    """At most one push is under way; the feed is told when the policy samples from its weights.

    Example:
        metrics |= await delivery.begin(step)
    """

    def __init__(self, host: PolicyHost, feed: GroupFeed) -> None:
        self._host, self._feed = host, feed
        self._under_way: asyncio.Future[dict[str, float]] | None = None
        self._waited_s = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether `end` raises at once."""
        push = self._under_way
        return push is not None and push.done() and push.exception() is not None

    async def begin(self, step: int, *, has_pause: bool = False) -> dict[str, float]:
        """Send weights; return metrics of pushes that ended since, and the wait for them.

        has_pause: whether the trainer has something else to wait for than groups.

        Waits for the push before, and raises what it raised. Servers that sleep on the trainer's
        devices sleep on where it does not wait: the next step's groups are there.
        """
        found, began = await self.end(), time.perf_counter()
        should_wake = has_pause or not self._feed.has_next(step)
        push = await self._host.begin_push(step, should_wake=should_wake)
        waited_s, self._waited_s = self._waited_s + time.perf_counter() - began, 0.0
        self._feed.advance(step, is_sampled=push.done())
        if push.done():
            return {**found, **push.result(), "time/sync_s": waited_s}

        def note(ended: asyncio.Future[dict[str, float]]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                self._feed.note_sampled(step)

        self._under_way = push
        push.add_done_callback(note)
        return {**found, "time/sync_s": waited_s}

    async def end(self) -> dict[str, float]:
        """Wait for the push that is under way, and return its metrics; raises what it raised."""
        (push, self._under_way), began = (self._under_way, None), time.perf_counter()
        found = {} if push is None else await push
        self._waited_s += time.perf_counter() - began
        return found

    async def aclose(self) -> None:
        """Give up a push that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
