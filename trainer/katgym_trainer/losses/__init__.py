"""Losses on occurrences of edges: `loss(name, **options)`."""

from katgym_trainer.losses.objective import Loss, Occurrences
from katgym_trainer.losses.registry import LOSSES, loss

__all__ = ["LOSSES", "Loss", "Occurrences", "loss"]
