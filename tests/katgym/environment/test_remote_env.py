"""Envs whose episodes live elsewhere are cloned, never copied."""

from __future__ import annotations

import copy

import pytest

import katgym
from katgym.environment.remote_env import RemoteEnv


class Shop(RemoteEnv):
    def load_tasks(self, split: str) -> list[katgym.Task]:
        return [katgym.Task(task_id=f"{split}-0", prompt="Buy.")]


def test_a_remote_env_refuses_to_be_copied_and_clones() -> None:
    env = Shop(max_turns=3)
    env.reset(seed=1)
    with pytest.raises(katgym.UsageError, match="Shop cannot be copied: its episode lives"):
        copy.deepcopy(env)
    clone = env.clone()
    assert (clone.max_turns, clone.is_running, env.is_running) == (3, False, True)
