"""Shape and vocabulary of a new model.

Not here: making it (`models/new_model.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from katgym.errors import UsageError
from katgym_trainer.config.rules import Bounds, Count, CountOrZero, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModelConfig:
    """Shape and vocabulary of a new model."""

    hidden: Count = 128
    """Width."""
    layers: Count = 3
    """Layers."""
    heads: Count = 4
    """Heads of queries."""
    kv_heads: Count = 2
    """Heads of keys and values."""
    head_dim: Count = 32
    """Width of a head."""
    intermediate: Count | None = None
    """Width inside the MLPs; None: three times `hidden`."""
    vocab_size: Count = 1024
    """Most tokens; fewer if the texts have no more to merge."""
    max_positions: Count = 2048
    """Tokens of the longest conversation."""
    rope_theta: Annotated[float, Bounds(((">", 1),), "a number > 1")] = 100.0
    """Base of the positions' wavelengths, the longest of which has 2 pi `rope_theta` tokens; for
    conversations of some hundred tokens a small one lets a model learn to copy much earlier."""
    num_tasks: Count = 64
    """Tasks per env that the vocabulary is made of, played twice each."""
    init_std: Annotated[float, Bounds(((">", 0), ("<", 1)), "a number between 0 and 1")] = 0.05
    """Standard deviation of the weights."""
    seed: CountOrZero = 0
    """Draws the weights and the tasks."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if self.heads % self.kv_heads:
            raise UsageError(
                f"heads is a multiple of kv_heads, got {self.heads!r} and {self.kv_heads!r}"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim is an even int, got {self.head_dim!r}")
