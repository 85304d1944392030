"""`ReloadSync`: all weights, through a folder of safetensors that trainer and servers see.

Works on every device, with one server or many; adapters are merged.

Not here: adapters alone (`lora_sync.py`); weights that touch no disk (`transfer_sync.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

from katgym.vllm_server.control import SleepLevel
from katgym_trainer.weight_sync.folder_sync import FolderSync, version_folder
from katgym_trainer.weight_sync.served_weights import ServedModel
from katgym_trainer.weight_sync.weight_sync import SyncOptions, all_of


class ReloadSync(FolderSync):
    """All weights, for servers started with `--rl`.

    should_repeat_head: send a tied LM head as well; without it a server of vLLM 0.32 keeps its old
    one, and the probe fails.
    """

    sleep_level: ClassVar[SleepLevel] = 2

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        folder: Path,
        should_repeat_head: bool = True,
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, served_name, folder=folder, **options)
        self.should_repeat_head = should_repeat_head

    def write(self, model: Any, folder: Path) -> None:
        ServedModel.of(model).write(folder, should_repeat_head=self.should_repeat_head)

    async def update(self, model: Any, version: int) -> None:
        path = version_folder(self.folder, version)
        await all_of(
            control.reload_weights(path, timeout_s=self.timeout_s) for control in self.controls
        )
