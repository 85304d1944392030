"""Whether a model's training fits a card, and with which settings: one step counted for each.

    for fit in fit_model("Qwen/Qwen3-0.6B", 20_480, card="h100"):
        print(fit.setting, fit.has_room, fit.peak_bytes)

Not here: an estimate that needs no step (`dry_run/memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from katgym.errors import InfrastructureError, UsageError
from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_process import StepFailure, count_steps
from katgym_trainer.fake_card.step_request import StepRequest

_LORA, _CHECKPOINTED = {"lora_rank": 16}, {"should_checkpoint_activations": True}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "all weights": {},
    "all weights, checkpointed": _CHECKPOINTED,
    "LoRA of rank 16": _LORA,
    "LoRA of rank 16, checkpointed": _LORA | _CHECKPOINTED,
}
"""What is tried -> settings of the trainer."""
CONTEXT_BYTES = 2 * 2**30
"""Of a card's memory that CUDA and its libraries take; an estimate."""
MAX_SHARE = 0.9
"""Of a card's memory that may be planned: gaps between tensors and scratch space take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFit:
    """A step with one choice of settings on one card.

    Example:
        ModelFit(setting="all weights", has_room=True, peak_bytes=49_557_000_000, least_s=0.44,
                 bytes_moved=832_400_000_000, received_bytes=0, launches=6_866, num_waits=10)
    """

    setting: str
    has_room: bool
    peak_bytes: int
    """What tensors take at the most; CUDA's own is not in it."""
    least_s: float
    """Seconds that the card needs at the least, attention's products included."""
    bytes_moved: int
    """In the card's memory, by all ops."""
    received_bytes: int
    """From other cards."""
    launches: int
    num_waits: int
    """Times that the host waits for the card."""

    @classmethod
    def of(cls, setting: str, counts: StepCounts, memory_bytes: int) -> ModelFit:
        """Return the fit of a step that was counted."""
        return cls(
            setting=setting,
            has_room=has_room(counts.peak_bytes, memory_bytes),
            peak_bytes=counts.peak_bytes,
            least_s=counts.total.least_s + counts.attention_s,
            bytes_moved=counts.total.bytes_moved,
            received_bytes=counts.received_bytes,
            launches=counts.launches,
            num_waits=counts.num_waits,
        )


def has_room(peak_bytes: int, memory_bytes: int) -> bool:
    """Return whether a card has room for tensors, CUDA and what is left free."""
    return peak_bytes + CONTEXT_BYTES <= MAX_SHARE * memory_bytes


def fit_model(
    model: str, num_tokens: int, *, card: str = "h100", num_cards: int = 1
) -> Iterator[ModelFit]:
    """Yield the fit of each of `SETTINGS`, in bfloat16 with AdamW, as soon as it is counted.

    num_tokens: of a card's forest. Raises `UsageError` for a model, a card or a number that cannot
    be, and `InfrastructureError` for a model whose step fails.
    """
    requests = [
        StepRequest.of_tokens(model, num_tokens, card=card, num_cards=num_cards, settings=settings)
        for settings in SETTINGS.values()
    ]
    memory_bytes = find_card(card).memory_bytes
    for setting, found in zip(SETTINGS, count_steps(requests), strict=True):
        yield ModelFit.of(setting, counted(found, model), memory_bytes)


def counted(found: StepCounts | StepFailure, model: str) -> StepCounts:
    """Return a step's counts; raise what its failure says."""
    if isinstance(found, StepCounts):
        return found
    if found.kind in ("UsageError", "UnknownNameError"):
        raise UsageError(found.error)
    if found.kind in ("MissingDependencyError", "InfrastructureError"):
        raise InfrastructureError(found.error)
    raise InfrastructureError(
        f"a step of model {model!r} cannot be counted ({found.kind}: {found.error})"
    )
