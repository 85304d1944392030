"""Models of transformers in the trainer's hands: loaded, prepared, saved as folders.

Not here: adapters (`adapters.py`), running models on forests (`hugging_face.py`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from katgym.errors import UsageError
from katgym.policies.model_source import model_source
from katgym_trainer.models.hugging_face import NAME
from katgym_trainer.models.progress_bars import no_progress_bars
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.saving.atomic_folders import check_is_free, new_folder
from katgym_trainer.saving.model_files import write_adapters, write_weights

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_model(name: str, dtype: torch.dtype, *, ranks: Ranks = ALONE) -> tuple[Any, Any]:
    """Return a model, on the GPU if there is one, and its tokenizer, None if it has none.

    name: a folder, a hub id or `smollm2`. ranks: where there are several, the model stays on the
    CPU, since none of them may have room for all of it. Raises `UsageError` when there is no model
    there.
    """
    source = model_source(name)
    folder = Path(source)
    is_folder = folder.is_dir()
    has_tokenizer = not is_folder or any((folder / file).exists() for file in _TOKENIZER_FILES)
    try:
        with no_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(source) if has_tokenizer else None
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
