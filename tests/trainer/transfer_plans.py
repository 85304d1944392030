"""What a rank sends over vLLM's transfer engines, as those read it: a script for vLLM's Python.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT python transfer_plans.py FILE PATH...

PATH: further folders of packages, behind vLLM's own. The first rank writes FILE: what did not
agree, by backend. Engines meet on GPUs alone, and are not made here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path += sys.argv[2:]

import torch
from tiny_qwen import tiny_qwen
from vllm.distributed.weight_transfer.m2n_common import (
    check_transferable,
    resolve_layout,
    validate_layout,
)
from vllm_servers import SHAPE

from katgym.vllm_server.config import TransferBackend
from katgym_trainer.ranks.ranks import Ranks, whole
from katgym_trainer.ranks.sharded_model import ShardedModel
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.transfer_engines import TransferPeer, plan


def disagreements(served: ServedModel, backend: TransferBackend) -> list[str]:
    """Return where what is told of weights and what is sent are not the same."""
    peer = TransferPeer(
        backend=backend, url="http://127.0.0.1:9", address="127.0.0.1", port=9, num_workers=2,
        timeout_s=300.0,
    )  # fmt: skip
    info, source = plan(served, peer)
    found = [] if info.backend == backend.value else [f"the engine of {info.backend}"]
    told = source.metadata()
    sent = [(name, tensor) for name, tensor in source]
    if [m.name for m in told] != [name for name, _ in sent]:
        return [*found, "other names, or another order"]
    wanted = dict(served.weights())
    for meta, (name, tensor) in zip(told, sent, strict=True):
        if tensor.dtype != meta.dtype or meta.dtype != served.dtype:
            found.append(f"{name}: {tensor.dtype} sent, {meta.dtype} told")
        if tuple(meta.shape) != tuple(wanted[name].shape):
            found.append(f"{name}: {meta.shape} told of {tuple(wanted[name].shape)}")
        if backend is TransferBackend.NCCL_M2N:
            check_transferable(meta.name, meta.dtype, meta.shape)
            validate_layout(*resolve_layout(source.mesh(), meta.placements), meta.shape, "source")
            pieces = served.ranks.gather(tensor.clone())
            tensor = torch.cat(pieces) if meta.placements is not None else tensor
        if not torch.equal(tensor, wanted[name].to(served.dtype)):
            found.append(f"{name}: other values")
    return found


def main() -> None:
    with Ranks.join() as ranks:
        model: Any = tiny_qwen(0, **SHAPE, tie_word_embeddings=True).bfloat16().eval()
        if ranks.num > 1:
            ShardedModel(model, ranks)
        served = ServedModel(model, ranks=ranks, dtype=torch.bfloat16)
        backends = [backend for backend in TransferBackend if backend]
        found: dict[str, Any] = {b.value: disagreements(served, b) for b in backends}
        found["num_weights"] = len(list(served.pieces()))
        found["has_pieces"] = any(whole(t).shape != t.shape or whole(t) is not t
                                  for _, t in served.pieces())  # fmt: skip
        if ranks.is_first:
            Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
