"""A trainer's model in the form servers take: merged weights, adapters alone, and what it scores.

A server of vLLM 0.32 with tied embeddings takes new embeddings and keeps its old LM head, since it
made a copy of its own when it started. It does take a head that is written beside them.
TODO(vllm>=0.33): see whether its reload ties again, and drop `tied_head`.

Not here: getting them there (`folder_sync.py`, `transfer_sync.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from katgym.errors import UsageError
from katgym_trainer.ranks.ranks import ALONE, Ranks, whole
from katgym_trainer.saving import model_files


class ServedModel:
    """A trainer's model as servers take it; of several ranks every one makes the same calls."""

    def __init__(
        self, model: Any, *, ranks: Ranks = ALONE, dtype: torch.dtype | None = None
    ) -> None:
        """dtype: of what is sent, where ranks train wider pieces; None: the model's."""
        self.model, self.ranks = model, ranks
        self._engines: dict[str, Any] = {}
        self.dtype: torch.dtype = dtype or next(model.parameters()).dtype

    @classmethod
    def of(cls, model: Any) -> ServedModel:
        """Return a model that may be served already."""
        return cls(model) if isinstance(model, torch.nn.Module) else model

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def vocab_size(self) -> int:
        """Token ids that it knows."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def has_adapters(self) -> bool:
        """Whether it is a model of peft."""
        return hasattr(self.model, "get_base_model")

    @property
    def can_be_kept(self) -> bool:
        """Whether `kept` takes little memory: all that is trained are adapters, in one process."""
        return self.has_adapters and self.ranks.num == 1

    def kept(self) -> ServedModel:
        """Return the model as it is, that goes on to score so while this one is trained.

        It has what is not trained in common with this one.
        """
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        return ServedModel(copy.deepcopy(self.model, shared), dtype=self.dtype)

    @torch.no_grad()
    def scores(self, token_ids: Sequence[int]) -> list[float]:
        """Return its log-probability of every token but the first."""
        found = scores(self.model, token_ids)
        if self.ranks.num > 1:  # what a forward without a backward left whole
            base = self.model.get_base_model() if self.has_adapters else self.model
            base.reshard()
        return found

    def pieces(self, *, should_repeat_head: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield name and weight of all that a server loads, adapters merged, a tied head too.

        As they lie on the ranks, in the dtype that is trained.
        """
        tied, named = tied_head(self.model), self.model.named_parameters()  # shared ones once
        if self.has_adapters:
            from katgym_trainer.models.adapters import merged_weights  # imports peft

            named = merged_weights(self.model)
        for name, tensor in named:
            if tied is None or name != tied[0]:
                yield name, tensor
        if tied is not None and should_repeat_head:
            yield tied

    @torch.no_grad()
    def weights(self, *, should_repeat_head: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield the pieces, one at a time whole, on every rank."""
        for name, tensor in self.pieces(should_repeat_head=should_repeat_head):
            yield name, self._whole(tensor)

    def connect(self, url: str, new_engine: Callable[[ServedModel], Any]) -> None:
        """Make this rank's side of the way to a server, which takes nothing from a disk."""
        self._engines[url] = new_engine(self)

    @torch.no_grad()
    def send(self, url: str) -> None:
        """Send all weights to a server that is connected."""
        self._engines[url].send_weights()

    def disconnect(self, url: str) -> None:
        """Let go of a server's engine, if there is one."""
        if (engine := self._engines.pop(url, None)) is not None:
            engine.shutdown()

    @torch.no_grad()
    def write(
        self,
        folder: Path,
        *,
        should_repeat_head: bool = True,
        max_file_bytes: int = model_files.MAX_FILE_BYTES,
    ) -> None:
        """Write safetensors that a server reloads, a share of them on each rank at once."""
        ranks, tied = self.ranks, tied_head(self.model)
        num_bytes = sum(p.numel() for p in self.model.parameters()) * self.dtype.itemsize
        max_file_bytes = min(max_file_bytes, -(-num_bytes // ranks.num))
        model_files.write_weights(
            self.model, folder, ranks=ranks, dtype=self.dtype, max_file_bytes=max_file_bytes
        )
        if tied is not None and should_repeat_head:
            head = {tied[0]: self._whole(tied[1]).contiguous().cpu()}
            ranks.on_first(lambda: write_head(head, folder))

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter alone, as peft does; raises `UsageError` for a model without one."""
        if not self.has_adapters:
            raise UsageError(
                "LoraSync sends adapters, and the model has none; train with lora_rank > 0, or send"
                " all weights with ReloadSync"
            )
        model_files.write_adapters(self.model, folder, ranks=self.ranks, dtype=self.dtype)

    def _whole(self, tensor: Tensor) -> Tensor:
        found = whole(tensor.detach())
        return found.to(self.dtype) if self.ranks.num > 1 else found


def tied_head(model: Any) -> tuple[str, Tensor] | None:
    """Return name and weight of an LM head that is the embeddings again; None where it is not."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    if config is None or not config.get_text_config().tie_word_embeddings:
        return None
    head = base.get_output_embeddings()
    name = next(name for name, module in base.named_modules() if module is head)
    return f"{name}.weight", head.weight.detach()


def write_head(head: dict[str, Tensor], folder: Path) -> None:
    """Write a tied head beside the weights, and into their index: a server looks at no others."""
    file, index = folder / "tied_head.safetensors", folder / model_files.INDEX
    save_file(head, file, metadata={"format": "pt"})
    if index.exists():
        told = json.loads(index.read_text())
        told["weight_map"] |= dict.fromkeys(head, file.name)
        index.write_text(json.dumps(told, indent=2) + "\n")


@torch.no_grad()
def scores(model: Any, token_ids: Sequence[int]) -> list[float]:
    """Return the model's log-probability of every token but the first, in float32."""
    device = next(model.parameters()).device
    ids_1T = torch.tensor([list(token_ids)], device=device)
    logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0, :-1].float()
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(v) for v in logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].cpu()]
