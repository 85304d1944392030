"""The pause of a server while its weights change: requests frozen, or asleep since before.

Not here: what happens meanwhile (`weight_sync.py`); who sleeps, and when
(`rl/servers/server_pool.py`).
"""

from __future__ import annotations

from typing import Protocol

from katgym.vllm_server.control import VllmControl


class Pause(Protocol):
    """What comes before and after the exchange of a server's weights."""

    async def begin(self, control: VllmControl) -> None:
        """Return when nothing is sampled and the weights are in memory."""

    async def end(self, control: VllmControl) -> None:
        """Let the server sample, frozen requests first."""


class PauseRequests:
    """The server samples until then: requests freeze, and forget their keys and values."""

    async def begin(self, control: VllmControl) -> None:
        await control.pause("keep", clear_cache=True)

    async def end(self, control: VllmControl) -> None:
        await control.resume()


class PauseAsleep:
    """The server sleeps: its weights wake first, keys and values when the new ones are there.

    It is never resumed while it sleeps: it would sample without its memory.
    """

    async def begin(self, control: VllmControl) -> None:
        await control.wake_up("weights")

    async def end(self, control: VllmControl) -> None:
        await control.wake_up()
