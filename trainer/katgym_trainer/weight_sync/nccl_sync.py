"""`NcclSync`: all weights, broadcast over NCCL from the trainer's GPU to the servers'.

Not run on a GPU: it needs two, and is written against the source of vLLM 0.32, whose side of the
broadcast is the trainer's too and has to be installed beside it. No setting chooses it.

Not here: servers on the trainer's own GPU (`ipc_sync.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from torch import Tensor

from katgym.errors import MissingDependencyError
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import SyncOptions, WeightSync

try:
    from vllm.distributed.weight_transfer.base import ParamMeta
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerInitInfo,
        NCCLTrainerWeightTransferEngine,
    )
except ImportError as e:
    raise MissingDependencyError(
        f"NcclSync needs {e.name!r} beside the trainer: pip install vllm==0.32.0. Where its pins do"
        " not fit, ReloadSync needs nothing of vLLM"
    ) from e


class SentWeights:
    """The weights of a model as vLLM's engines ask for them: what there is, then the tensors."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self.model.weights()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.weights()


class NcclSync(WeightSync):
    """All weights, for servers on other GPUs started with `--set weight_transfer=nccl`.

    master_address: of this machine, as the servers see it. Each server gets a group of its own.
    The model is the same object at every sync.
    """

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        master_address: str = "127.0.0.1",
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, served_name, **options)
        self.master_address = master_address
        self._engines: list[Any] = []

    async def prepare(self, model: Any, version: int) -> None:
        if self._engines:
            return
        source = SentWeights(ServedModel.of(model))
        for control in self.controls:
            with socket.socket() as free:  # a port that nobody has
                free.bind(("", 0))
                port = int(free.getsockname()[1])
            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=self.master_address,
                master_port=port,
                world_size=1 + await control.world_size(),
            )
            client = HTTPVLLMWeightSyncClient(control.http.base_url, timeout=self.timeout_s)
            self._engines.append(
                await asyncio.to_thread(
                    NCCLTrainerWeightTransferEngine.trainer_init, info, client=client, source=source
                )
            )

    async def update(self, model: Any, version: int) -> None:
        for engine in self._engines:  # the GPU that sends is one
            await asyncio.to_thread(engine.send_weights)

    async def aclose(self) -> None:
        for engine in self._engines:
            await asyncio.to_thread(engine.shutdown)
        await super().aclose()
