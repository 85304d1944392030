"""`LoraSync`: the adapter alone, through a folder that trainer and servers see.

The servers know one path, a link; a version is a folder beside it. They keep the weights below the
adapter, so a server may sleep only as deep as leaves it those. While they are paused the link
is pointed at the new folder, and they are told to forget what they read: the next request that uses
the adapter, frozen or new, reads it.

Not here: all weights (`reload_sync.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from katgym.vllm_server.control import VllmControl
from katgym_trainer.saving.atomic_folders import new_folder
from katgym_trainer.weight_sync.probe import ProbeConfig, WeightSyncError
from katgym_trainer.weight_sync.served_weights import write_adapter
from katgym_trainer.weight_sync.version_folders import remove_versions, version_folder
from katgym_trainer.weight_sync.weight_sync import WeightSync, all_of


class LoraSync(WeightSync):
    """Adapters, for servers started with `--lora --rl`.

    adapter: its name there; clients sample from it as from a model. folder: for its versions;
    this sync's own, and on every server's machine at the same path. link_name: of the link in it;
    syncs that share a folder each have one.
    """

    def __init__(
        self,
        urls: Sequence[str],
        adapter: str,
        *,
        folder: Path,
        link_name: str = "current",
        probe: ProbeConfig | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__(urls, adapter, probe=probe, timeout_s=timeout_s)
        self.folder = folder.absolute()
        self.link = self.folder / link_name

    async def prepare(self, model: Any, version: int) -> None:
        def write() -> None:
            with new_folder(version_folder(self.folder, version)) as fresh:
                write_adapter(model, fresh)

        await asyncio.to_thread(write)

    async def update(self, model: Any, version: int) -> None:
        new = self.folder / f"{self.link.name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(version_folder(self.folder, version).name)
        new.replace(self.link)

        async def exchange_adapter(control: VllmControl) -> None:
            card = (await control.models()).get(self.served_name)
            if card is None:
                await control.load_lora(self.served_name, self.link)
            elif card.get("root") == str(self.link):
                await control.forget_loras()
            else:
                raise WeightSyncError(
                    f"{control.http.base_url} serves {self.served_name!r} from"
                    f" {card.get('root')!r}, not from this sync's {str(self.link)!r}: give the"
                    " adapter another name"
                )

        await all_of(map(exchange_adapter, self.controls))

    async def clean_up(self, version: int) -> None:
        await asyncio.to_thread(remove_versions, self.folder, but=version)
