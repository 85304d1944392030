"""Models of transformers in the trainer's hands: loaded, prepared, saved as folders.

Not here: adapters (`adapters.py`), running models on forests (`hugging_face.py`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from katgym.errors import UsageError
from katgym_trainer.models.hugging_face import NAME
from katgym_trainer.models.progress_bars import no_progress_bars
from katgym_trainer.ranks.ranks import ALONE, Ranks, whole
from katgym_trainer.saving.atomic_folders import new_folder

INDEX = "model.safetensors.index.json"
MAX_FILE_BYTES = 4 * 2**30
"""Of weights that the first of several ranks holds at a time, and the layer that goes beyond it."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_model(name: str, dtype: torch.dtype, *, ranks: Ranks = ALONE) -> tuple[Any, Any]:
    """Return a model, on the GPU if there is one, and its tokenizer, None if it has none.

    name: a folder or a hub id. ranks: where there are several, the model stays on the CPU, since
    none of them may have room for all of it. Raises `UsageError` when there is no model there.
    """
    folder = Path(name)
    is_folder = folder.is_dir()
    has_tokenizer = not is_folder or any((folder / file).exists() for file in _TOKENIZER_FILES)
    try:
        with no_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(name) if has_tokenizer else None
    except (OSError, ValueError) as e:
        kind = "folder" if is_folder else "hub id (no such folder exists)"
        raise UsageError(f"cannot load {name!r} as a {kind}: {e}") from e
    if ranks.num == 1 and torch.cuda.is_available():
        model.to("cuda")
    return model, tokenizer


def checkpoint_activations(model: Any, *, should_offload: bool = False) -> None:
    """Have every layer computed again in the backward instead of keeping what it computed.

    should_offload: keep the layers' inputs in the CPU's memory, pinned where there is CUDA.
    """
    # TODO(transformers>=6): drop the second name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    for module in model.modules() if should_offload else ():
        if (checkpoint := getattr(module, "_gradient_checkpointing_func", None)) is not None:
            module._gradient_checkpointing_func = functools.partial(_offload, checkpoint)


def _offload(checkpoint: Callable[..., Any], *args: Any) -> Any:
    """Run a layer of which only the inputs are kept, and keep them on the CPU."""
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return checkpoint(*args)


def compile_layers(decoder: Any) -> None:
    """Compile a decoder's layers, in place, when they first run.

    Tree attention stays as it is, between the compiled parts: it plans in Python, and its own
    kernels are compiled already. Whoever else runs the same model runs the compiled layers. Needs a
    C++ compiler on the CPU.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise UsageError(
            f"should_compile compiles a decoder's `layers`, and {type(decoder).__name__} has none"
        )
    attention = AttentionInterface()[NAME]  # type: ignore[no-untyped-call]  # transformers
    AttentionInterface.register(NAME, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]  # torch
    for layer in layers:
        layer.compile(dynamic=True)


def check_is_free(path: Path) -> None:
    """Raise `UsageError` unless a folder can be written there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{str(path)!r} exists and is not an empty folder; name a new one")


def save_model(
    model: Any,
    tokenizer: Any,
    path: Path,
    *,
    is_merged: bool,
    ranks: Ranks = ALONE,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a folder that `from_pretrained` loads: all of it, or nothing.

    tokenizer: None writes none.
    is_merged: add adapters to the weights; False writes the adapters alone, for peft.
    ranks: which all call this, each with its pieces; see `write_weights`. dtype: of what is
        written then.

    Raises `UsageError` if the folder has something in it.
    """
    ranks.on_first(lambda: check_is_free(path))
    has_adapters = hasattr(model, "get_base_model")
    if not is_merged and not has_adapters:
        raise UsageError("is_merged=False writes adapters alone, and the model has none")
    with contextlib.ExitStack() as stack:
        made = ranks.on_first(lambda: stack.enter_context(new_folder(path)))
        if has_adapters and not is_merged:
            write_adapters(model, made, ranks=ranks, dtype=dtype)
        else:
            write_weights(model, made, ranks=ranks, dtype=dtype)
        if tokenizer is not None and ranks.is_first:
            tokenizer.save_pretrained(made)


def write_weights(
    model: Any,
    folder: Path,
    *,
    ranks: Ranks = ALONE,
    dtype: torch.dtype = torch.float32,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write config and weights, adapters merged, by the names that a checkpoint has.

    Alone it is as transformers does it. Of several ranks the first gathers whole
    layers until they are `max_file_bytes`, writes them, and lets go of them.
    """
    base, named = model, None
    if hasattr(model, "get_base_model"):
        from katgym_trainer.models.adapters import merged_weights  # imports peft

        base, named = model.get_base_model(), merged_weights(model)
    if ranks.num == 1:
        options = {} if named is None else {"state_dict": dict(named)}
        with no_progress_bars():
            base.save_pretrained(folder, **options)
        return
    # A tied weight is written once.
    every = base.named_parameters(remove_duplicate=False)
    tied = {name for name, _ in every} - {name for name, _ in base.named_parameters()}
    own = ((n, t) for n, t in named or base.state_dict().items() if n not in tied)
    parts = []
    for number, state in enumerate(_file_states(own, ranks, dtype, max_file_bytes)):
        parts.append(folder / f"part-{number}")
        ranks.together(functools.partial(_write_part, base, state, parts[-1], ranks, dtype))
        state.clear()  # before the next file's are gathered
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


_LAYER = re.compile(r".*?\.\d+\.")
"""How the names of one layer's weights begin."""


def _file_states(
    named: Iterable[tuple[str, torch.Tensor]], ranks: Ranks, dtype: torch.dtype, max_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield a file's tensors at a time, whole, on the first rank's CPU; nothing on the others."""
    held: dict[str, torch.Tensor] = {}
    num_bytes, layer = 0, ""
    for name, tensor in named:
        found = _LAYER.match(name)
        is_same = found is not None and found[0] == layer
        layer = found[0] if found else ""
        # What transformers splits or joins as it writes is in one layer.
        if num_bytes >= max_bytes and not is_same:
            yield held
            held, num_bytes = {}, 0
        full = whole(tensor.detach())
        kind = dtype if full.is_floating_point() else full.dtype
        num_bytes += full.numel() * kind.itemsize
        if ranks.is_first:
            held[name] = full.to("cpu", kind)
    yield held


def _write_part(
    model: Any,
    state: dict[str, torch.Tensor],
    part: Path,
    ranks: Ranks,
    dtype: torch.dtype,
) -> None:
    """Write a file of weights, and a config that says what they are: pieces in training are wider.

    The first rank alone does.
    """
    if not ranks.is_first:
        return
    with no_progress_bars():
        model.save_pretrained(part, state_dict=state, max_shard_size="100TB")
    file = part / "config.json"
    config = json.loads(file.read_text())
    key = "dtype" if "dtype" in config else "torch_dtype"
    config[key] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(config, indent=2) + "\n")


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
