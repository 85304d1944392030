"""Files of a model's weights, as transformers and peft write them, also by ranks that hold pieces.

Not here: whole folders, all or nothing (`models/pretrained.py`), a trainer's state
(`checkpoints.py`).
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from katgym_trainer.models.progress_bars import no_progress_bars
from katgym_trainer.ranks.ranks import ALONE, Ranks, whole

INDEX = "model.safetensors.index.json"
MAX_FILE_BYTES = 4 * 2**30
"""Of weights that each of several ranks holds at a time, and the layer that goes beyond it."""
_LAYER = re.compile(r".*?\.\d+\.")
"""How the names of one layer's weights begin."""


def write_weights(
    model: Any,
    folder: Path,
    *,
    ranks: Ranks = ALONE,
    dtype: torch.dtype = torch.float32,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write config and weights, adapters merged, by the names that a checkpoint has.

    A file has about `max_file_bytes`. Alone it is as transformers does it. Of several ranks all
    gather whole layers for a file, which one of them keeps; when each keeps as many, all write at
    once.
    """
    base, named = model, None
    if hasattr(model, "get_base_model"):
        from katgym_trainer.models.adapters import merged_weights  # imports peft

        base, named = model.get_base_model(), merged_weights(model)
    if ranks.num == 1:
        options = {} if named is None else {"state_dict": dict(named)}
        with no_progress_bars():
            base.save_pretrained(folder, max_shard_size=max_file_bytes, **options)
        return
    # A tied weight is written once.
    every = base.named_parameters(remove_duplicate=False)
    tied = {name for name, _ in every} - {name for name, _ in base.named_parameters()}
    own = ((n, t) for n, t in named or base.state_dict().items() if n not in tied)
    parts: list[Path] = []
    kept: dict[Path, dict[str, torch.Tensor]] = {}
    for state in _file_states(own, ranks, dtype, max_file_bytes):
        parts.append(folder / f"part-{len(parts)}")
        if state:
            kept[parts[-1]] = state
        if len(parts) % ranks.num == 0:
            ranks.together(functools.partial(_write_parts, base, kept, dtype))
    ranks.together(functools.partial(_write_parts, base, kept, dtype))
    ranks.on_first(lambda: join_parts(parts, folder))


def write_adapters(
    model: Any, folder: Path, *, ranks: Ranks = ALONE, dtype: torch.dtype = torch.float32
) -> None:
    """Write the adapters alone, as peft does."""
    options = {}
    if ranks.num > 1:
        kept = {n: t for n, t in model.state_dict().items() if "lora_" in n or "_to_save" in n}
        (state,) = _file_states(kept.items(), ranks, dtype, sys.maxsize)
        options = {"state_dict": state}
    with no_progress_bars():
        ranks.together(lambda: model.save_pretrained(folder, **options) if ranks.is_first else None)


def _file_states(
    named: Iterable[tuple[str, torch.Tensor]], ranks: Ranks, dtype: torch.dtype, max_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield a file's tensors at a time, whole, on the CPU of one rank, the first one first.

    Nothing on the others.
    """
    held: dict[str, torch.Tensor] = {}
    num_bytes, layer, number = 0, "", 0
    for name, tensor in named:
        found = _LAYER.match(name)
        is_same = found is not None and found[0] == layer
        layer = found[0] if found else ""
        # What transformers splits or joins as it writes is in one layer.
        if num_bytes >= max_bytes and not is_same:
            yield held
            held, num_bytes, number = {}, 0, number + 1
        full = whole(tensor.detach())
        kind = dtype if full.is_floating_point() else full.dtype
        num_bytes += full.numel() * kind.itemsize
        if number % ranks.num == ranks.number:
            held[name] = full.to("cpu", kind)
    yield held


def _write_parts(model: Any, kept: dict[Path, dict[str, torch.Tensor]], dtype: torch.dtype) -> None:
    """Write files of weights, and let go of them.

    Each with a config that says what they are: pieces in training are wider.
    """
    model.should_save_on_this_rank = lambda is_main_process: (
        is_main_process
    )  # not on the first alone
    try:
        while kept:
            part, state = kept.popitem()
            with no_progress_bars():
                model.save_pretrained(part, state_dict=state, max_shard_size="100TB")
            file = part / "config.json"
            config = json.loads(file.read_text())
            key = "dtype" if "dtype" in config else "torch_dtype"
            config[key] = str(dtype).removeprefix("torch.")
            file.write_text(json.dumps(config, indent=2) + "\n")
    finally:
        del model.should_save_on_this_rank


def join_parts(parts: Sequence[Path], folder: Path) -> None:
    """Make one folder of those with a file of weights each: files, and an index of several."""
    places: dict[str, str] = {}
    num_bytes = 0
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}" if len(parts) > 1 else "model"
        weights = (part / "model.safetensors").rename(folder / f"{name}.safetensors")
        for file in part.iterdir():
            file.replace(folder / file.name)
        part.rmdir()
        num_bytes += weights.stat().st_size
        with safe_open(weights, framework="pt") as opened:
            places |= dict.fromkeys(opened.keys(), weights.name)
    if len(parts) > 1:
        index = {"metadata": {"total_size": num_bytes}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
