"""The learner: token trie, packing, exact losses on shared tokens.

Everything is imported on use: the command line needs no torch to say what it can do, and where
torch is all there is the core runs without what knows rollouts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from katgym_trainer.advantages.distillation import Teacher
    from katgym_trainer.advantages.entropy_scaling import (
        entropy_of_rollout,
        entropy_scaled,
        estimate_entropy_of_rollout,
        pass_rate_scaled,
    )
    from katgym_trainer.advantages.gae import with_gae
    from katgym_trainer.advantages.group_advantages import group_advantages, step_advantages
    from katgym_trainer.advantages.reward_shaping import RewardShaping, overlong_penalty
    from katgym_trainer.algorithms import ALGORITHMS
    from katgym_trainer.critic import Critic
    from katgym_trainer.gradients.forward_backward import (
        forward_backward,
        trainer_entropies,
        trainer_logprobs,
    )
    from katgym_trainer.logprobs.logprob_cache import CacheStats, LogprobCache
    from katgym_trainer.logprobs.logprob_reuse import look_up_logprobs
    from katgym_trainer.losses import LOSSES, Loss, loss
    from katgym_trainer.losses.scope import Scope
    from katgym_trainer.models.tree_context import TreeContext
    from katgym_trainer.models.tree_model import Head, TreeModel
    from katgym_trainer.optimization.norm_watch import NonFiniteGradientError
    from katgym_trainer.packing.cost_model import CostModel
    from katgym_trainer.packing.forest_parts import ForestPart
    from katgym_trainer.packing.packed_forest import ForestStats, PackedForest
    from katgym_trainer.packing.packer import pack
    from katgym_trainer.packing.ranks import balance, pack_ranks
    from katgym_trainer.pruning.tree_pruning import Pruned, PruningStats, prune
    from katgym_trainer.rollouts.rollout_files import read_rollouts
    from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows
    from katgym_trainer.rollouts.supervised_rows import preference_rows, supervised_rows
    from katgym_trainer.rollouts.teacher_tokens import tokenize_rollout
    from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError, turn_errors
    from katgym_trainer.routing.row_routes import RowRoutes
    from katgym_trainer.row import Row
    from katgym_trainer.row_preparation import row_entropies, scale_by_entropy, scale_by_pass_rate
    from katgym_trainer.saving.checkpoints import CheckpointError
    from katgym_trainer.task_sampler import GroupFilter, TaskSampler
    from katgym_trainer.trainer import Trainer
    from katgym_trainer.trainer_config import TrainerConfig
    from katgym_trainer.trainer_metrics import METRICS

__all__ = [
    "ALGORITHMS",
    "LOSSES",
    "METRICS",
    "CacheStats",
    "CheckpointError",
    "CostModel",
    "Critic",
    "ErrorMasks",
    "ForestPart",
    "ForestStats",
    "GroupFilter",
    "Head",
    "LogprobCache",
    "Loss",
    "NonFiniteGradientError",
    "PackedForest",
    "Pruned",
    "PruningStats",
    "RewardShaping",
    "Row",
    "RowRoutes",
    "Scope",
    "TaskSampler",
    "Teacher",
    "Trainer",
    "TrainerConfig",
    "TreeContext",
    "TreeModel",
    "TurnError",
    "balance",
    "entropy_of_rollout",
    "entropy_scaled",
    "estimate_entropy_of_rollout",
    "forward_backward",
    "group_advantages",
    "group_rows",
    "look_up_logprobs",
    "loss",
    "overlong_penalty",
    "pack",
    "pack_ranks",
    "pass_rate_scaled",
    "preference_rows",
    "prune",
    "read_rollouts",
    "rollout_rows",
    "row_entropies",
    "scale_by_entropy",
    "scale_by_pass_rate",
    "step_advantages",
    "supervised_rows",
    "tokenize_rollout",
    "trainer_entropies",
    "trainer_logprobs",
    "turn_errors",
    "with_gae",
]

_ON_USE = {
    "advantages.distillation": "Teacher",
    "advantages.entropy_scaling": (
        "entropy_of_rollout entropy_scaled estimate_entropy_of_rollout pass_rate_scaled"
    ),
    "advantages.gae": "with_gae",
    "advantages.group_advantages": "group_advantages step_advantages",
    "advantages.reward_shaping": "RewardShaping overlong_penalty",
    "algorithms": "ALGORITHMS",
    "saving.checkpoints": "CheckpointError",
    "critic": "Critic",
    "gradients.forward_backward": "forward_backward trainer_entropies trainer_logprobs",
    "logprobs.logprob_cache": "CacheStats LogprobCache",
    "logprobs.logprob_reuse": "look_up_logprobs",
    "losses": "LOSSES Loss loss",
    "losses.scope": "Scope",
    "models.tree_context": "TreeContext",
    "models.tree_model": "Head TreeModel",
    "optimization.norm_watch": "NonFiniteGradientError",
    "packing.cost_model": "CostModel",
    "packing.forest_parts": "ForestPart",
    "packing.packed_forest": "ForestStats PackedForest",
    "packing.packer": "pack",
    "packing.ranks": "balance pack_ranks",
    "pruning.tree_pruning": "Pruned PruningStats prune",
    "rollouts.rollout_files": "read_rollouts",
    "rollouts.rollout_rows": "group_rows rollout_rows",
    "rollouts.supervised_rows": "preference_rows supervised_rows",
    "rollouts.teacher_tokens": "tokenize_rollout",
    "rollouts.turn_errors": "ErrorMasks TurnError turn_errors",
    "routing.row_routes": "RowRoutes",
    "row": "Row",
    "row_preparation": "row_entropies scale_by_entropy scale_by_pass_rate",
    "task_sampler": "GroupFilter TaskSampler",
    "trainer": "Trainer",
    "trainer_config": "TrainerConfig",
    "trainer_metrics": "METRICS",
}
"""Module -> the public names that it has, imported when one is used."""


def __getattr__(name: str) -> Any:
    for module, names in _ON_USE.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
