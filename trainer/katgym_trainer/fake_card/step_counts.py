"""What one training step asks of a card, as plain numbers.

Not here: counting (`fake_card.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCounts:
    """One op of a step, all its launches together."""

    launches: int = 0
    bytes_moved: int = 0
    operations: float = 0
    least_s: float = 0

    def __add__(self, other: OpCounts) -> OpCounts:
        return OpCounts(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in dataclasses.fields(self)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """One step on one card.

    Example:
        StepCounts(peak_bytes=49_557_000_000, begun_bytes=8_343_000_000,
                   held_bytes=8_343_000_000, ops={"mm": OpCounts(...)},
                   waits={"item katgym_trainer.trainer:360": 1}, copies={}, attention_s=0.13)
    """

    peak_bytes: int
    """Most memory that tensors took; not what CUDA itself and gaps between tensors take."""
    begun_bytes: int
    """Memory that was taken when it began."""
    held_bytes: int
    """Memory that was taken when it ended: weights, masters, moments."""
    peak_at: str = ""
    """Where the peak was."""
    ops: Mapping[str, OpCounts] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    """What and where the host waits for the card -> how often."""
    copies: Mapping[str, int] = field(default_factory=dict)
    """Where the host hands the card a tensor -> how often."""
    attention_s: float = 0
    """Least seconds of attention's own products, which are not in those of ops."""

    received_bytes: int = 0
    """Sent by other cards: pieces of weights and gradients."""

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return self.total.launches

    @property
    def total(self) -> OpCounts:
        """All ops together."""
        return sum(self.ops.values(), OpCounts())

    @property
    def num_waits(self) -> int:
        """Times that the host waits for the card."""
        return sum(self.waits.values())

    @property
    def num_copies(self) -> int:
        """Copies from the host to the card."""
        return sum(self.copies.values())

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> StepCounts:
        """Return the counts that `dataclasses.asdict` and JSON made plain."""
        ops = {name: OpCounts(**counts) for name, counts in raw["ops"].items()}
        return cls(**{**raw, "ops": ops})
