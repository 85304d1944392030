"""Checkpoints: folders that are written whole, and read only if every byte is as it was written.

A folder `step-000012` holds `weights.safetensors` (trained weights, float32 masters where there are
some), `optimizer.safetensors`, `random.safetensors`, `state.json`, and `manifest.json` with the
SHA-256 of the others. Nothing in it is unpickled. Not here: what is saved (`trainer.py`), models
for others to load (`Trainer.save_pretrained`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from katgym.errors import UsageError
from katgym_trainer.config.rules import Count, check_value
from katgym_trainer.saving.atomic_folders import REPLACED, new_folder, remove_unfinished

_FORMAT = 1
_NAME = re.compile(rf"step-(\d{{6,}})({re.escape(REPLACED)})?")
_TENSORS = {"weights": "weights.safetensors", "optimizer": "optimizer.safetensors",
            "random": "random.safetensors"}  # fmt: skip
_STATE = "state.json"
_MANIFEST = "manifest.json"
_FILES = frozenset({*_TENSORS.values(), _STATE})


class CheckpointError(UsageError):
    """A checkpoint that cannot be used; the text names the file and the last good one beside it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """What a folder holds."""

    weights: Mapping[str, Tensor]
    """By parameter."""
    optimizer: Mapping[str, Tensor]
    """See `Optimizer.state_dict`."""
    random: Mapping[str, Tensor]
    """States of torch's generators, by device."""
    state: Mapping[str, Any]
    """JSON values; `num_steps` is among them."""


def save(checkpoint: Checkpoint, folder: Path, *, max_checkpoints: int | None = None) -> Path:
    """Write a checkpoint into a folder of checkpoints and return its own folder.

    max_checkpoints: how many of the newest to keep, this one among them; None keeps all. The one
        that was written is kept in any case.

    One of the same step is replaced. A process killed half way leaves those that were there.
    Raises `UsageError` for a state that JSON cannot hold, `InfrastructureError` if the disk fails.
    Not for two processes at once.
    """
    check_value("max_checkpoints", max_checkpoints, Count | None, UsageError)
    try:
        text = json.dumps(checkpoint.state, indent=1, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise UsageError(f"the state of a checkpoint is plain JSON: {e}") from e
    if json.loads(text) != checkpoint.state:
        raise UsageError(
            f"the state of a checkpoint is plain JSON (no tuples, names are strings), got"
            f" {checkpoint.state!r}"
        )
    remove_unfinished(folder, "step-")
    target = folder / f"step-{checkpoint.state['num_steps']:06d}"
    with new_folder(target) as made:
        for name, file in _TENSORS.items():
            tensors: Mapping[str, Tensor] = getattr(checkpoint, name)
            save_file(
                {key: value.detach().contiguous() for key, value in tensors.items()}, made / file
            )
        (made / _STATE).write_text(text)
        sums = {file: _sha256(made / file) for file in sorted(_FILES)}
        manifest = {"format": _FORMAT, "sha256": sums}
        (made / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    if max_checkpoints is not None:
        # The older ones go once the one that was written is read back as it should be.
        if (problem := _problem(target)) is not None:
            raise CheckpointError(f"checkpoint {str(target)!r} was written, and {problem}")
        for path in _all(folder)[:-max_checkpoints]:
            if path != target:
                shutil.rmtree(path)
    return target


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint, on the CPU; `CheckpointError` if a file is not as it was written.

    It does not protect from somebody who writes another manifest.
    """
    problem = _problem(folder)
    if problem is not None:
        others = (path for path in reversed(_all(folder.parent)) if path != folder)
        good = next((path for path in others if _problem(path) is None), None)
        if good is None:
            hint = "there is no good checkpoint beside it"
        else:
            hint = f"the last good checkpoint beside it is {str(good)!r}"
        raise CheckpointError(f"checkpoint {str(folder)!r} cannot be used: {problem}; {hint}")
    tensors = {name: load_file(folder / file) for name, file in _TENSORS.items()}
    return Checkpoint(**tensors, state=json.loads((folder / _STATE).read_text()))


def choose(path: Path) -> Path:
    """Return a path that is named as checkpoints are, or the latest checkpoint in the folder."""
    return path if _NAME.fullmatch(path.name) else latest(path)


def latest(folder: Path) -> Path:
    """Return the checkpoint of the most steps in a folder, good or not.

    Raises `CheckpointError` if there is none.
    """
    found = _all(folder)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {str(folder)!r}")
    return found[-1]


def last_whole(folder: Path) -> Path:
    """Return the newest checkpoint of a folder whose files are as they were written.

    Raises `CheckpointError` if there is none.
    """
    for path in reversed(_all(folder)):
        if _problem(path) is None:
            return path
    raise CheckpointError(f"there is no good checkpoint in {str(folder)!r}")


def step_of(path: Path) -> int:
    """Return the optimizer steps that a checkpoint's name says."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def _all(folder: Path) -> list[Path]:
    """Return a folder's checkpoints, by steps.

    One that was about to be replaced counts if its successor never got its name.
    """
    found: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        step, is_replaced = int(match[1]), match[2] is not None
        if step not in found or not is_replaced:
            found[step] = path
    return [found[step] for step in sorted(found)]


def _problem(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint's files; None: nothing."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        return f"{_MANIFEST!r} is missing"
    except ValueError:
        return f"{_MANIFEST!r} is not JSON"
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        return f"{_MANIFEST!r} is not of format {_FORMAT}"
    sums = manifest.get("sha256")
    if not isinstance(sums, dict) or sums.keys() != _FILES:
        return f"{_MANIFEST!r} does not list {', '.join(sorted(_FILES))}"
    for file, wanted in sums.items():
        if not (folder / file).is_file():
            return f"{file!r} is missing"
        if _sha256(folder / file) != wanted:
            return f"{file!r} is not as it was written (its SHA-256 differs)"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
