"""`IpcSync`: all weights, as handles of memory on the GPU that trainer and servers share.

Not run on a GPU: it needs one with room for both, and is written against the routes of vLLM 0.32,
without anything of vLLM installed here. No setting chooses it.

Not here: weights between GPUs (`nccl_sync.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from katgym.errors import UsageError
from katgym.vllm_server.control import VllmControl
from katgym_trainer.weight_sync.ipc_handles import ipc_handles
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import WeightSync, all_of


class IpcSync(WeightSync):
    """All weights, for servers on the trainer's GPU started with `--set weight_transfer=ipc`."""

    _is_ready = False

    async def prepare(self, model: Any, version: int) -> None:
        if ServedModel.of(model).device.type != "cuda":
            raise UsageError("IpcSync shares memory of a GPU, and the model is not on one")
        if not self._is_ready:
            await all_of(
                control.init_weight_transfer({"packed": False}) for control in self.controls
            )
            self._is_ready = True

    async def update(self, model: Any, version: int) -> None:
        # Held until the last server has copied them: a handle does not keep its memory alive.
        named = [(name, tensor.contiguous()) for name, tensor in ServedModel.of(model).weights()]
        torch.cuda.synchronize()

        async def send(control: VllmControl) -> None:
            await control.transfer_weights(ipc_handles(named))  # handles of its own

        await all_of(map(send, self.controls))
        await asyncio.to_thread(torch.cuda.ipc_collect)
