"""New weights for running servers: pause, update, version, resume, and a probe of each.

    sync = ReloadSync(["http://127.0.0.1:8000"], "tiny", folder=Path("weights"))
    times = await sync.sync_weights(model, version=7, policies=[policy])

Requests are frozen while the weights change and go on with the new ones; servers tell which token
came from which. `ready` and `deliver` are the two halves of a sync, for several with a server each
that share what was made ready: one may fail, and the others go on.

Adapters take a way without a pause (`lora_sync.py`).

A sync that fails after weights began to change says so: the servers go on, and
label what they sample `unverified`, which `vllm:` policies and gateways refuse. It does not protect
what is sampled between the update and a probe that fails: that has the version's label.

Not here: the ways weights take (`lora_sync.py`, `reload_sync.py`, `transfer_sync.py`).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar

from katgym.errors import KatgymError, UsageError
from katgym.policies.endpoints.http_retry import HttpClient, RetryConfig, bearer
from katgym.policies.waiting import HeldRequests
from katgym.vllm_server.control import SleepLevel, VllmControl
from katgym.vllm_server.token_api import UNVERIFIED
from katgym_trainer.weight_sync.pause import Pause, PauseRequests
from katgym_trainer.weight_sync.probe import Probe, ProbeConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Versioned(Protocol):
    """A policy that stamps completions, as `VllmPolicy`."""

    policy_version: int
    held: HeldRequests
    """Whose episodes' clocks stand while the servers are paused."""

    def use_adapter(self, model: str, version: int) -> None:
        """Ask for a version's adapter from here on."""


class Gate(Protocol):
    """What holds requests back before they get to a server, as a gateway."""

    async def pause(self) -> object:
        """Let none pass; may be called twice."""

    async def resume(self, version: int, model: str = "") -> object:
        """Let them pass, to weights of this version.

        model: of the adapter that has them, where they come as one: then there was no pause.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyWeights:
    """Weights of one version that servers can take, and the check that they did."""

    model: Any
    version: int
    probe: Probe
    prepare_s: float
    """Wall seconds that making them ready took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimes:
    """Wall seconds of one sync's parts, and how far the probe was off."""

    prepare_s: float
    """Weights made ready, and the probe scored by the trainer; the servers sample meanwhile."""
    pause_s: float
    """Until the last server had paused."""
    update_s: float
    """Until the last server had the weights and their version."""
    resume_s: float
    probe_s: float
    """The servers sample again meanwhile."""
    difference: float
    """Largest difference of a log-probability on any server."""
    has_paused: bool = True
    """Whether the servers stood still meanwhile, but for the probe."""

    @property
    def stalled_s(self) -> float:
        """Wall seconds in which servers that were awake sampled nothing."""
        return (self.pause_s + self.update_s + self.resume_s) * self.has_paused


class SyncOptions(TypedDict, total=False):
    """What may be told to every `WeightSync`."""

    probe: ProbeConfig | None
    timeout_s: float
    token: str


class WeightSync(abc.ABC):
    """One way for weights to get into servers, which all serve the same model.

    urls: of the servers. served_name: the model the probe scores there, an adapter's for adapters.
    """

    sleep_level: ClassVar[SleepLevel] = 1
    """How deep servers may sleep before an update: 2 where it brings all weights."""

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        probe: ProbeConfig | None = None,
        timeout_s: float = 600.0,
        token: str = "",
    ) -> None:
        """token: what the servers ask for, of servers that the run has started."""
        if not urls:
            raise UsageError("a weight sync needs at least one server's URL")
        self.served_name = served_name
        self.version = 0
        """What the servers were given last."""
        self.probe = probe or ProbeConfig()
        self.timeout_s = timeout_s
        # What fails twice is not mended by asking on: servers are frozen meanwhile.
        retry = RetryConfig(timeout_s=timeout_s, max_retries=1)
        self.controls = [
            VllmControl(HttpClient(url.rstrip("/"), retry, headers=bearer(token))) for url in urls
        ]

    async def sync_weights(
        self,
        model: Any,
        version: int,
        *,
        policies: Iterable[Versioned] = (),
        gates: Sequence[Gate] = (),
    ) -> SyncTimes:
        """Give all servers the model's weights under a version, and check that they have them.

        model: of transformers, with peft adapters or without; not changed, and not to be trained
        meanwhile. policies: get the version, for servers that do not tell it with every token.
        gates: closed while the servers are paused, and left closed by a sync that fails.
        Raises `WeightSyncError` when a server's scores are not the model's, and what the update
        raised otherwise; the servers sample again in either case.
        """
        weights = await self.ready(model, version)
        times = await self.deliver(weights, policies=policies, gates=gates)
        await self.clean_up({version, *self.held_versions})
        return times

    async def ready(self, model: Any, version: int) -> ReadyWeights:
        """Do what can be done while the servers sample, and return what `deliver` takes."""
        start = time.perf_counter()
        probe = await asyncio.to_thread(Probe, self.probe, model)
        await self.prepare(model, version)
        return ReadyWeights(
            model=model, version=version, probe=probe, prepare_s=time.perf_counter() - start
        )

    async def deliver(
        self,
        weights: ReadyWeights,
        *,
        policies: Iterable[Versioned] = (),
        gates: Sequence[Gate] = (),
        pause: Pause | None = None,
    ) -> SyncTimes:
        """Give all servers weights that are ready, and check that they have them.

        weights: of this sync, or of one of its kind and folder. pause: how the servers are
        paused; None freezes requests. Everything else is as in `sync_weights`; nothing is cleaned
        up.
        """
        how, version, start = pause or PauseRequests(), weights.version, time.perf_counter()
        policies = list(policies)
        # 1. Pause gates, then servers.
        await all_of(gate.pause() for gate in gates)
        try:
            for policy in policies:
                policy.held.hold(is_held=True)
            await all_of(how.begin(control) for control in self.controls)
            paused = time.perf_counter()

            # 2. The weights, and whose version they are.
            async with self._mark_failure(gates):
                await self.update(weights.model, version)
                await all_of(control.set_weight_version(str(version)) for control in self.controls)
            self.version = version
            for policy in policies:
                self.tell(policy)
            updated = time.perf_counter()
        finally:
            # 3. Whatever came of it, the servers sample again.
            await self.end_pause(how, policies)
        await all_of(gate.resume(version) for gate in gates)
        resumed = time.perf_counter()

        # 4. Look whether they have them.
        async with self._mark_failure(gates):
            differences = await all_of(
                weights.probe.check(control, self.served_name) for control in self.controls
            )
        return SyncTimes(
            prepare_s=weights.prepare_s,
            pause_s=paused - start,
            update_s=updated - paused,
            resume_s=resumed - updated,
            probe_s=time.perf_counter() - resumed,
            difference=max(differences),
        )

    async def end_pause(self, pause: Pause, policies: Sequence[Versioned]) -> None:
        """Have the servers sample again, and the clocks of who asked them go on."""
        try:
            await all_of(pause.end(control) for control in self.controls)
        finally:
            for policy in policies:
                policy.held.hold(is_held=False)

    @abc.abstractmethod
    async def prepare(self, model: Any, version: int) -> None:
        """Do what can be done before the servers are paused."""

    @abc.abstractmethod
    async def update(self, model: Any, version: int) -> None:
        """Get the weights into all servers, which are paused."""

    @property
    def held_versions(self) -> set[int]:
        """Versions that a server may read again."""
        return {self.version}

    def tell(self, policy: Versioned) -> None:
        """Have a policy sample from the version that the servers were given last."""
        policy.policy_version = self.version

    async def clean_up(self, keep: Collection[int]) -> None:  # noqa: B027 - most leave nothing behind
        """Remove what other versions left."""

    async def aclose(self) -> None:
        """Close the connections."""
        await all_of(control.aclose() for control in self.controls)

    @contextlib.asynccontextmanager
    async def _mark_failure(self, gates: Sequence[Gate]) -> AsyncIterator[None]:
        """After a failure close gates and label what servers sample, as far as they answer."""
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if not is_done:
                try:
                    await all_of(
                        [
                            *(gate.pause() for gate in gates),
                            *(c.set_weight_version(UNVERIFIED) for c in self.controls),
                        ]
                    )
                except KatgymError as e:
                    logger.warning("after a failed sync a server cannot be marked as such: %s", e)


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all, also when one fails; then raise the first failure."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    done: list[T] = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
