"""Hosts of the policy while a run trains, and new weights for them.

    host = InProcessHost(ServedModel.of(model), tokenizer, config, is_shared=True)
    await host.push(version=7)      # later completions are stamped with 7

Not here: vLLM servers (`server_pool.py`), the policies (`katgym.policies`).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import copy
import functools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch

from katgym.policies.hf.cpu_attention import can_be_invariant
from katgym.policies.hf.hf_policy import HfConfig, HfPolicy
from katgym.policies.token_policy import TokenPolicy
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.weight_sync.probe import Probe, ProbeConfig, compare
from katgym_trainer.weight_sync.served_weights import ServedModel, scores


class PolicyHost(abc.ABC):
    """A policy that gets the trainer's weights."""

    policy: TokenPolicy

    @abc.abstractmethod
    async def push(self, version: int) -> dict[str, float]:
        """Have the policy sample from the trainer's weights, as `version`; return metrics.

        Raises `WeightSyncError` where what it samples from is not what the trainer has.
        """

    async def begin_push(
        self, version: int, *, should_wake: bool = True
    ) -> asyncio.Future[dict[str, float]]:
        """Begin a push, and return its end: the trainer may go on to change its weights.

        should_wake: whether servers that sleep on its devices are to play now.

        Where nothing is gained it is at its end already.
        """
        ended: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        ended.set_result(await self.push(version))
        return ended

    @contextlib.asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        """Return a context in which the trainer may change the weights."""
        yield

    async def replace_sessions(self, num_sessions: int, *, group_id: str, store: Path) -> None:  # noqa: B027 - most play nothing
        """Have others play so many more sessions, in place of a group's that the run leaves out."""

    async def aclose(self) -> None:
        """Release what it holds; the trainer's model stays."""
        await self.policy.aclose()


class InProcessHost(PolicyHost):
    """The model plays in this process: the trainer's own object, or a copy of it."""

    def __init__(
        self,
        served: ServedModel,
        tokenizer: Any,
        config: RlConfig,
        *,
        is_shared: bool,
        copied: Any = None,
    ) -> None:
        """is_shared: sample from the trainer's object, never while it trains; else from a copy.

        copied: a model of the same shape without adapters, of which the trainer has only pieces
        here; None: the trainer's object is copied.
        """
        self._served, self._is_shared = served, is_shared
        self._weights = served.model.named_parameters
        if copied is not None:
            self._weights = functools.partial(served.weights, should_repeat_head=False)
        elif not is_shared:
            copied = copy.deepcopy(served.model)
        self._played: Any = served.model if is_shared else copied
        self._played.eval()
        self.policy: HfPolicy = HfPolicy(
            self._played,
            tokenizer,
            name=f"hf:{config.model.path}",
            config=HfConfig(
                renderer=config.model.renderer,
                max_context_tokens=config.policy.max_context_tokens,
                max_batch_size=config.policy.max_batch_size,
                # Else a run that goes on differs in last bits: time decides who is beside whom.
                is_batch_invariant=can_be_invariant(self._played),
            ),
        )

    async def push(self, version: int) -> dict[str, float]:
        began = time.perf_counter()

        @torch.no_grad()
        def copy_weights() -> None:
            if self._is_shared:
                return
            own = dict(self._played.named_parameters())
            for name, tensor in self._weights():
                if name in own:  # buffers are not trained
                    own[name].copy_(tensor)

        await self.policy.update_weights(
            copy_weights, policy_version=version, is_immediate=not self._is_shared
        )
        pushed = time.perf_counter()
        found = {"time/sync_s": pushed - began}
        if not self._is_shared:
            # The largest difference of a log-probability between copy and trainer.
            probe = await asyncio.to_thread(Probe, ProbeConfig(), self._served)
            there = await asyncio.to_thread(scores, self._played, probe.token_ids)
            found["sync/difference"] = compare(
                "the copy that plays", probe.logprobs, there, probe.tolerance
            )
            found["time/probe_s"] = time.perf_counter() - pushed
        return found
