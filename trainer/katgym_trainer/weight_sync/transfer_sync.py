"""`TransferSync`: all weights from GPU to GPU, by the engines of vLLM's that servers have as well.

Not run on a GPU. Not here: the trainer's side of the engines (`transfer_engines.py`).
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack
from urllib.parse import urlsplit

from katgym.errors import UsageError
from katgym.vllm_server.config import TransferBackend
from katgym.vllm_server.control import SleepLevel, VllmControl
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.transfer_engines import TransferPeer, connect
from katgym_trainer.weight_sync.weight_sync import SyncOptions, WeightSync


class TransferSync(WeightSync):
    """All weights, for servers started with `--set weight_transfer=` the same backend.

    backend: `nccl` broadcasts whole weights from the first rank, `nccl_m2n` sends each rank's
    pieces to whom they belong, `ipc` hands over memory of GPUs that servers and ranks share. Each
    server gets a group of its own. The model is the same object at every sync.
    """

    sleep_level: ClassVar[SleepLevel] = 2

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        backend: TransferBackend,
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, served_name, **options)
        self.backend = backend
        self._connected: dict[str, ServedModel] = {}

    async def prepare(self, model: Any, version: int) -> None:
        check_model(ServedModel.of(model), self.backend)

    async def update(self, model: Any, version: int) -> None:
        served = ServedModel.of(model)
        for control in self.controls:  # the GPUs that send are the same
            url = control.http.base_url
            if url not in self._connected:
                new_engine = functools.partial(connect, peer=await self._peer(control))
                await asyncio.to_thread(served.connect, url, new_engine)
                self._connected[url] = served
            await asyncio.to_thread(served.send, url)

    async def aclose(self) -> None:
        for url, served in self._connected.items():
            await asyncio.to_thread(served.disconnect, url)
        self._connected.clear()
        await super().aclose()

    async def _peer(self, control: VllmControl) -> TransferPeer:
        url = control.http.base_url
        address = await asyncio.to_thread(address_seen_by, url)
        with socket.socket() as free:  # a port that nobody has
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        return TransferPeer(
            backend=self.backend,
            url=url,
            address=address,
            port=port,
            num_workers=await control.world_size(),
            timeout_s=self.timeout_s,
        )


def check_model(served: ServedModel, backend: TransferBackend) -> None:
    """Raise `UsageError` for a model that cannot be sent this way."""
    if (kind := served.device.type) != "cuda":
        raise UsageError(
            f"sync = {backend.value!r} sends from a GPU's memory, and the model is on a {kind}:"
            " take 'reload' or 'lora'"
        )
    if backend is TransferBackend.NCCL_M2N and served.has_adapters:
        raise UsageError(
            "sync = 'nccl_m2n' sends pieces of weights, into which no adapter is merged: take"
            " 'lora' or 'nccl'"
        )


def address_seen_by(url: str) -> str:
    """Return this machine's address on the way to a server."""
    host = urlsplit(url).hostname or "127.0.0.1"
    family, _, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(place)  # sends nothing
        return str(way.getsockname()[0])
