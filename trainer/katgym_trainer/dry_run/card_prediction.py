"""Prediction of a run's step on a card: peak memory, least time, bytes; no card is needed.

Not here: how a step is counted (`fake_card/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym_trainer.fake_card.cards import find_card
from katgym_trainer.fake_card.model_fit import ModelFit
from katgym_trainer.fake_card.step_counts import StepCounts
from katgym_trainer.fake_card.step_process import count_steps
from katgym_trainer.fake_card.step_request import StepRequest, countable
from katgym_trainer.trainer_config import TrainerConfig

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPrediction:
    """What a step asks of a card, or why that cannot be counted.

    Example:
        CardPrediction(card="NVIDIA L40S", memory_bytes=48_305_799_168, num_cards=1,
                       num_tokens=16_384, fit=ModelFit(...))
    """

    card: str
    memory_bytes: int
    num_cards: int
    num_tokens: int
    """Of the forest that it is counted with, the longest there may be."""
    fit: ModelFit | None
    reason: str = ""
    """Why there is no fit."""

    def line(self) -> str:
        """Return it as a line of text."""
        cards = self.card if self.num_cards == 1 else f"{self.num_cards} x {self.card}"
        if (fit := self.fit) is None:
            return f"on {cards}: cannot be counted here: {self.reason}"
        others = f", {fit.received_bytes / 1e9:,.1f} GB from others" if self.num_cards > 1 else ""
        return (
            f"on {cards}, a step on {self.num_tokens:,} tokens: tensors take"
            f" {fit.peak_bytes / _GIB:.2f} of {self.memory_bytes / _GIB:.1f} GiB:"
            f" {'fits' if fit.has_room else 'DOES NOT FIT'}; at least"
            f" {1e3 * fit.least_s:,.0f} ms, {fit.bytes_moved / 1e9:,.1f} GB moved{others}"
        )


def predict_step(
    model: str, algorithm: str, config: TrainerConfig, *, card: str, num_cards: int = 1
) -> CardPrediction:
    """Return the prediction of a trainer's step on one full forest."""
    found = find_card(card)
    settings = countable(config).to_json()
    request = StepRequest.of_tokens(
        model, config.max_tokens, algorithm=algorithm, settings=settings, card=card,
        num_cards=num_cards,
    )  # fmt: skip
    (counts,) = count_steps([request])
    fit, reason = None, ""
    if isinstance(counts, StepCounts):
        fit = ModelFit.of("as configured", counts, found.memory_bytes)
    else:
        reason = f"{counts.kind}: {counts.error}"
    return CardPrediction(
        card=found.title,
        memory_bytes=found.memory_bytes,
        num_cards=num_cards,
        num_tokens=config.max_tokens,
        fit=fit,
        reason=reason,
    )
