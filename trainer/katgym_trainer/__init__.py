"""The learner: token trie, packing, exact losses on shared tokens."""

from katgym_trainer.advantages import group_advantages
from katgym_trainer.forward_backward import forward_backward, trainer_logprobs
from katgym_trainer.losses import LOSSES, Loss, loss
from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import Head, TreeModel
from katgym_trainer.packed_forest import ForestStats, PackedForest
from katgym_trainer.packing import pack
from katgym_trainer.row import Row

__all__ = [
    "LOSSES",
    "ForestStats",
    "Head",
    "Loss",
    "PackedForest",
    "Row",
    "TreeContext",
    "TreeModel",
    "forward_backward",
    "group_advantages",
    "loss",
    "pack",
    "trainer_logprobs",
]
