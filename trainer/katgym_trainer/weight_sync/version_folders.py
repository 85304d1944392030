"""Folders `v1`, `v2`, ... that hold the weights of a version each.

Not here: writing them whole (`katgym_trainer.saving.atomic_folders`).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def version_folder(folder: Path, version: int) -> Path:
    """Return where a version's weights are."""
    return folder / f"v{version}"


def remove_versions(folder: Path, *, but: int) -> None:
    """Delete all versions but one, and what killed writers left."""
    keep = version_folder(folder, but).name
    for path in folder.iterdir():
        is_version = re.fullmatch(r"v\d+(\.replaced)?|\.unfinished-v\d+-.*", path.name)
        if is_version and path.name != keep and path.is_dir():
            shutil.rmtree(path)
