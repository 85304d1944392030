"""The rollout manager: when calls may go out, and which sessions may begin or go on.

While weights move, calls wait here and those that are out stay open; agents see a slow answer,
nothing else. Not here: moving weights (`katgym_trainer.weight_sync`); what a session has used up
(`session_table.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """What the manager says of itself.

    Example:
        RolloutState(version=3, model="mine@v3-5e0c1f2a", is_paused=False, num_in_flight=12,
                     num_waiting=0, num_begun=96)
    """

    version: int
    model: str
    """Name of the adapter that has the version's weights; "": all the server's models have them."""
    is_paused: bool
    num_in_flight: int
    """Calls that a model server works on."""
    num_waiting: int
    """Calls and sessions that wait for a resume or for a new version."""
    num_begun: int
    """Sessions that have begun, without held-out and replaced ones."""


class RolloutManager:
    """Lets calls and sessions pass, by the version of the weights."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        versions: VersionLog | None = None,
        model: str = "",
        num_begun: int = 0,
    ) -> None:
        """num_begun: sessions that have begun and count: not held-out or replaced ones."""
        self.versions = versions or VersionLog()
        self.model = model
        """Name of the adapter that has the version's weights, or ""."""
        self.num_in_flight = 0
        self._config = config
        self._num_begun = num_begun
        self._num_waiting = 0
        self._is_paused = False
        self._changed = asyncio.Event()

    @property
    def state(self) -> RolloutState:
        """What it is doing."""
        return RolloutState(
            version=self.version,
            model=self.model,
            is_paused=self._is_paused,
            num_in_flight=self.num_in_flight,
            num_waiting=self._num_waiting,
            num_begun=self._num_begun,
        )

    @property
    def version(self) -> int:
        """That of the weights."""
        return self.versions.version

    @property
    def settled_version(self) -> int | None:
        """That of the weights; None while they move."""
        return None if self._is_paused else self.version

    def pause(self) -> None:
        """Hold back calls that have not gone out; may be called twice."""
        self._is_paused = True
        self.versions.pause()

    def resume(self, version: int | None = None, model: str = "") -> None:
        """Let calls out again, `version` being that of the weights from here on.

        model: of the adapter that has them, where they come as one. Calls that are out keep theirs.
        """
        if version is not None and version < self.version:
            raise GatewayError(
                ErrorKind.MALFORMED,
                f"version goes up: it is {self.version}, got {version}",
            )
        self.versions.resume(self.version if version is None else version)
        if version is not None:
            self.model = model
        self._is_paused = False
        self._wake()

    async def wait_for_resume(self) -> None:
        """Return once calls may go out."""
        while self._is_paused:
            await self._wait()

    async def admit(self) -> None:
        """Return once one more session may begin; raise `BUSY` if it is not to wait for that."""
        while self._num_begun >= self._num_allowed():
            if not self._config.is_waiting:
                raise GatewayError(
                    ErrorKind.BUSY,
                    f"{self._num_begun} sessions have begun at version {self.version}, and with"
                    f" max_staleness {self._config.max_staleness} no more may: try again when"
                    " the weights have moved",
                    retry_after_s=self._config.retry_after_s,
                )
            await self._wait()
        self._num_begun += 1

    def replace(self, num_sessions: int) -> None:
        """Let so many more sessions begin, in place of some that nothing is learned from."""
        self._num_begun -= num_sessions
        self._wake()

    def check_staleness(self, oldest_version: int | None) -> None:
        """Raise `STALE` for a session whose oldest tokens are from weights that are too old."""
        limit = self._config.max_staleness
        if limit is None or oldest_version is None:
            return
        if self.version - oldest_version > limit:
            raise GatewayError(
                ErrorKind.STALE,
                f"the session began with weights of version {oldest_version}; at version"
                f" {self.version} it is older than max_staleness {limit} allows",
            )

    def _num_allowed(self) -> float:
        per_version, staleness = self._config.sessions_per_version, self._config.max_staleness
        if per_version is None or staleness is None:
            return float("inf")
        return per_version * (staleness + self.version + 1)

    async def _wait(self) -> None:
        self._num_waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._num_waiting -= 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
