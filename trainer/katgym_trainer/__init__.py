"""The learner: token trie, packing, exact losses on shared tokens.

Everything is imported on use: the command line needs no torch to say what it can do, and where
torch is all there is the core runs without what knows rollouts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from katgym_trainer.advantages.entropy_scaling import (
        entropy_of_rollout,
        entropy_scaled,
        estimated_entropy_of_rollout,
        pass_rate_scaled,
    )
    from katgym_trainer.advantages.gae import with_gae
    from katgym_trainer.advantages.group_advantages import group_advantages
    from katgym_trainer.advantages.reward_shaping import overlong_penalty
    from katgym_trainer.algorithms import ALGORITHMS
    from katgym_trainer.checkpoints import CheckpointError
    from katgym_trainer.critic import Critic
    from katgym_trainer.gradients.forward_backward import (
        forward_backward,
        trainer_entropies,
        trainer_logprobs,
    )
    from katgym_trainer.logprobs.logprob_cache import CacheStats, LogprobCache
    from katgym_trainer.logprobs.logprob_reuse import cached_logprobs
    from katgym_trainer.losses import LOSSES, Loss, loss
    from katgym_trainer.losses.scope import Scope
    from katgym_trainer.models.tree_context import TreeContext
    from katgym_trainer.models.tree_model import Head, TreeModel
    from katgym_trainer.packing.cost_model import CostModel
    from katgym_trainer.packing.forest_parts import ForestPart
    from katgym_trainer.packing.packed_forest import ForestStats, PackedForest
    from katgym_trainer.packing.packer import pack
    from katgym_trainer.packing.ranks import balance, pack_ranks
    from katgym_trainer.pruning.tree_pruning import Pruned, PruningStats, prune
    from katgym_trainer.rollouts.rollout_files import read_rollouts
    from katgym_trainer.rollouts.rollout_rows import group_rows, rollout_rows
    from katgym_trainer.rollouts.supervised_rows import preference_rows, supervised_rows
    from katgym_trainer.rollouts.teacher_tokens import tokenized
    from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError, turn_errors
    from katgym_trainer.row import Row
    from katgym_trainer.row_preparation import row_entropies, scaled_by_entropy, scaled_by_pass_rate
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
    "PackedForest",
    "Pruned",
    "PruningStats",
    "Row",
    "Scope",
    "TaskSampler",
    "Trainer",
    "TrainerConfig",
    "TreeContext",
    "TreeModel",
    "TurnError",
    "balance",
    "cached_logprobs",
    "entropy_of_rollout",
    "entropy_scaled",
    "estimated_entropy_of_rollout",
    "forward_backward",
    "group_advantages",
    "group_rows",
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
    "scaled_by_entropy",
    "scaled_by_pass_rate",
    "supervised_rows",
    "tokenized",
    "trainer_entropies",
    "trainer_logprobs",
    "turn_errors",
    "with_gae",
]

_ON_USE = {
    "entropy_of_rollout": "advantages.entropy_scaling",
    "entropy_scaled": "advantages.entropy_scaling",
    "estimated_entropy_of_rollout": "advantages.entropy_scaling",
    "pass_rate_scaled": "advantages.entropy_scaling",
    "with_gae": "advantages.gae",
    "group_advantages": "advantages.group_advantages",
    "overlong_penalty": "advantages.reward_shaping",
    "ALGORITHMS": "algorithms",
    "CheckpointError": "checkpoints",
    "Critic": "critic",
    "forward_backward": "gradients.forward_backward",
    "trainer_entropies": "gradients.forward_backward",
    "trainer_logprobs": "gradients.forward_backward",
    "CacheStats": "logprobs.logprob_cache",
    "LogprobCache": "logprobs.logprob_cache",
    "cached_logprobs": "logprobs.logprob_reuse",
    "LOSSES": "losses",
    "Loss": "losses",
    "loss": "losses",
    "Scope": "losses.scope",
    "TreeContext": "models.tree_context",
    "Head": "models.tree_model",
    "TreeModel": "models.tree_model",
    "CostModel": "packing.cost_model",
    "ForestPart": "packing.forest_parts",
    "ForestStats": "packing.packed_forest",
    "PackedForest": "packing.packed_forest",
    "pack": "packing.packer",
    "balance": "packing.ranks",
    "pack_ranks": "packing.ranks",
    "Pruned": "pruning.tree_pruning",
    "PruningStats": "pruning.tree_pruning",
    "prune": "pruning.tree_pruning",
    "read_rollouts": "rollouts.rollout_files",
    "group_rows": "rollouts.rollout_rows",
    "rollout_rows": "rollouts.rollout_rows",
    "preference_rows": "rollouts.supervised_rows",
    "supervised_rows": "rollouts.supervised_rows",
    "tokenized": "rollouts.teacher_tokens",
    "ErrorMasks": "rollouts.turn_errors",
    "TurnError": "rollouts.turn_errors",
    "turn_errors": "rollouts.turn_errors",
    "Row": "row",
    "row_entropies": "row_preparation",
    "scaled_by_entropy": "row_preparation",
    "scaled_by_pass_rate": "row_preparation",
    "GroupFilter": "task_sampler",
    "TaskSampler": "task_sampler",
    "Trainer": "trainer",
    "TrainerConfig": "trainer_config",
    "METRICS": "trainer_metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_USE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
