"""`DeltaSync`: all weights, sent to a receiver beside each server, as what changed where it can be.

For servers that share no folder with the trainer, or one over a slow link. What is sent arrives
before the servers are paused. A receiver that has another file than a delta starts from, or none,
gets the file whole; what it loads has the checksums of what was written here.

Not here: deltas and the receiver (`katgym.vllm_server.weight_delta`, `weight_receiver`); files in
a folder that everybody sees (`reload_sync.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import httpx

from katgym.errors import PolicyError, UsageError
from katgym.vllm_server.weight_delta import read_header, sha256_of, write_delta
from katgym.vllm_server.weight_receiver import DELTA_HEADER, KEY_VARIABLE
from katgym_trainer.weight_sync.folder_sync import version_folder
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.weight_sync import ReadyWeights, SyncOptions, SyncTimes, all_of

logger = logging.getLogger(__name__)

DELTA = ".delta"
"""How the name of a delta ends; it stands beside the file that it gives."""
_READ_BYTES = 4 << 20


class DeltaSync(ReloadSync):
    """All weights, for servers started with `--rl` that have a receiver on their machine.

    receivers: their URLs, one for each server; their key is in KATGYM_RECEIVER_KEY. folder: for the
    versions; the trainer's alone.
    num_sent_bytes: of all files and deltas so far.
    """

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        receivers: Sequence[str],
        folder: Path,
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, served_name, folder=folder, **options)
        if len(receivers) != len(urls):
            raise UsageError(f"{len(urls)} servers have {len(receivers)} receivers: give each one")
        key = os.environ.get(KEY_VARIABLE, "")
        self.num_sent_bytes = 0
        self._clients = [
            httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=self.timeout_s,
            )
            for url in receivers
        ]
        self._places: list[str] = []
        """Where each server reads the version that it gets next."""

    async def prepare(self, model: Any, version: int) -> None:
        await super().prepare(model, version)
        await asyncio.to_thread(write_deltas, self.folder, version)

    async def deliver(self, weights: ReadyWeights, **options: Any) -> SyncTimes:
        """Send what receivers lack, then do as any sync."""
        folder = version_folder(self.folder, weights.version)
        files = await asyncio.to_thread(read_checksums, folder)
        self._places = await all_of(self._send(client, folder, files) for client in self._clients)
        return await super().deliver(weights, **options)

    async def update(self, model: Any, version: int) -> None:
        await all_of(
            control.reload_weights(Path(place), timeout_s=self.timeout_s)
            for control, place in zip(self.controls, self._places, strict=True)
        )

    async def aclose(self) -> None:
        await all_of(client.aclose() for client in self._clients)
        await super().aclose()

    async def _send(self, client: httpx.AsyncClient, folder: Path, files: dict[str, str]) -> str:
        """Send a version; return where the server reads it."""
        known = (await self._ask(client, "GET", "/weights"))["files"]
        for name, checksum in files.items():
            if known.get(name) == checksum:
                continue
            delta = delta_file(folder, name)
            if delta.exists():
                header = await asyncio.to_thread(read_header, delta)
                if (header.base_sha256, header.result_sha256) == (known.get(name), checksum):
                    try:
                        await self._put(client, folder, name, delta)
                        continue
                    except _ConflictError as e:
                        logger.warning("%s takes no delta, and gets the file: %s", e.url, e)
            await self._put(client, folder, name, folder / name)
        told = await self._ask(client, "POST", f"/weights/{folder.name}", json={"files": files})
        return str(told["folder"])

    async def _put(self, client: httpx.AsyncClient, folder: Path, name: str, file: Path) -> None:
        num_bytes = (await asyncio.to_thread(file.stat)).st_size
        headers = {"content-length": str(num_bytes)}
        if file.suffix == DELTA:
            headers[DELTA_HEADER] = "1"
        path = f"/weights/{folder.name}/{name}"
        await self._ask(client, "PUT", path, content=_read_pieces(file), headers=headers)
        self.num_sent_bytes += num_bytes

    async def _ask(
        self, client: httpx.AsyncClient, method: str, path: str, **options: Any
    ) -> dict[str, Any]:
        url = f"{client.base_url}".rstrip("/") + path
        try:
            answer = await client.request(method, path, **options)
            told: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as e:
            raise PolicyError(
                f"no weight receiver answers at {url} ({type(e).__name__}: {e}). Start one where"
                " the server runs: katgym vllm receive FOLDER HOST:PORT"
            ) from e
        if answer.status_code == httpx.codes.CONFLICT:
            raise _ConflictError(f"{url} refused it: {told.get('error')}", url=url)
        if answer.status_code != httpx.codes.OK:
            raise WeightSyncError(f"{url} answered {answer.status_code}: {told.get('error')}")
        return told


class _ConflictError(WeightSyncError):
    """A receiver has another file than it was thought to have."""

    def __init__(self, text: str, *, url: str) -> None:
        super().__init__(text)
        self.url = url


async def _read_pieces(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while piece := await asyncio.to_thread(opened.read, _READ_BYTES):
            yield piece


def delta_file(folder: Path, name: str) -> Path:
    """Return where the delta of a version's file is, if there is one."""
    return folder / f"{name}{DELTA}"


def write_deltas(folder: Path, version: int) -> None:
    """Write a version's deltas against the newest version before it that is there."""
    numbers = [int(p.name[1:]) for p in folder.iterdir() if re.fullmatch(r"v\d+", p.name)]
    before = max((number for number in numbers if number < version), default=None)
    if before is None:
        return
    base, result = version_folder(folder, before), version_folder(folder, version)
    for file in result.glob("*.safetensors"):
        old, delta = base / file.name, delta_file(result, file.name)
        if old.exists() and old.stat().st_size == file.stat().st_size:
            write_delta(old, file, delta)
            if delta.stat().st_size >= file.stat().st_size:
                delta.unlink()


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of what a server reads of a version."""
    files = (path for path in sorted(folder.iterdir()) if path.suffix != DELTA)
    return {path.name: sha256_of(path) for path in files if path.is_file()}
