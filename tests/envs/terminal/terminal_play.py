"""Plays tasks of `katgym/Terminal-v0` by commands. Not here: the commands."""

from __future__ import annotations

import functools
from typing import Any

import katgym
from katgym.environment.reward import Reward
from katgym_envs.terminal.task_set import task_set

SUBMIT = katgym.assistant("", [("submit", {})])


@functools.cache
def tasks_by_template() -> dict[str, katgym.Task]:
    """Return the first train task of level 1 with each template."""
    found: dict[str, katgym.Task] = {}
    for task in task_set("train", level=1):
        found.setdefault(task.data["templates"][0], task)
    return found


def folder_of(task: katgym.Task) -> str:
    """Return the folder of a task's first exercise."""
    return next(iter(task.answer)).partition("/")[0]


def play(env: Any, task: katgym.Task, *commands: str) -> Reward:
    """Play a task by commands, then submit; return the reward."""
    env = env.unwrapped
    env.reset(seed=0, options={"task_id": task.task_id, "split": task.split})
    for command in commands:
        env.step(katgym.assistant("", [("bash", {"command": command, "timeout_s": 600})]))
    env.step(SUBMIT)
    assert env.last_reward is not None
    reward: Reward = env.last_reward
    return reward
