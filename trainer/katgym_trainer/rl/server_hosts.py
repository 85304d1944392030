"""vLLM servers that play while a run trains: one that is there, or one that the run starts.

A server of the run's own that dies is started again, at another port, and gets the weights before
it samples anything: requests that it lost are sampled anew. One that is there already is somebody
else's to watch.

Not here: the ways weights take (`weight_sync/`), servers (`katgym.vllm_server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Self

from katgym.errors import InfrastructureError, PolicyError
from katgym.policies.base import Sampling
from katgym.policies.token_policy import Generated
from katgym.policies.uri_options import parse_options
from katgym.policies.vllm_client import FORM, VllmConfig, VllmPolicy
from katgym.vllm_server import VllmServer, VllmServerConfig
from katgym.vllm_server.server import is_healthy
from katgym_trainer.rl.gateway_link import GatewayLink
from katgym_trainer.rl.policy_hosts import PolicyHost
from katgym_trainer.rl.rl_config import OWN, RlConfig, SyncKind
from katgym_trainer.trainer import Trainer
from katgym_trainer.weight_sync.lora_sync import LoraSync
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.weight_sync import WeightSync, all_of

logger = logging.getLogger(__name__)

_NAME = "trained"
"""What a server of the run's own calls the model."""
_POLL_S = 0.5


class ServerHost(PolicyHost):
    """A server that is there already."""

    def __init__(
        self, trainer: Trainer, config: RlConfig, *, folder: Path, last_step: int = 0
    ) -> None:
        """folder: for weights on their way; the server's machine has it at the same path.

        last_step: the last that the run took, in this process or before.
        """
        self._trainer, self._config = trainer, config
        self._folder = folder / "weights"
        uri = config.policy.uri if config.policy.uri != OWN else f"vllm:http://-#{_NAME}"
        head, self._options = parse_options(uri.partition(":")[2], VllmConfig, form=FORM)
        url, _, self._name = head.partition("#")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._sync: WeightSync | None = None
        self._last_step = last_step
        self._gates: list[GatewayLink] = []
        if gateway := config.policy.gateway:
            store = config.rollouts.store
            self._gates = [GatewayLink(gateway, server_url=self._url, store=store)]

    async def start(self) -> Self:
        """Give the server the trainer's weights, and connect to it.

        Raises `PolicyError` for one that does not answer, and what the first push raises.
        """
        if not await asyncio.to_thread(is_healthy, self._url):
            raise PolicyError(
                f"no vLLM server answers at {self._url}. Start one: katgym vllm serve"
                f" {self._config.model.path} --rl{' --lora' if self._has_adapters else ''}, or let"
                " the run start one: [policy] uri = 'vllm'"
            )
        try:
            await all_of(gate.open(last_step=self._last_step) for gate in self._gates)
            self._sync = self._new_sync()
            # First, as a server knows an adapter only by then.
            await self._sync.sync_weights(
                self._trainer.model, self._trainer.num_steps, gates=self._gates
            )
            self.policy = self._vllm = await self._connected(VllmPolicy)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def push(self, version: int) -> dict[str, float]:
        assert self._sync is not None, "it was started"
        began = time.perf_counter()
        times = await self._sync.sync_weights(
            self._trainer.model, version, policies=[self._vllm], gates=self._gates
        )
        return {
            "time/sync_s": time.perf_counter() - began,
            "time/pause_s": times.pause_s + times.update_s + times.resume_s,
            "time/probe_s": times.probe_s,
            "sync/difference": times.difference,
        }

    async def replace_sessions(self, num_sessions: int, *, group_id: str) -> None:
        await all_of(gate.replace_sessions(num_sessions, group_id=group_id) for gate in self._gates)

    async def aclose(self) -> None:
        await all_of(gate.aclose() for gate in self._gates)
        if self._sync is not None:
            await self._sync.aclose()
        if hasattr(self, "_vllm"):
            await self._vllm.aclose()

    @property
    def _has_adapters(self) -> bool:
        is_wanted = self._config.policy.sync is not SyncKind.RELOAD
        return self._trainer.config.lora_rank > 0 and is_wanted

    def _new_sync(self) -> WeightSync:
        way = LoraSync if self._has_adapters else ReloadSync
        return way([self._url], self._name, folder=self._folder)

    async def _connected(self, kind: type[VllmPolicy]) -> VllmPolicy:
        model, options = self._config.model, self._options
        settings = dataclasses.replace(
            options,
            tokenizer=options.tokenizer or model.tokenizer or model.path,
            renderer=options.renderer or model.renderer,
            max_context_tokens=self._config.policy.max_context_tokens,
        )
        return await asyncio.to_thread(
            kind.connect, self._url, self._name, name=self._config.policy.uri, config=settings
        )


class OwnServerHost(ServerHost):
    """A server that the run starts, watches and ends."""

    def __init__(
        self, trainer: Trainer, config: RlConfig, *, folder: Path, last_step: int = 0
    ) -> None:
        super().__init__(trainer, config, folder=folder, last_step=last_step)
        has_adapters = self._has_adapters
        self._server = VllmServer(
            VllmServerConfig(
                model=config.model.path,
                served_name="base" if has_adapters else _NAME,
                python=config.policy.server_python,
                dtype=trainer.config.dtype,
                max_model_len=config.policy.max_context_tokens,
                has_lora=has_adapters,
                max_lora_rank=_served_rank(trainer.config.lora_rank),
                has_rl_routes=True,
                extra_args=config.policy.server_args,
                log_file=folder / "vllm.log",
            )
        )
        self.num_restarts = 0
        self._weights = asyncio.Lock()
        """Held while the trainer changes them."""
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        await self._server.__aenter__()
        self._url = self._server.url
        try:
            self._sync = self._new_sync()
            await self._sync.sync_weights(self._trainer.model, self._trainer.num_steps)
            self.policy = self._vllm = self._watched = await self._watched_policy()
        except BaseException:
            await self.aclose()
            raise
        self._watching = asyncio.create_task(self._watch())
        return self

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        async with self._weights:
            yield

    async def push(self, version: int) -> dict[str, float]:
        while True:
            await self._watched.is_up.wait()
            self._check_watch()
            num_before = self.num_restarts
            try:
                found = await super().push(version)
            except InfrastructureError:
                if self._server.is_alive and self.num_restarts == num_before:
                    raise
                await asyncio.sleep(2 * _POLL_S)  # until its end is noticed
            else:
                return {**found, "sync/num_restarts": float(self.num_restarts)}

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        try:
            await super().aclose()
        finally:
            await asyncio.to_thread(self._server.stop)

    async def _watched_policy(self) -> WatchedPolicy:
        policy = await self._connected(WatchedPolicy)
        assert isinstance(policy, WatchedPolicy)
        return policy

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            if not self._server.is_alive:
                self._watched.went_down()
                try:
                    await self._mend()
                except Exception as e:  # whatever it is, nobody is to wait for the server
                    self._watched.gave_up(e)
                    raise

    async def _mend(self) -> None:
        """Start a server anew, with the weights that the policy has."""
        self.num_restarts += 1
        logger.warning(
            "vLLM ended with exit code %s; it is started again (see %s)",
            self._server.exit_code,
            self._server.log_file,
        )
        # At a free port: nobody may reach it before it has the weights.
        await asyncio.to_thread(self._server.start)
        self._url = self._server.url
        assert self._sync is not None, "it was started"
        await self._sync.aclose()
        self._sync = self._new_sync()
        async with self._weights:
            await self._sync.sync_weights(self._trainer.model, self._trainer.num_steps)
        fresh = await self._watched_policy()
        await self._watched.moved_to(fresh)

    def _check_watch(self) -> None:
        """Raise why the server could not be mended."""
        if self._watching is not None and self._watching.done():
            self._watching.result()


class WatchedPolicy(VllmPolicy):
    """Plays through a server that may die: what it was asked then is asked of the next one."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]  # those of VllmPolicy
        self.is_up = asyncio.Event()
        self.is_up.set()
        self._calls: set[asyncio.Task[Generated]] = set()
        self._error: Exception | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        while True:
            await self.is_up.wait()
            if self._error is not None:
                raise self._error
            call = asyncio.create_task(
                super().generate(
                    prompt_ids,
                    sampling=sampling,
                    max_tokens=max_tokens,
                    seed=seed,
                    session_id=session_id,
                )
            )
            self._calls.add(call)
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                if not call.cancelled():  # it is the caller that was cancelled
                    call.cancel()
                    raise
            except InfrastructureError:
                # Its end is noticed by whoever is quicker.
                await asyncio.sleep(2 * _POLL_S)
                if self.is_up.is_set():
                    raise
            finally:
                self._calls.discard(call)

    def went_down(self) -> None:
        """Hold all requests back, those that run included."""
        self.is_up.clear()
        for call in self._calls:
            call.cancel()

    async def moved_to(self, fresh: VllmPolicy) -> None:
        """Go on with the connection of another policy."""
        old, self._client = self._client, fresh._client
        self._is_processed = None
        await old.http.aclose()
        self.is_up.set()

    def gave_up(self, error: Exception) -> None:
        """Fail all requests from here on."""
        self._error = error
        self.is_up.set()


def _served_rank(rank: int) -> int:
    """Return the least of the ranks that vLLM knows which holds an adapter of this one."""
    known = (8, 16, 32, 64, 128, 256, 320, 512)
    return next((held for held in known if held >= rank), rank)
