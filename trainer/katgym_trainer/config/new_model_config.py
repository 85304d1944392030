"""Shape and vocabulary of a new model.

Not here: making it (`models/new_model.py`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from katgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModelConfig:
    """Shape and vocabulary of a new model."""

    hidden: int = 128
    """Width."""
    layers: int = 3
    """Layers."""
    heads: int = 4
    """Heads of queries."""
    kv_heads: int = 2
    """Heads of keys and values."""
    head_dim: int = 32
    """Width of a head."""
    intermediate: int | None = None
    """Width inside the MLPs; None: three times `hidden`."""
    vocab_size: int = 1024
    """Most tokens; fewer if the texts have no more to merge."""
    max_positions: int = 2048
    """Tokens of the longest conversation."""
    rope_theta: float = 100.0
    """Base of the positions' wavelengths, the longest of which has 2 pi `rope_theta` tokens; for
    conversations of some hundred tokens a small one lets a model learn to copy much earlier."""
    num_tasks: int = 64
    """Tasks per env that the vocabulary is made of, played twice each."""
    init_std: float = 0.05
    """Standard deviation of the weights."""
    seed: int = 0
    """Draws the weights and the tasks."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name == "seed" else 1
            if isinstance(value, int) and value < least:
                raise UsageError(f"{name} is an int >= {least}, got {value!r}")
        if not 0 < self.init_std < 1:
            raise UsageError(f"init_std is a number between 0 and 1, got {self.init_std!r}")
        if not 1 < self.rope_theta < math.inf:
            raise UsageError(f"rope_theta is a number > 1, got {self.rope_theta!r}")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"heads is a multiple of kv_heads, got {self.heads!r} and {self.kv_heads!r}"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim is an even int, got {self.head_dim!r}")
