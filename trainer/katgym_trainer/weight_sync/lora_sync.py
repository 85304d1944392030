"""`LoraSync`: the adapter alone, through a folder that trainer and servers see.

The servers know one path, a link; a version is a folder beside it. They keep the weights below the
adapter, so a server may sleep only as deep as leaves it those. While they are paused the link
is pointed at the new folder, and they are told to forget what they read: the next request that uses
the adapter, frozen or new, reads it.

Not here: all weights (`reload_sync.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from katgym.vllm_server.control import VllmControl
from katgym_trainer.weight_sync.folder_sync import FolderSync, version_folder
from katgym_trainer.weight_sync.probe import WeightSyncError
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import SyncOptions, all_of


class LoraSync(FolderSync):
    """Adapters, for servers started with `--lora --rl`.

    adapter: its name there; clients sample from it as from a model. link_name: of the link in the
    folder; syncs that share a folder each have one.
    """

    def __init__(
        self,
        urls: Sequence[str],
        adapter: str,
        *,
        folder: Path,
        link_name: str = "current",
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, adapter, folder=folder, **options)
        self.link = self.folder / link_name

    def write(self, model: Any, folder: Path) -> None:
        ServedModel.of(model).write_adapter(folder)

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
