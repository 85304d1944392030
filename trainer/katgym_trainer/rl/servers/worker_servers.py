"""A run's servers as its rollout workers see them: which there are, which take requests.

The run tells (`run_workers.py`); a worker's `ToldPolicy` asks the servers itself, so no token of a
prompt passes through the run. Not here: the servers (`run_servers.py`), who is asked for what
(`load_balancing.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from katgym.errors import PolicyError
from katgym.play.engine import RolloutEngine
from katgym.play.workers.player_pool import WorkerLostError
from katgym.play.workers.worker_calls import EngineRef
from katgym.policies.endpoints.vllm_client import VllmConfig, VllmPolicy
from katgym_trainer.rl.servers.failover import FailoverPolicy
from katgym_trainer.rl.servers.load_balancing import BalancedPolicy, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """A server at some time, as plain data.

    Example:
        ServerState(url="http://10.0.0.7:8000", model="tiny", is_adapter=False, name="vllm",
                    config=VllmConfig(), token="", place="here", is_own=True, is_up=True,
                    is_open=True, is_held=False, version=7, num_restarts=0, error="", end="")
    """

    url: str
    model: str
    """What it calls the model."""
    is_adapter: bool
    """Whether that is an adapter of `version` alone."""
    name: str
    """Of its policy."""
    config: VllmConfig
    token: str = field(repr=False)
    """What it asks for; "": nothing."""
    place: str
    """The machine it is on, of one that the run has started."""
    is_own: bool
    """Whether the run starts it again when it ends."""
    is_up: bool
    is_open: bool
    """Whether it takes requests: it is up and awake."""
    is_held: bool
    """Whether it is paused, and holds what it was asked."""
    version: int
    """Weights that it has."""
    num_restarts: int
    error: str
    """Why it will never be up again; "" while that is not so."""
    end: str
    """What became of it the last time that it ended; "" while it has not."""


@dataclass(frozen=True, kw_only=True)
class RunEngineRef(EngineRef):
    """The engine of a run's rollout worker; `policy` is its name."""

    servers: tuple[ServerState, ...]

    def make(self) -> RolloutEngine:
        """Connect to the servers; `WorkerLostError` while none takes requests."""
        return RolloutEngine(
            ToldPolicy(self.policy, self.servers),
            limits=self.limits, sampling=self.sampling, config=self.config,
        )  # fmt: skip

    async def renew(self, engine: RolloutEngine) -> None:
        await cast(ToldPolicy, engine.policy).take_note(self.servers)


class ToldSeat:
    """A server as a worker knows it: what it was told, and its connection."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.connection = _connect(state) if state.is_open else None
        self.stand_in: VllmPolicy | None = None
        """Another server's, whose tokenizer is as good, until this one is first open."""
        self._is_connected = state.is_open

    @property
    def policy(self) -> VllmPolicy:
        """What asks it."""
        found = self.connection or self.stand_in
        assert found is not None, "one of the servers is open"
        return found

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self.state.is_open and self._is_connected

    @property
    def max_running(self) -> int:
        """Requests that it has room for."""
        return self.state.config.max_concurrency

    @property
    def error(self) -> Exception | None:
        """Why it will never be up again."""
        return PolicyError(self.state.error) if self.state.error else None

    async def take_note(self, state: ServerState) -> None:
        """Go on with a server's newer state; raises why it cannot be connected to."""
        before, connection = self.state, self.connection
        has_moved = (state.url, state.num_restarts) != (before.url, before.num_restarts)
        if self._is_connected and (has_moved or not state.is_up):
            self._is_connected = False
            if isinstance(connection, FailoverPolicy):
                connection.went_down()  # what it was asked for is asked of others
        if state.is_open and not self._is_connected:
            fresh = await asyncio.to_thread(_connect, state)
            if isinstance(connection, FailoverPolicy):
                await connection.move_to(fresh)
            else:
                self.connection = fresh
            self._is_connected = True
        self.state = state
        if self.connection is not None:
            _tell(self.connection, state)


class ToldPolicy(BalancedPolicy):
    """Plays through the servers that the run says are open."""

    def __init__(self, name: str, servers: Sequence[ServerState]) -> None:
        seats = [ToldSeat(state) for state in servers]
        connected = [seat.connection for seat in seats if seat.connection is not None]
        if not connected:
            raise WorkerLostError("none of the run's servers takes requests yet")
        for seat in seats:
            seat.stand_in = connected[0]
        self._told = seats
        super().__init__(name, seats, Signal())

    async def take_note(self, servers: Sequence[ServerState]) -> None:
        """Go on with newer states of the same servers; raises what connecting to one did."""
        try:
            for seat, state in zip(self._told, servers, strict=True):
                await seat.take_note(state)
        finally:
            self._changed.give()

    async def aclose(self) -> None:
        for seat in self._told:
            if seat.connection is not None:
                await seat.connection.aclose()


def _connect(state: ServerState) -> VllmPolicy:
    kind = FailoverPolicy if state.is_own else VllmPolicy
    policy = kind.connect(
        state.url, state.model, name=state.name, config=state.config, token=state.token
    )
    _tell(policy, state)
    return policy


def _tell(policy: VllmPolicy, state: ServerState) -> None:
    policy.held.hold(is_held=state.is_held)
    if state.is_adapter:
        policy.use_adapter(state.model, state.version)
    else:
        policy.policy_version = state.version
