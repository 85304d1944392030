"""The trainer's side of vLLM's weight transfer: an engine on every rank, and what it sends.

Written against vLLM 0.32, whose package has to be beside the trainer. Not here: when weights are
sent (`transfer_sync.py`); the engines, and how pieces of ranks become pieces of servers (vLLM).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from katgym.errors import MissingDependencyError
from katgym.vllm_server.config import TransferBackend
from katgym_trainer.weight_sync.served_weights import ServedModel

try:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.m2n_common import M2NParamMeta
    from vllm.distributed.weight_transfer.m2n_source import (
        DTensorModuleSource,
        placements_from_tensor,
    )
    from vllm.distributed.weight_transfer.m2n_trainer import M2NTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
except ImportError as e:
    raise MissingDependencyError(
        f"weights over vLLM's engines need {e.name!r} beside the trainer: pip install vllm==0.32.0."
        " Where its pins do not fit, sync = 'reload' or 'lora' needs nothing of vLLM"
    ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPeer:
    """One server to send to, as every rank is told it."""

    backend: TransferBackend
    url: str
    address: str
    """Of the first rank's machine, as the server sees it; with a port that is free there."""
    port: int
    num_workers: int
    """Of the server, over all its replicas."""
    timeout_s: float


class WholeWeights(WeightSource):  # type: ignore[misc]  # vLLM may be missing where this is checked
    """Weights one after the other, whole, every rank gathering each."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served

    def metadata(self) -> list[Any]:
        dtype = self.served.dtype
        return [ParamMeta(name, dtype, tuple(t.shape)) for name, t in self.served.pieces()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.served.weights():
            yield name, tensor.to(self.served.dtype)


class PiecesOfWeights(DTensorModuleSource):  # type: ignore[misc]  # as above
    """Each rank's own pieces, which nobody gathers."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served.model, served.ranks.num)
        self.served = served

    def metadata(self) -> list[Any]:
        dtype = self.served.dtype
        return [
            M2NParamMeta(name, dtype, tuple(t.shape), placements_from_tensor(t))
            for name, t in self.served.pieces()
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.served.pieces():
            piece = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            yield name, piece.detach().to(self.served.dtype)


def connect(served: ServedModel, *, peer: TransferPeer) -> Any:
    """Return vLLM's engine for a server; all ranks call it, and the first one tells the server."""
    info, source = plan(served, peer)
    client = HTTPVLLMWeightSyncClient(peer.url, timeout=peer.timeout_s)
    with torch.no_grad():
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def plan(served: ServedModel, peer: TransferPeer) -> tuple[Any, Any]:
    """Return what this rank tells vLLM's engine of itself, and where its weights come from."""
    num, rank = served.ranks.num, served.ranks.number
    if peer.backend is TransferBackend.IPC:
        return IPCTrainerInitInfo(rank=rank, packed=True), WholeWeights(served)
    where: Any = {"master_address": peer.address, "master_port": peer.port, "rank": rank}
    if peer.backend is TransferBackend.NCCL:
        where["world_size"] = 1 + peer.num_workers
        return NCCLTrainerInitInfo(**where), WholeWeights(served)
    where |= {"world_size": num + peer.num_workers, "num_trainer_ranks": num}
    return M2NTrainerInitInfo(**where), PiecesOfWeights(served)
