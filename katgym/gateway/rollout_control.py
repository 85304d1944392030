"""Control of a gateway by its owner: pauses, the version of the weights, replaced sessions.

It is kept in the store's folder, and outlives the process. Not here: the rollout manager, which
goes by it (`admission.py`); the routes (`server/owner_routes.py`); sessions and calls
(`katgym.rollout_store`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from katgym.errors import UsageError
from katgym.gateway.admission import RolloutManager
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.config import GatewayConfig
from katgym.system import write_atomically
from katgym.system.concurrency import wait_out

NAME = "gateway.json"
MAX_REPLACED_KEYS = 1000
"""That are kept: requests come again after a trainer was killed, which are the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """What is kept.

    Example:
        GatewayState(version=12, num_replaced=8, replaced_keys=("group-17", "group-20"))
    """

    version: Annotated[int, msgspec.Meta(ge=0)]
    """Of the weights."""
    model: str = ""
    """Of the adapter that has them; "" for none."""
    num_replaced: Annotated[int, msgspec.Meta(ge=0)]
    """Sessions that have begun, and do not count for how many may."""
    replaced_keys: tuple[str, ...] = ()
    """Of the last requests for that; one that comes again changes nothing."""
    key_salt: str = ""
    """Goes into the keys of the store's sessions; "" before there is a gateway."""

    def with_replaced(self, num_sessions: int, key: str) -> GatewayState:
        """Return this with so many more sessions replaced, or itself if the key is known."""
        if not key:
            return replace(self, num_replaced=self.num_replaced + num_sessions)
        if key in self.replaced_keys:
            return self
        return replace(
            self,
            num_replaced=self.num_replaced + num_sessions,
            replaced_keys=(*self.replaced_keys, key)[-MAX_REPLACED_KEYS:],
        )


def read_state(folder: Path) -> GatewayState:
    """Return what a store's last gateway knew.

    Raises `UsageError` for a file that cannot be read.
    """
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=GatewayState)
    except FileNotFoundError:
        return GatewayState(version=0, num_replaced=0)
    except (OSError, ValueError) as e:
        raise UsageError(
            f"{str(path)!r} cannot be read ({e}); delete it, and tell the gateway the version of"
            " the weights with POST /control/resume"
        ) from e


def write_state(folder: Path, state: GatewayState) -> None:
    """Keep a state; `InfrastructureError` if it cannot be written."""
    write_atomically(folder / NAME, msgspec.json.encode(state) + b"\n")


class RolloutControl:
    """Changes a rollout manager, and keeps what it was told; used in one event loop."""

    manager: RolloutManager
    """There once it is known how many sessions have begun (`begin`)."""

    def __init__(self, folder: Path) -> None:
        """Read what is kept in a folder; `UsageError` if that cannot be read."""
        self.folder = folder
        self._changing = asyncio.Lock()
        self._state = read_state(folder)
        if not self._state.key_salt:
            self._keep(replace(self._state, key_salt=secrets.token_hex(16)))

    def begin(
        self,
        config: GatewayConfig,
        now_s: Callable[[], float],
        *,
        num_counted: int,
        version: int = 0,
        model: str = "",
    ) -> None:
        """Make the manager.

        num_counted: sessions that have begun, without held-out ones. version, model: that are known
        of the weights beside what is kept.
        """
        newest = version, model
        if version <= self._state.version:
            newest = self._state.version, self._state.model
        self.manager = RolloutManager(
            config,
            versions=VersionLog(newest[0], now_s),
            model=newest[1],
            num_begun=num_counted - self._state.num_replaced,
        )

    @property
    def key_salt(self) -> str:
        """What goes into the keys of the store's sessions."""
        return self._state.key_salt

    async def pause(self) -> None:
        """Hold back calls that have not gone out; may be called twice."""
        self.manager.pause()

    async def resume(self, version: int | None = None, model: str = "") -> None:
        """Let calls out again; `version` is that of the weights from here on, and is kept.

        model: as of `RolloutManager.resume`, and kept as well.
        """
        async with self._changing:
            self.manager.resume(version, model)
            if version is not None:
                state = replace(self._state, version=version, model=model)
                await asyncio.to_thread(self._keep, state)

    async def replace_sessions(self, num_sessions: int, *, key: str = "") -> None:
        """Let so many more sessions begin, in place of some that nothing is learned from.

        key: names them; the same one again, also after a restart, changes nothing. "" names none.
        """
        async with self._changing:
            state = self._state.with_replaced(num_sessions, key)
            if state is not self._state:
                keeping = asyncio.to_thread(self._keep, state)
                await wait_out(asyncio.ensure_future(keeping))
                self.manager.replace(num_sessions)  # once that is kept: who asks again finds it

    def _keep(self, state: GatewayState) -> None:
        write_state(self.folder, state)
        self._state = state
