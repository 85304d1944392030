"""A training step that is to be counted: model, rows, settings, card.

Imports no torch, which the process that counts imports later (`device_guard.py`). Not here: the
step (`trained_step.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from katgym.errors import UsageError
from katgym_trainer.fake_card.cards import find_card

if TYPE_CHECKING:
    from katgym_trainer.trainer_config import TrainerConfig

_ANSWERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A step: the model, what it trains on, and the card.

    Example:
        StepRequest(model="Qwen/Qwen3-0.6B", prompt_tokens=4096, answer_tokens=(1024,) * 16,
                    settings={"dtype": "bfloat16", "max_tokens": 20_480}, card="h100")
    """

    model: str
    """Folder or hub id; its configuration is read."""
    prompt_tokens: int
    """Of the prompt that all rows begin with."""
    answer_tokens: tuple[int, ...]
    """Of each row's answer, all trained."""
    group_size: int | None = None
    """Rows of a group; None: all are one."""
    algorithm: str = "grpo"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the `TrainerConfig`."""
    card: str = "h100"
    num_cards: int = 1
    """Each has rows like these, and a piece of the model."""
    num_steps: int = 2
    """Steps, of which the last is counted; with the first the optimizer's state is made, and torch
    works out how several cards share each op. 0: what the trainer's making and its rehearsal take
    is counted; it has no rows."""

    def __post_init__(self) -> None:
        find_card(self.card)  # raises
        if self.num_cards < 1:
            raise UsageError(f"num_cards is an int >= 1, got {self.num_cards!r}")

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> StepRequest:
        """Return the request that `dataclasses.asdict` and JSON made plain."""
        return cls(**{**raw, "answer_tokens": tuple(raw["answer_tokens"])})

    @classmethod
    def of_tokens(cls, model: str, num_tokens: int, **more: Any) -> StepRequest:
        """Return a step on one forest of so many tokens: a prompt with 16 answers.

        The prompt is four times as long as an answer.
        """
        if num_tokens < 2 * _ANSWERS:
            raise UsageError(f"tokens is an int >= {2 * _ANSWERS}, got {num_tokens!r}")
        answer = num_tokens // (_ANSWERS + 4)
        settings = {"dtype": "bfloat16", "max_tokens": num_tokens, **more.pop("settings", {})}
        return cls(
            model=model,
            prompt_tokens=num_tokens - _ANSWERS * answer,
            answer_tokens=(answer,) * _ANSWERS,
            settings=settings,
            **more,
        )


def countable(config: TrainerConfig) -> TrainerConfig:
    """Return settings with which a step can be counted.

    Layers are not compiled; log-probs are cached in memory alone.
    """
    return dataclasses.replace(config, should_compile=False, logprob_cache_folder=None)
