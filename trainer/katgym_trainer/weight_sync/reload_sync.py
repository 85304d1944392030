"""`ReloadSync`: all weights, through a folder of safetensors that trainer and servers see.

Works on every device, with one server or many; adapters are merged. Writing happens before the
servers are paused, reading while they are.

Not here: adapters alone (`lora_sync.py`); weights that touch no disk (`transfer_sync.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from katgym.vllm_server.control import SleepLevel
from katgym_trainer.saving.atomic_folders import new_folder
from katgym_trainer.weight_sync.probe import ProbeConfig
from katgym_trainer.weight_sync.served_weights import write_weights
from katgym_trainer.weight_sync.version_folders import remove_versions, version_folder
from katgym_trainer.weight_sync.weight_sync import WeightSync, all_of


class ReloadSync(WeightSync):
    """All weights, for servers started with `--rl`.

    folder: for the versions; this sync's own, and on every server's machine at the same path.
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
        probe: ProbeConfig | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__(urls, served_name, probe=probe, timeout_s=timeout_s)
        self.folder = folder.absolute()
        self.should_repeat_head = should_repeat_head
        self.timeout_s = timeout_s

    async def prepare(self, model: Any, version: int) -> None:
        await asyncio.to_thread(self._write, model, version)

    def _write(self, model: Any, version: int) -> None:
        with new_folder(version_folder(self.folder, version)) as fresh:
            write_weights(model, fresh, should_repeat_head=self.should_repeat_head)

    async def update(self, model: Any, version: int) -> None:
        path = version_folder(self.folder, version)
        await all_of(
            control.reload_weights(path, timeout_s=self.timeout_s) for control in self.controls
        )

    async def clean_up(self, version: int) -> None:
        await asyncio.to_thread(remove_versions, self.folder, but=version)
