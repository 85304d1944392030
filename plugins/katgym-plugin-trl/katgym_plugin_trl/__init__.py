"""Envs for TRL's `GRPOTrainer`. Not here: the env as TRL wants it (`environment.py`)."""

from katgym_plugin_trl.environment import TrlEnvironment, environment_class, reward, rows

__all__ = ["TrlEnvironment", "environment_class", "reward", "rows"]
