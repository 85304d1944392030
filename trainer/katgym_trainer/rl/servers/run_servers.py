"""One vLLM server that plays while a run trains: it is there, or the run starts and watches it.

A server of the run's own that dies is started again, at another port or on another node, and gets
the weights before it samples anything. One that is there already is somebody else's to watch.
Either may sleep while the trainer needs its devices.

Not here: several of them, and when they sleep (`server_pool.py`); the ways weights take
(`weight_sync/`); starting a process (`server_role.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Self

from katgym.errors import InfrastructureError, PolicyError
from katgym.policies.endpoints.vllm_client import FORM, VllmConfig, VllmPolicy
from katgym.policies.uri_options import parse_options
from katgym.vllm_server.control import PauseMode
from katgym.vllm_server.failure_hints import hint
from katgym.vllm_server.server import ServerError, is_healthy
from katgym.vllm_server.token_api import UNVERIFIED
from katgym_trainer.config.server_config import OWN
from katgym_trainer.rl.servers.failover import POLL_S, FailoverPolicy, LostError
from katgym_trainer.rl.servers.server_role import NAME, ServerRole, server_process, whole_path
from katgym_trainer.rl.servers.worker_servers import ServerState
from katgym_trainer.weight_sync.delta_sync import DeltaSync
from katgym_trainer.weight_sync.lora_sync import LoraSync
from katgym_trainer.weight_sync.pause import PauseAsleep
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import Gate, ReadyWeights, SyncTimes, WeightSync

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_MAX_LOOKS = 90
"""So often it is looked whether a server that does not answer has ended: a process whose engine
ended takes a while to end as well, and Ray to know of one on a node that is lost."""
_MAX_ENDS = 3
"""So often a server may end, at a place that stands, without finishing a request in between."""
_ASK_S = 5.0
"""Wall seconds in which a server that runs tells what it has finished."""
_PATIENCE_S = 24 * 3600.0
"""Time limit of a request that may be frozen for as long as a step takes."""


class RunServer:
    """A server that is there already."""

    sync: WeightSync
    """What brings it weights, once started."""

    def __init__(self, role: ServerRole) -> None:
        self.role = role
        self.url, self.name = role.where.place, role.where.name or NAME
        self.token = "" if role.where.url else secrets.token_urlsafe(32)
        """What it asks for, of one that the run starts."""
        own = role.where.max_concurrency
        self._options = VllmConfig(max_concurrency=own) if own else VllmConfig()
        if role.where.url:
            _, self._options = parse_options(role.where.url, VllmConfig, form=FORM)
        self._has_adapters = role.has_adapters
        """Whether it has, or could have: what it samples then is scored after that."""
        self.is_up = True
        self.is_asleep = False
        self.asleep_s = 0.0
        """Wall seconds in which it took no requests when it slept last."""
        self.error: Exception | None = None
        """Why it will never be up again."""
        self.num_restarts = 0
        self.end = ""
        """What became of the process before this one, of one that the run starts."""
        self._slept_from_s = 0.0
        self._policy: VllmPolicy | None = None

    @property
    def policy(self) -> VllmPolicy:
        """What asks it; there once it is connected."""
        assert self._policy is not None, "it is connected"
        return self._policy

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self.is_up and not self.is_asleep

    @property
    def max_running(self) -> int:
        """Requests that it has room for."""
        return self._options.max_concurrency

    def state(self) -> ServerState:
        """Return what a rollout worker needs to ask it."""
        return ServerState(
            url=self.url,
            model=self.policy.model,
            is_adapter=self.policy.is_adapter,
            name=self._policy_name,
            config=self._settings,
            token=self.token,
            place=self.place,
            is_own=not self.role.where.url,
            is_up=self.is_up,
            is_open=self.is_open,
            is_held=self.policy.held.is_held,
            version=self.policy.policy_version,
            num_restarts=self.num_restarts,
            error=str(self.error or ""),
            end=self.end,
        )

    @property
    def place(self) -> str:
        """The machine it is on, of one that the run starts."""
        return ""

    @property
    def is_shared(self) -> bool:
        """Whether the trainer needs its devices."""
        return self.role.where.is_shared

    @property
    def is_placed(self) -> bool:
        """Whether Ray finds its devices, which nobody else has then."""
        return self.role.where.gpus is not None

    def needs_model(self, served: ServedModel) -> bool:
        """Return whether the trainer's model may not change while weights get there."""
        is_transfer = bool(self.role.config.policy.sync.backend)
        return is_transfer or (self._has_adapters and not served.can_be_kept)

    async def start(self) -> None:
        """Find out whether it answers; `PolicyError` if not."""
        if not await asyncio.to_thread(is_healthy, self.url):
            raise PolicyError(
                f"no vLLM server answers at {self.url}. Start one: katgym vllm serve"
                f" {self.role.config.model.path} --rl{' --lora' if self.role.has_adapters else ''},"
                " or let the run start one: [policy] uri = 'vllm'"
            )
        self.sync = self._new_sync()
        control, backend = self.sync.controls[0], self.role.config.policy.sync.backend
        abilities = await control.abilities()
        self._has_adapters |= abilities.has_lora_updates
        if backend and not abilities.has_weight_transfer:
            raise PolicyError(
                f"the server at {self.url} takes no weights by sync = {backend.value!r}: start it"
                f" with katgym vllm serve {self.role.config.model.path} --rl --set"
                f" weight_transfer={backend.value}"
            )
        if self.is_shared:
            if not abilities.has_sleep:
                raise PolicyError(
                    f"the server at {self.url} has the tag 'train' and cannot sleep: start it with"
                    f" katgym vllm serve {self.role.config.model.path} --rl, on a GPU with"
                    " -- --enable-sleep-mode"
                )
            await control.wake_up()  # a run that was killed may have left it asleep

    async def deliver(self, weights: ReadyWeights, gates: Sequence[Gate]) -> SyncTimes:
        """Give it weights, and wake it if it sleeps; raises as `WeightSync.deliver` does."""
        times = await self.sync.deliver(
            weights,
            policies=[] if self._policy is None else [self._policy],
            gates=gates,
            pause=PauseAsleep() if self.is_asleep else None,
        )
        if self.is_asleep:
            self.is_asleep = False
            self.asleep_s = time.perf_counter() - self._slept_from_s
            self.role.changed.give()
        return times

    async def connect(self) -> None:
        """Make its policy; after weights, as it knows an adapter only by then."""
        self._policy = await self._make_policy(VllmPolicy)
        self.sync.tell(self._policy)

    async def fall_asleep(self, mode: PauseMode) -> None:
        """Free its devices, and take no requests until `deliver`.

        mode: what becomes of those that run, as of `VllmControl.pause`.
        """
        self.is_asleep, self._slept_from_s = True, time.perf_counter()
        if self._policy is not None:
            self._policy.held.hold(is_held=True)  # until `deliver`
        control, level = self.sync.controls[0], self.sync.sleep_level
        await control.sleep(level, mode=mode)
        if level > 1:  # whoever wakes it before the weights come finds none
            await control.set_weight_version(UNVERIFIED)

    async def aclose(self) -> None:
        """Let go of it, awake."""
        if self.is_asleep:
            try:
                await self.sync.controls[0].wake_up()
            except InfrastructureError as e:
                logger.warning("%s sleeps on: %s", self.url, e)
        await self._disconnect()

    async def _disconnect(self) -> None:
        if hasattr(self, "sync"):
            await self.sync.aclose()
        if self._policy is not None:
            await self._policy.aclose()

    def _new_sync(self) -> WeightSync:
        folder = self.role.folder
        if backend := self.role.config.policy.sync.backend:
            from katgym_trainer.weight_sync.transfer_sync import TransferSync  # imports vLLM

            return TransferSync([self.url], self.name, backend=backend, token=self.token)
        if receiver := self.role.where.receiver:
            return DeltaSync([self.url], self.name, receivers=[receiver], folder=folder)
        if not self.role.has_adapters:
            return ReloadSync([self.url], self.name, folder=folder, token=self.token)
        return LoraSync([self.url], self.name, folder=folder, token=self.token)

    async def _make_policy(self, kind: type[VllmPolicy]) -> VllmPolicy:
        url, model = self.url, self.sync.served_name
        return await asyncio.to_thread(
            kind.connect,
            url,
            model,
            name=self._policy_name,
            config=self._settings,
            token=self.token,
        )

    @property
    def _policy_name(self) -> str:
        return f"vllm:{self.role.where.url}" if self.role.where.url else OWN

    @property
    def _settings(self) -> VllmConfig:
        config, options = self.role.config, self._options
        return dataclasses.replace(
            options,
            tokenizer=options.tokenizer or whole_path(config.model.tokenizer or config.model.path),
            renderer=options.renderer or config.model.renderer,
            max_context_tokens=config.policy.max_context_tokens,
            timeout_s=_PATIENCE_S if self.is_shared else options.timeout_s,
        )


class OwnServer(RunServer):
    """A server that the run starts, watches and ends."""

    def __init__(self, role: ServerRole) -> None:
        super().__init__(role)
        self._process = server_process(role, self.token)
        self._watching: asyncio.Task[None] | None = None
        self._num_probed = 0
        """Requests that it had finished when it had its weights: probes of them, too."""

    @property
    def place(self) -> str:
        return self._process.place

    async def start(self) -> None:
        """Start the process, at a free port: nobody is sent there before it has the weights."""
        await self._process.__aenter__()
        self.url = self._process.url
        self.sync = self._new_sync()

    async def deliver(self, weights: ReadyWeights, gates: Sequence[Gate]) -> SyncTimes:
        """As of any server; `LostError` if it ends meanwhile."""
        async with self._end_noticed():
            times = await super().deliver(weights, gates)
            self._num_probed = await self.sync.controls[0].num_finished() or 0
        return times

    async def connect(self) -> None:
        async with self._end_noticed():
            connected = await self._make_policy(FailoverPolicy)
        if self._policy is None:
            self._policy = connected
        else:
            await self._watched.move_to(connected)
        self.sync.tell(self._policy)
        self.is_up = True
        self.role.changed.give()

    async def fall_asleep(self, mode: PauseMode) -> None:
        """As of any server; `LostError` if it ends meanwhile."""
        async with self._end_noticed():
            await super().fall_asleep(mode)

    def watch(self, mend: Callable[[Self], Awaitable[None]]) -> None:
        """Look after the process until `aclose`.

        mend: called when it has ended, to have it up again; after whatever that raises nobody is
        to wait for the server.
        """
        self._watching = asyncio.create_task(self._watch(mend))

    async def start_again(self) -> None:
        """Start another process in place of the one that ended."""
        await self.sync.aclose()
        try:
            await self.start()
        except InfrastructureError as e:  # another start may do: memory is free then, say
            raise LostError(str(e).partition("\n")[0]) from e

    async def aclose(self) -> None:
        """End it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        try:
            await self._disconnect()
        finally:
            await self._process.__aexit__()

    @property
    def _watched(self) -> FailoverPolicy:
        assert isinstance(self._policy, FailoverPolicy)
        return self._policy

    async def _watch(self, mend: Callable[[Self], Awaitable[None]]) -> None:
        try:
            await self._look_after(mend)
        except Exception as e:  # whatever it is, nobody is to wait for the server
            logger.error("%s", e)
            self.error = e
            self.role.changed.give()

    async def _look_after(self, mend: Callable[[Self], Awaitable[None]]) -> None:
        """Have it mended as often as it ends; raises what nobody can mend."""
        num_ends = 0
        failed: LostError | None = None
        while True:
            await asyncio.sleep(POLL_S)
            if self._watched.has_finished:
                num_ends = 0
            if self._process.is_alive:
                if num_ends and await self._has_worked():  # for workers, who do not tell
                    num_ends = 0
                continue
            lost, failed = failed or self._lost(), None
            self.is_up = self.is_asleep = False
            self.asleep_s = 0.0
            self.num_restarts += 1
            self.end = str(lost)
            self._watched.went_down()
            num_ends += not lost.is_place
            if num_ends == _MAX_ENDS:
                raise ServerError(
                    f"a vLLM server has ended {num_ends} times without finishing a request in"
                    f" between, and is not started again. The last time: {lost}"
                )
            told = f"{lost}; it is started again"
            if num_ends:
                told += f", after end {num_ends} of at most {_MAX_ENDS} without a finished request"
            logger.warning("%s", told)
            try:
                await mend(self)
            except LostError as e:  # it ended once more before it was up
                failed = e

    def _lost(self) -> LostError:
        """Return what became of the process that has ended."""
        end = self._process.end or "is lost with its place"
        advice = f"; probably {likely}" if (likely := hint(end)) else ""
        lost = LostError(f"vLLM {end}{advice} (log: {self._process.log_file})")
        lost.is_place = self._process.exit_code is None
        return lost

    async def _has_worked(self) -> bool:
        """Return whether it has finished a request since it got weights; True if it counts none."""
        try:
            num = await asyncio.wait_for(self.sync.controls[0].num_finished(), _ASK_S)
        except (InfrastructureError, TimeoutError):  # it is asked again
            return False
        return num is None or num > self._num_probed

    @contextlib.asynccontextmanager
    async def _end_noticed(self) -> AsyncIterator[None]:
        """Raise `LostError` for what fails because the process ended."""
        num_restarts = self.num_restarts
        try:
            yield
        except InfrastructureError as e:
            for _ in range(_MAX_LOOKS):
                await asyncio.sleep(_LOOK_S)
                if not self._process.is_alive or self.num_restarts != num_restarts:
                    break
                if await asyncio.to_thread(is_healthy, self.url):
                    raise
            else:
                raise
            raise self._lost() from e
