"""`LoraSync`: the adapter alone, through a folder that trainer and servers see, without a pause.

A version is an adapter with a name of its own, `mine@v7-5e0c1f2a`, loaded beside those before it.
It is probed before anybody asks for it. Then clients get name and version together: what they ask
from there on is the new adapter's, and requests that run end with the one they began with, all of
one version. An adapter is unloaded a sync later, or when no request has it any more.

A name tells the weights apart, too: a server's prefix cache goes by it, and a run that was killed
takes its last steps again.

Not here: all weights (`reload_sync.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from katgym.errors import PolicyError
from katgym.vllm_server.control import VllmControl
from katgym_trainer.weight_sync.folder_sync import FolderSync, version_folder
from katgym_trainer.weight_sync.pause import Pause
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import (
    Gate,
    ReadyWeights,
    SyncOptions,
    SyncTimes,
    Versioned,
    all_of,
)

logger = logging.getLogger(__name__)


class LoraSync(FolderSync):
    """Adapters, for servers started with `--lora --rl`.

    adapter: what names of versions begin with; `served_name` is the newest one's once there is one.
    Servers sample from as many versions at a time as they were given `max_loras`; requests of
    more wait there until one has none left.
    """

    def __init__(
        self, urls: Sequence[str], adapter: str, *, folder: Path, **options: Unpack[SyncOptions]
    ) -> None:
        super().__init__(urls, adapter, folder=folder, **options)
        self.adapter = adapter
        self._held: dict[str, int] = {}
        """Versions by name that a server has, or may have."""
        self._loaded = ""
        """Name of the version that was loaded last."""

    @property
    def held_versions(self) -> set[int]:
        return {*self._held.values()}

    def write(self, model: Any, folder: Path) -> None:
        ServedModel.of(model).write_adapter(folder)

    async def update(self, model: Any, version: int) -> None:
        path = version_folder(self.folder, version)
        name = await asyncio.to_thread(name_version, self.adapter, path, version)
        self._held[name], self._loaded = version, name

        async def load(control: VllmControl) -> None:
            if name not in await control.models():  # else a run that was killed got as far
                await control.load_lora(name, path)

        await all_of(map(load, self.controls))

    async def deliver(
        self,
        weights: ReadyWeights,
        *,
        policies: Iterable[Versioned] = (),
        gates: Sequence[Gate] = (),
        pause: Pause | None = None,
    ) -> SyncTimes:
        """Give all servers an adapter that is ready, check it, and have clients ask for it.

        pause: of servers that sleep; None for those that sample, which go on. After a failure
        clients ask for the adapter that they asked for before.
        """
        start, before, policies = time.perf_counter(), self.served_name, list(policies)
        # 1. Load it. Servers that sleep wake for that.
        try:
            if pause is not None:
                await all_of(pause.begin(control) for control in self.controls)
            await self.update(weights.model, weights.version)
        finally:
            if pause is not None:
                await self.end_pause(pause, policies)
        loaded = time.perf_counter()

        # 2. Look whether they have it, while nobody else asks for it.
        name = self._loaded
        try:
            differences = await all_of(
                weights.probe.check(control, name) for control in self.controls
            )
        except BaseException:
            if name != before:
                with contextlib.suppress(PolicyError):
                    await all_of(control.unload_lora(name) for control in self.controls)
            raise
        probed = time.perf_counter()

        # 3. Everybody asks for it from here on.
        self.served_name, self.version = name, weights.version
        for policy in policies:
            self.tell(policy)
        await all_of(gate.resume(self.version, name) for gate in gates)
        flipped = time.perf_counter()

        # 4. Those that nobody asks for any more are unloaded.
        await self._unload_old({before, name})
        return SyncTimes(
            prepare_s=weights.prepare_s,
            pause_s=0.0,
            update_s=loaded - start,
            resume_s=flipped - probed,
            probe_s=probed - loaded,
            difference=max(differences),
            has_paused=False,
        )

    def tell(self, policy: Versioned) -> None:
        policy.use_adapter(self.served_name, self.version)

    async def _unload_old(self, kept: set[str]) -> None:
        """Unload this sync's adapters but some, and those that requests have."""
        held: dict[str, int] = {}

        async def unload(control: VllmControl) -> None:
            found = self._own_versions(await control.models())
            in_use = await control.loras_in_use()
            for name, version in found.items():
                if name in kept or name in in_use:
                    held[name] = version
                else:
                    await control.unload_lora(name)

        try:
            await all_of(map(unload, self.controls))
        except PolicyError as e:  # they are there at the next sync, or the server is not
            logger.warning("old adapters are still loaded: %s", e)
            held |= self._held
        self._held = held

    def _own_versions(self, cards: dict[str, dict[str, Any]]) -> dict[str, int]:
        """Return the version of each adapter that a sync into this folder has loaded."""
        versions: dict[str, int] = {}
        for name, card in cards.items():
            path = Path(str(card.get("root")))
            number = re.fullmatch(r"v(\d+)", path.name)
            if path.parent == self.folder and name.startswith(f"{self.adapter}@") and number:
                versions[name] = int(number[1])
        return versions


def name_version(adapter: str, folder: Path, version: int) -> str:
    """Return the name of a version: another one for other weights, and for another folder."""
    digest = hashlib.blake2b(str(folder).encode(), digest_size=4)
    try:
        for file in sorted(folder.iterdir()):
            digest.update(file.read_bytes())
    except OSError as e:
        raise WeightSyncError(f"the adapter in {str(folder)!r} cannot be read: {e}") from e
    return f"{adapter}@v{version}-{digest.hexdigest()}"
