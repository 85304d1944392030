"""Tensors that lie in pieces on all ranks, as safetensors of which each rank writes its own (DCP).

They are read by any number of ranks: each takes what its pieces are, from whichever files hold it,
those of one process among them. Nothing is pickled. Not here: whole checkpoints (`checkpoints.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from katgym_trainer.ranks.ranks import Ranks

Like = Callable[[str, torch.Size], Tensor | None]
"""Of a tensor's name and shape: one that has the pieces this rank wants; None: it is unknown."""


def write(tensors: Mapping[str, Tensor], folder: Path, *, ranks: Ranks) -> None:
    """Write this rank's pieces into a folder; all ranks call it."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    kept = {name: tensor.detach() for name, tensor in tensors.items()}
    save(kept, storage_writer=writer, process_group=ranks.group)


def read(folder: Path, kind: str, *, like: Like | None, ranks: Ranks) -> dict[str, Tensor]:
    """Return the tensors of `folder/kind/` or `folder/kind.safetensors`; all ranks call it.

    like: what this rank wants of each; None: all of it. One that is unknown comes without content,
        for its name and shape to be told.
    """
    place, file = folder / kind, folder / f"{kind}.safetensors"
    names: set[str] | None = None
    if file.exists():
        place = folder
        with safe_open(file, framework="pt") as opened:
            names = set(opened.keys())
    reader = HuggingFaceStorageReader(str(place))
    found, wanted = {}, {}
    for name, told in reader.read_metadata().state_dict_metadata.items():
        is_other = names is not None and name not in names
        if is_other or not isinstance(told, TensorStorageMetadata):
            continue
        tensor = torch.empty(told.size, dtype=told.properties.dtype) if like is None else None
        if like is not None and (similar := like(name, told.size)) is not None:
            tensor = torch.empty_like(similar)
        if tensor is None:
            found[name] = torch.empty(told.size, device="meta")
        else:
            found[name] = wanted[name] = tensor
    is_alone = ranks.num == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is to be
        load(wanted, storage_reader=reader, process_group=ranks.group, no_dist=is_alone)
    return found


def pieces_like(masters: Mapping[str, Tensor], ranks: Ranks) -> Like | None:
    """Return what a rank has of its weights, and of each entry of optimizer state; alone None."""
    if ranks.num == 1:
        return None

    def like(name: str, shape: torch.Size) -> Tensor | None:
        if name.endswith(".step") and not shape:
            return torch.empty(())
        for known in (name, name.rpartition(".")[0]):
            if known in masters and masters[known].shape == shape:
                return masters[known]
        return None

    return like
