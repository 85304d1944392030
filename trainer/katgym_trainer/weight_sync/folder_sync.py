"""`FolderSync`: ways of weights through folders `v1`, `v2`, ... that trainer and servers see.

Not here: writing folders whole (`katgym_trainer.saving.atomic_folders`), what is in them
(`lora_sync.py`, `reload_sync.py`).
"""

from __future__ import annotations

import abc
import asyncio
import re
import secrets
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Unpack

from katgym_trainer.saving.atomic_folders import new_folder
from katgym_trainer.weight_sync.weight_sync import SyncOptions, WeightSync


class FolderSync(WeightSync):
    """Writes weights before the servers are paused; they read them while they are.

    folder: for the versions; this sync's own, and on every server's machine at the same path.
    """

    def __init__(
        self,
        urls: Sequence[str],
        served_name: str,
        *,
        folder: Path,
        **options: Unpack[SyncOptions],
    ) -> None:
        super().__init__(urls, served_name, **options)
        self.folder = folder.absolute()

    @abc.abstractmethod
    def write(self, model: Any, folder: Path) -> None:
        """Write what servers read of a model into an empty folder."""

    async def prepare(self, model: Any, version: int) -> None:
        def write() -> None:
            with new_folder(version_folder(self.folder, version)) as fresh:
                self.write(model, fresh)

        await asyncio.to_thread(write)

    async def clean_up(self, keep: Collection[int]) -> None:
        await asyncio.to_thread(remove_versions, self.folder, keep)


def version_folder(folder: Path, version: int) -> Path:
    """Return where a version's weights are."""
    return folder / f"v{version}"


def mark_folder(folder: Path) -> Path:
    """Return a file that tells whoever reads its name in it that he sees this folder, no copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(".seen-*"):
        old.unlink(missing_ok=True)
    file = folder.absolute() / f".seen-{secrets.token_hex(8)}"
    file.write_text(file.name, encoding="utf-8")
    return file


def remove_versions(folder: Path, keep: Collection[int]) -> None:
    """Delete all versions but some, and what killed writers left."""
    kept = {version_folder(folder, version).name for version in keep}
    for path in folder.iterdir():
        is_version = re.fullmatch(r"v\d+(\.replaced)?|\.unfinished-v\d+-.*", path.name)
        if is_version and path.name not in kept and path.is_dir():
            shutil.rmtree(path)
