"""The gateways through which others play on a run's servers: told when weights move, and where to.

    link = GatewayLink(
        "http://127.0.0.1:8900", server_urls=["http://127.0.0.1:8000"], stores=[Path("games")]
    )
    await link.open(last_step=0)
    await sync.sync_weights(model, version=1, gates=[link])

The owner's key is read from KATGYM_GATEWAY_KEY. Not here: moving weights (`weight_sync/`), the
gateway (`katgym.gateway`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from katgym.errors import PolicyError, UsageError
from katgym.gateway.client import KEY_VARIABLE, GatewayClient
from katgym.policies.endpoints.http_retry import HttpStatusError
from katgym.rollout_store.store_folders import store_folders
from katgym.vllm_server.server import is_healthy
from katgym_trainer.weight_sync.weight_sync import Gate, all_of

logger = logging.getLogger(__name__)

_REFUSED = (401, 403)


class GatewayLink:
    """The trainer's side of one gateway; a `Gate` of weight syncs."""

    def __init__(self, url: str, *, server_urls: Sequence[str], stores: Sequence[Path]) -> None:
        """server_urls: where the weights go. stores: folders that the run reads groups from."""
        self.url = url.rstrip("/")
        self._server_urls, self._stores = server_urls, stores
        self._own_stores: set[Path] = set()
        """That the gateway writes."""
        self._client = GatewayClient(self.url)
        self._version = 0
        """The newest that the gateway knows."""
        self._is_holding = False
        """Whether calls wait because of this run."""

    async def open(self, *, last_step: int) -> None:
        """Find out what the gateway knows.

        last_step: the newest version that this run can have told it. Raises `PolicyError` for a
        gateway that does not answer, `UsageError` for one that cannot be used.
        """
        if not await asyncio.to_thread(is_healthy, self.url):
            raise PolicyError(
                f"no katgym gateway answers at {self.url}. Start one: katgym gateway --upstream"
                f" {' --upstream '.join(self._server_urls)} --store {self._stores[0]} --port"
                f" {urlsplit(self.url).port or 80}"
            )
        status = await self._ask(self._client.status())
        self._check(status)
        self._version = int(status["version"])
        if self._version > last_step:
            raise UsageError(
                f"the gateway at {self.url} has weights of version {self._version}, and this run"
                f" has taken {last_step} steps: its store holds what another run's weights sampled."
                " Start a gateway with a store of its own for this run"
            )

    async def pause(self) -> None:
        """Have calls wait."""
        await self._ask(self._client.pause())
        self._is_holding = True

    async def resume(self, version: int, model: str = "") -> None:
        """Let calls pass to weights of this version, which `model` has where they are an adapter.

        They wait, or go on waiting, while it is older than what the gateway has told: a run that
        was killed takes its last steps again.
        """
        if version < self._version:
            logger.info(
                "calls wait at %s until step %d has been taken again", self.url, self._version
            )
            if not self._is_holding:
                await self.pause()
            return
        await self._ask(self._client.resume(version, model))
        self._version, self._is_holding = version, False

    async def replace_sessions(self, num_sessions: int, *, group_id: str) -> None:
        """Have so many more sessions begin, in place of a group's that the run leaves out.

        They do once for each group: a run that was killed leaves its last groups out again.
        """
        await self._ask(self._client.replace_sessions(num_sessions, key=group_id))

    def writes(self, store: Path) -> bool:
        """Return whether a store is the gateway's, as it told when it was opened."""
        return store.resolve() in self._own_stores

    async def aclose(self) -> None:
        """Close the connections; a gateway that is paused stays so, with a warning."""
        if self._is_holding:
            logger.warning(
                "calls wait at %s until the run goes on: the weights behind it are not those of"
                " version %d", self.url, self._version,
            )  # fmt: skip
        await self._client.aclose()

    async def _ask(self, asked: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await asked
        except HttpStatusError as e:
            if e.status in _REFUSED:
                raise UsageError(
                    f"the gateway at {self.url} does not know this key: set {KEY_VARIABLE} to the"
                    " one that katgym gateway was started with, or printed"
                ) from e
            raise
        except PolicyError as e:
            raise PolicyError(
                f"the gateway has gone: {e}. Start it again with its store; the same command goes"
                " on with the run", kind=e.kind,
            ) from e  # fmt: skip

    def _check(self, status: Mapping[str, Any]) -> None:
        """Raise for servers that get no weights; warn of stores that are not read, and of names."""
        urls = [upstream["url"] for upstream in status["upstreams"]]
        known = {_place(url) for url in self._server_urls}
        strange = [url for url in urls if _place(url) not in known]
        told = ", ".join(self._server_urls)
        if len(strange) > len(known - {_place(url) for url in urls}):
            raise UsageError(
                f"the gateway at {self.url} asks {len(urls)} model servers ({', '.join(urls)}), and"
                f" the run's weights go to {len(known)} ({told}): not to {', '.join(strange)}. Name"
                " all in [[policy.servers]], or start the gateway with those that are"
            )
        if strange:
            logger.warning(
                "the gateway at %s asks %s, and the weights go to %s: this has to be the same"
                " server", self.url, ", ".join(strange), told,
            )  # fmt: skip
        self._own_stores = {folder.resolve() for folder in store_folders(status["store"])}
        read = {folder.resolve() for folder in self._stores}
        if not self._own_stores <= read:
            logger.warning(
                "the gateway at %s writes to %r, and the run reads %s: this has to be the same"
                " store", self.url, status["store"], ", ".join(repr(str(f)) for f in self._stores),
            )  # fmt: skip


class JointGate:
    """All gates of several servers: they close before the first moves, and open after the last has.

    For one delivery of weights. What any server's failure closes stays closed.
    """

    def __init__(self, gates: Sequence[Gate], num_servers: int) -> None:
        self._gates = gates
        self._num_left = num_servers

    async def pause(self) -> None:
        """Let nobody pass to any server."""
        await all_of(gate.pause() for gate in self._gates)

    async def resume(self, version: int, model: str = "") -> None:
        """Take note that a server has the weights; let everybody pass to them once all have."""
        self._num_left -= 1
        if not self._num_left:
            await all_of(gate.resume(version, model) for gate in self._gates)


def _place(url: str) -> tuple[str, int]:
    """Return host and port, one name for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "127.0.0.1" if host == "localhost" else host, parts.port or 80
