"""Checkpoints: folders that are written whole, and read only if every byte is as it was written.

A folder `step-000012` holds `weights.safetensors` (trained weights, float32 masters where there are
some), `optimizer.safetensors`, `random.safetensors`, `state.json`, and `manifest.json` with the
SHA-256 of the others; of several ranks folders `weights` and `optimizer`, in which each rank wrote
its pieces. Any number of ranks reads either. Nothing in it is unpickled. Not here: what is saved
(`trainer.py`), models for others to load (`Trainer.save_pretrained`).
"""

from __future__ import annotations

import contextlib
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
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.saving import sharded_files
from katgym_trainer.saving.atomic_folders import REPLACED, new_folder, remove_unfinished

_FORMAT = 1
_NAME = re.compile(rf"step-(\d{{6,}})({re.escape(REPLACED)})?")
_TENSORS = {"weights": "weights.safetensors", "optimizer": "optimizer.safetensors",
            "random": "random.safetensors"}  # fmt: skip
_STATE = "state.json"
_MANIFEST = "manifest.json"
_KINDS = frozenset({*_TENSORS, "state"})


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


def save(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    max_checkpoints: int | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint into a folder of checkpoints and return its own folder.

    max_checkpoints: how many of the newest to keep, this one among them; None keeps all. The one
        that was written is kept in any case.
    ranks: which all call this, each with its pieces of the tensors.

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
    target = folder / f"step-{checkpoint.state['num_steps']:06d}"
    if ranks.is_first:
        remove_unfinished(folder, "step-")
    with contextlib.ExitStack() as stack:
        made = ranks.on_first(lambda: stack.enter_context(new_folder(target)))
        sums = ranks.together(lambda: _write_tensors(checkpoint, made, ranks))
        everywhere = {file: digest for each in ranks.gather(sums) for file, digest in each.items()}
        if ranks.is_first:
            (made / _STATE).write_text(text)
            everywhere[_STATE] = _sha256(made / _STATE)
            manifest = {"format": _FORMAT, "sha256": dict(sorted(everywhere.items()))}
            (made / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    if ranks.is_first:
        _remove_older(target, max_checkpoints)
    ranks.together(lambda: None)  # it is there when any of them goes on
    return target


def _write_tensors(checkpoint: Checkpoint, made: Path, ranks: Ranks) -> dict[str, str]:
    """Write this rank's tensors; return the SHA-256 of some of the files, by name."""
    for name, file in _TENSORS.items():
        tensors: Mapping[str, Tensor] = getattr(checkpoint, name)
        if name != "random" and ranks.num > 1:
            sharded_files.write(tensors, made / name, ranks=ranks)
        elif ranks.is_first:
            kept = {key: value.detach().contiguous() for key, value in tensors.items()}
            save_file(kept, made / file)
    ranks.gather(None)  # all files are there
    files = sorted(path for path in made.rglob("*") if path.is_file())
    return {str(path.relative_to(made)): _sha256(path) for path in files[ranks.number :: ranks.num]}


def _remove_older(target: Path, max_checkpoints: int | None) -> None:
    """Delete the oldest beside the one that was written, if that is as it should be."""
    folder = target.parent
    if max_checkpoints is not None:
        # The older ones go once the one that was written is read back as it should be.
        if (problem := _problem(target)) is not None:
            raise CheckpointError(f"checkpoint {str(target)!r} was written, and {problem}")
        for path in _all(folder)[:-max_checkpoints]:
            if path != target:
                shutil.rmtree(path)


def load(
    folder: Path, *, ranks: Ranks = ALONE, like: sharded_files.Like | None = None
) -> Checkpoint:
    """Read a checkpoint, on the CPU; `CheckpointError` if a file is not as it was written.

    ranks: which all call this. like: what this one wants of each tensor; None: all of it.

    It does not protect from somebody who writes another manifest.
    """
    problem = ranks.on_first(lambda: _problem(folder))
    if problem is not None:
        others = (path for path in reversed(_all(folder.parent)) if path != folder)
        good = next((path for path in others if _problem(path) is None), None)
        if good is None:
            hint = "there is no good checkpoint beside it"
        else:
            hint = f"the last good checkpoint beside it is {str(good)!r}"
        raise CheckpointError(f"checkpoint {str(folder)!r} cannot be used: {problem}; {hint}")
    tensors = {}
    for name, file in _TENSORS.items():
        is_whole = (folder / file).exists() and (name == "random" or like is None)
        if is_whole:
            tensors[name] = load_file(folder / file)
        else:
            tensors[name] = sharded_files.read(folder, name, like=like, ranks=ranks)
    return Checkpoint(**tensors, state=json.loads((folder / _STATE).read_text()))


def choose(path: Path) -> Path:
    """Return a path that is named as checkpoints are, or the latest checkpoint in the folder."""
    return path if _NAME.fullmatch(path.name) else latest(path)


def latest(folder: Path) -> Path:
    """Return the checkpoint of the most steps in a folder, good or not.

    Raises `CheckpointError` if there is none.
    """
    if (found := newest(folder)) is None:
        raise CheckpointError(f"there is no checkpoint in {str(folder)!r}")
    return found


def newest(folder: Path) -> Path | None:
    """Return the checkpoint of the most steps in a folder, good or not; None: there is none."""
    return next(reversed(_all(folder)), None)


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
    kinds = {str(file).partition("/")[0].partition(".")[0] for file in sums or ()}
    if not isinstance(sums, dict) or kinds != _KINDS:
        return f"{_MANIFEST!r} does not list {', '.join(sorted([*_TENSORS.values(), _STATE]))}"
    for file, wanted in sums.items():
        if not (folder / file).is_file():
            return f"{file!r} is missing"
        if _sha256(folder / file) != wanted:
            return f"{file!r} is not as it was written (its SHA-256 differs)"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
