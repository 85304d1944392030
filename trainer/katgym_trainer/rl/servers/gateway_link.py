"""The gateway through which others play on a run's server: told when weights move, and where to.

    link = GatewayLink("http://127.0.0.1:8900", server_url="http://127.0.0.1:8000", store="games")
    await link.open(last_step=0)
    await sync.sync_weights(model, version=1, gates=[link])

The owner's key is read from KATGYM_GATEWAY_KEY. Not here: moving weights (`weight_sync/`), the
gateway (`katgym.gateway`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from katgym.errors import PolicyError, UsageError
from katgym.gateway.client import KEY_VARIABLE, GatewayClient
from katgym.policies.endpoints.http_retry import HttpStatusError
from katgym.vllm_server.server import is_healthy

logger = logging.getLogger(__name__)

_REFUSED = (401, 403)


class GatewayLink:
    """The trainer's side of one gateway; a `Gate` of weight syncs."""

    def __init__(self, url: str, *, server_url: str, store: str) -> None:
        """server_url: where the weights go. store: the folder that the run reads groups from."""
        self.url = url.rstrip("/")
        self._server_url, self._store = server_url, store
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
                f" {self._server_url} --store {self._store} --port {urlsplit(self.url).port or 80}"
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
        """Raise for several servers; warn of one, or of a store, that is not the run's."""
        urls = [upstream["url"] for upstream in status["upstreams"]]
        if len(urls) != 1:
            raise UsageError(
                f"the gateway at {self.url} asks {len(urls)} model servers ({', '.join(urls)}), and"
                f" the run's weights go to one, {self._server_url}: start the gateway with that one"
            )
        if _place(urls[0]) != _place(self._server_url):
            logger.warning(
                "the gateway at %s asks %s, and the weights go to %s: this has to be the same"
                " server", self.url, urls[0], self._server_url,
            )  # fmt: skip
        if Path(status["store"]).resolve() != Path(self._store).resolve():
            logger.warning(
                "the gateway at %s writes to %r, and the run reads %r: this has to be the same"
                " store", self.url, status["store"], self._store,
            )  # fmt: skip


def _place(url: str) -> tuple[str, int]:
    """Return host and port, one name for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return "127.0.0.1" if host == "localhost" else host, parts.port or 80
