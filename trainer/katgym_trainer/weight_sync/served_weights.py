"""A trainer's model in the form servers take: merged weights, adapters alone, and what it scores.

A server of vLLM 0.32 with tied embeddings takes new embeddings and keeps its old LM head, since it
made a copy of its own when it started. It does take a head that is written beside them.
TODO(vllm>=0.33): see whether its reload ties again, and drop `tied_head`.

Not here: getting them there (`folder_sync.py`, `ipc_sync.py`, `nccl_sync.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from katgym.errors import UsageError
from katgym_trainer.models.progress_bars import no_progress_bars


def has_adapters(model: Any) -> bool:
    """Return whether it is a model of peft."""
    return hasattr(model, "get_base_model")


def tied_head(model: Any) -> tuple[str, Tensor] | None:
    """Return name and weight of an LM head that is the embeddings again; None where it is not."""
    base = model.get_base_model() if has_adapters(model) else model
    config = getattr(base, "config", None)
    if config is None or not config.get_text_config().tie_word_embeddings:
        return None
    head = base.get_output_embeddings()
    name = next(name for name, module in base.named_modules() if module is head)
    return f"{name}.weight", head.weight.detach()


@torch.no_grad()
def served_weights(model: Any, *, should_repeat_head: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of all that a server loads, adapters merged, a tied head too."""
    tied = tied_head(model)
    if has_adapters(model):
        from katgym_trainer.models.adapters import merge_state  # imports peft

        named = merge_state(model)
        for name, tensor in named.items():
            if tied is None or name != tied[0]:
                yield name, tensor.detach()
    else:
        for name, parameter in model.named_parameters():  # shared ones once
            yield name, parameter.detach()
    if tied is not None and should_repeat_head:
        yield tied


@torch.no_grad()
def write_weights(model: Any, folder: Path, *, should_repeat_head: bool = True) -> None:
    """Write safetensors that a server reloads, by the names a checkpoint has."""
    base, options = model, {}
    if has_adapters(model):
        from katgym_trainer.models.adapters import merge_state  # imports peft

        base, options = model.get_base_model(), {"state_dict": merge_state(model)}
    # One file: beside an index, a server would not look at the head's.
    with no_progress_bars():
        base.save_pretrained(folder, max_shard_size="100TB", **options)
    tied = tied_head(model)
    if tied is not None and should_repeat_head:
        name, weight = tied
        head = {name: weight.contiguous().cpu()}
        save_file(head, folder / "tied_head.safetensors", metadata={"format": "pt"})


def write_adapter(model: Any, folder: Path) -> None:
    """Write the adapter alone, as peft does; raises `UsageError` for a model without one."""
    if not has_adapters(model):
        raise UsageError(
            "LoraSync sends adapters, and the model has none; train with lora_rank > 0, or send all"
            " weights with ReloadSync"
        )
    model.save_pretrained(folder)


@torch.no_grad()
def scores(model: Any, token_ids: Sequence[int]) -> list[float]:
    """Return the model's log-probability of every token but the first, in float32."""
    device = next(model.parameters()).device
    ids_1T = torch.tensor([list(token_ids)], device=device)
    logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float()
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(v) for v in logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].cpu()]
