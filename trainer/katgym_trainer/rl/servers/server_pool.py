"""The vLLM servers of a run: they sample, get weights, and make way for the trainer.

Servers whose devices are the trainer's too (tag `train`) sleep from a step's beginning until they
have its weights; the others sample all the time, and go on with what those had begun. Any of the
run's own that dies is started again while the others go on; a shared one only between steps, when
its devices are free.

Not here: one server (`run_servers.py`), who is asked for what (`load_balancing.py`), which servers
there are (`server_config.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import torch

from katgym.vllm_server.control import PauseMode
from katgym_trainer.config.rl_config import RlConfig, SyncKind
from katgym_trainer.config.rules import split_list
from katgym_trainer.config.server_config import check_receivers, sharing_devices
from katgym_trainer.rl.servers.failover import LostError
from katgym_trainer.rl.servers.gateway_link import GatewayLink, JointGate
from katgym_trainer.rl.servers.load_balancing import BalancedPolicy, Signal
from katgym_trainer.rl.servers.policy_hosts import PolicyHost
from katgym_trainer.rl.servers.run_servers import OwnServer, RunServer
from katgym_trainer.rl.servers.server_role import ServerRole
from katgym_trainer.rl.servers.worker_servers import ServerState
from katgym_trainer.rollouts.store_cursors import find_stores
from katgym_trainer.trainer import Trainer
from katgym_trainer.weight_sync.folder_sync import mark_folder
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import ReadyWeights, SyncTimes, all_of


class ServerPool(PolicyHost):
    """The servers that `[policy]` names, one or several."""

    def __init__(
        self,
        trainer: Trainer,
        config: RlConfig,
        *,
        folder: Path,
        last_step: int = 0,
        served: ServedModel | None = None,
    ) -> None:
        """folder: the run's; the machines of all servers have it at the same path.

        last_step: the last that the run took, in this process or before. served: the trainer's
            model as servers take it; None: all of it is in this process.
        """
        self._trainer, self._config, self._last_step = trainer, config, last_step
        self._served = served or ServedModel.of(trainer.model)
        if backend := config.policy.sync.backend:
            from katgym_trainer.weight_sync import transfer_sync  # imports vLLM

            transfer_sync.check_model(self._served, backend)
        self._changed = Signal()
        self._servers = _servers(trainer, config, folder, self._changed)
        self._own = [server for server in self._servers if isinstance(server, OwnServer)]
        urls, stores = [server.url for server in self._servers], find_stores(config.rollouts.store)
        self._gates = [
            GatewayLink(gateway, server_urls=urls, stores=stores)
            for gateway in split_list(config.policy.gateway)
        ]
        self._devices = asyncio.Lock()
        """Held while the trainer computes, and while a server that shares its devices starts;
        taken before `_weights`."""
        self._weights = asyncio.Lock()
        """Held while the trainer changes them, and while servers get them."""
        self._starting = asyncio.Lock()
        """Held while a server is started again: vLLM measures what is free on its devices."""
        self.followers: list[Callable[[], Awaitable[None]]] = []
        """Called when new weights are there, before anybody goes by their version."""
        self._ready: ReadyWeights | None = None
        """The newest that were made ready."""

    async def start(self) -> Self:
        """Start or find the servers, give them the trainer's weights, and connect to them.

        Raises `PolicyError` for one that does not answer, `ServerError` for one that does not
        start, and what the first push raises.
        """

        async def start_in_turn(places: Sequence[int]) -> None:
            # vLLM measures what is free on a device, which nobody else may change meanwhile.
            for place in places:
                await self._servers[place].start()

        try:
            placed = [server.role.where for server in self._servers]
            await all_of(start_in_turn(places) for places in sharing_devices(placed))
            await all_of(gate.open(last_step=self._last_step) for gate in self._gates)
            weights = await self._ready_weights()
            gates = self._joint_gates(len(self._servers))
            await all_of(server.deliver(weights, gates) for server in self._servers)
            await all_of(server.connect() for server in self._servers)
        except BaseException:
            await self.aclose()
            raise
        self.policy = BalancedPolicy(self._config.policy.uri, self._servers, self._changed)
        for server in self._own:
            server.watch(self._mend)
        return self

    def states(self) -> tuple[ServerState, ...]:
        """Return the servers as they are, for those who ask them from elsewhere."""
        return tuple(server.state() for server in self._servers)

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Have the shared servers sleep; they wake with weights of a push that is to wake them.

        What torch keeps of the step for the next one is theirs again; optimizer state and
        gradients are not moved.
        """
        shared = [server for server in self._servers if server.is_shared]
        # Experts of a completion are told by one server alone.
        tells_experts = "--enable-return-routed-experts" in self._config.policy.server_args
        is_other_awake = any(server.is_open and not server.is_shared for server in self._servers)
        mode: PauseMode = "abort" if is_other_awake and not tells_experts else "keep"

        async def send_to_sleep(server: RunServer) -> None:
            with contextlib.suppress(LostError):  # one that ends meanwhile needs no devices either
                await server.fall_asleep(mode)

        async with self._devices, self._weights:
            await all_of(send_to_sleep(server) for server in shared if server.is_open)
            yield
            if shared and torch.cuda.is_available():
                torch.cuda.empty_cache()

    async def begin_push(
        self, version: int, *, should_wake: bool = True
    ) -> asyncio.Future[dict[str, float]]:
        # Somebody has to sample.
        should_wake |= not any(server.is_open for server in self._servers)
        is_alone = any(server.needs_model(self._served) for server in self._servers) or (
            should_wake and any(server.is_shared for server in self._servers)
        )
        if is_alone or not self._config.rollouts.max_staleness:
            ended: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
            ended.set_result(await self._deliver(should_wake=should_wake))
            return ended
        async with self._weights:
            weights = await self._ready_weights()
        return asyncio.create_task(self._deliver(weights, should_wake=should_wake))

    async def push(self, version: int) -> dict[str, float]:
        return await self._deliver()

    async def _deliver(
        self, weights: ReadyWeights | None = None, *, should_wake: bool = True
    ) -> dict[str, float]:
        """Give servers weights; None: the trainer's, which wait for it.

        should_wake: also those that sleep, who are awake then.
        """
        began = time.perf_counter()
        times: list[SyncTimes] = []
        while not times:
            # Wait for a server that weights can go to; raise why one could not be mended.
            for server in self._servers:
                if server.error is not None:
                    raise server.error
            if not any(server.is_up for server in self._servers):
                await self._changed.wait()
                continue
            should_wake |= not any(server.is_open for server in self._servers)
            # Give them to all servers that are up; those that end meanwhile are left out.
            async with self._weights if weights is None else contextlib.nullcontext():
                ready = weights or await self._ready_weights()
                up = [s for s in self._servers if s.is_up and (should_wake or not s.is_asleep)]
                gates = self._joint_gates(len(up))
                results = await asyncio.gather(
                    *(server.deliver(ready, gates) for server in up),
                    return_exceptions=True,
                )
                for result in results:
                    if isinstance(result, SyncTimes):
                        times.append(result)
                    elif not isinstance(result, LostError):  # those get them when they are mended
                        raise result
        await all_of(tell() for tell in self.followers)
        found = {
            "time/sync_s": time.perf_counter() - began,
            "time/pause_s": max(t.stalled_s for t in times),
            "time/probe_s": max(t.probe_s for t in times),
            "sync/difference": max(t.difference for t in times),
        }
        if self._own:
            found["sync/num_restarts"] = float(sum(server.num_restarts for server in self._own))
        shared = [server for server in self._servers if server.is_shared]
        if shared and should_wake:
            found["time/asleep_s"] = max(server.asleep_s for server in shared)
        return found

    def _joint_gates(self, num_servers: int) -> Sequence[JointGate]:
        return [JointGate(self._gates, num_servers)] if self._gates else []

    async def replace_sessions(self, num_sessions: int, *, group_id: str, store: Path) -> None:
        own = [gate for gate in self._gates if gate.writes(store)]
        for gate in own or self._gates[:1]:
            await gate.replace_sessions(num_sessions, group_id=group_id)

    async def aclose(self) -> None:
        await all_of(
            [
                *(gate.aclose() for gate in self._gates),
                *(server.aclose() for server in self._servers),
            ]
        )

    async def _ready_weights(self) -> ReadyWeights:
        """Return the trainer's weights for servers, made ready once a version."""
        step = self._trainer.num_steps
        if self._ready is None or self._ready.version != step:
            # One that makes deltas makes what the others take, too.
            sync = max(self._servers, key=lambda s: bool(s.role.where.receiver)).sync
            if self._ready is not None:  # what servers have stays until they have what follows
                held = (server.sync.held_versions for server in self._servers)
                await sync.clean_up({self._ready.version}.union(*held))
            self._ready = await sync.ready(self._served, step)
        return self._ready

    async def _mend(self, server: OwnServer) -> None:
        """Start a server anew, with the weights that the trainer has."""
        async with contextlib.AsyncExitStack() as held:
            if server.is_shared:  # nor is another to wake on its devices meanwhile
                await held.enter_async_context(self._devices)
                await held.enter_async_context(self._weights)
            async with contextlib.nullcontext() if server.is_placed else self._starting:
                await server.start_again()
            if not server.is_shared:  # until it is up: the next push is for it, too
                await held.enter_async_context(self._weights)
            await server.deliver(await self._ready_weights(), ())
            await server.connect()


def _servers(
    trainer: Trainer, config: RlConfig, folder: Path, changed: Signal
) -> Sequence[RunServer]:
    placed = config.policy.placed
    is_adapter = trainer.config.lora_rank > 0 and config.policy.sync is not SyncKind.RELOAD
    check_receivers(placed, is_whole=not (is_adapter or config.policy.sync.backend))
    num_own = sum(not where.url for where in placed)
    is_shared = not config.policy.sync.backend and any(where.gpus is not None for where in placed)
    file = mark_folder(folder / "weights") if is_shared else None
    found: list[RunServer] = []
    for number, where in enumerate(placed):
        role = ServerRole(
            config=config,
            where=where,
            number=number,
            lora_rank=trainer.config.lora_rank,
            dtype=trainer.config.dtype,
            folder=folder / "weights",
            shared_file=file,
            log_file=folder / (f"vllm-{number}.log" if num_own > 1 else "vllm.log"),
            changed=changed,
        )
        found.append(RunServer(role) if where.url else OwnServer(role))
    return found
