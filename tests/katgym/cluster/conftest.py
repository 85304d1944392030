"""A plugin whose envs die on purpose."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

HOOKS = """
import pluggy

@pluggy.HookimplMarker("katgym")
def katgym_register_envs(register):
    register("dying/Slow-v0", "kp_dying_env:Slow", description="It takes its time.")
    register("dying/Unsent-v0", "kp_dying_env:Unsent", description="Its first record ends it.")
"""
ENVS = """
import asyncio, os, pathlib, katgym

def num_lines(path):
    with open(path) as file:
        return sum(1 for _ in file)

class Slow(katgym.Env):
    splits = ("train",)

    def __init__(self, *, log, **kwargs):
        super().__init__(**kwargs)
        self.log = log

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"t{n}", prompt=str(n), answer=str(n)) for n in range(500)]

    async def setup(self):
        await asyncio.sleep(0.15)
        with open(self.log, "a") as file:
            file.write(f"{self.task.task_id} {os.getpid()}\\n")
        # On hold, a run of hundreds of episodes does not come to an end.
        while os.path.exists(self.log + ".hold") and num_lines(self.log) >= 160:
            await asyncio.sleep(0.05)

    def oracle_action(self):
        return self.task.answer

    @katgym.scorer()
    def correct(self):
        return self.final_answer == self.task.answer


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        if not os.path.exists(self.marker):
            pathlib.Path(self.marker).touch()
            os._exit(9)
        return (str, (self.marker,))


class Unsent(Slow):
    async def setup(self):
        await super().setup()
        self.artifacts["bomb"] = Bomb(self.log + ".fired")
"""


@pytest.fixture
def dying(plugin_tree: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plugin that this process and those of a cluster started after it know."""
    plugin_tree.add_module("kp_dying", HOOKS)
    plugin_tree.add_module("kp_dying_env", ENVS)
    plugin_tree.add_distribution("katgym-plugin-dying", {"dying": "kp_dying"})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin_tree.folder), *sys.path]))
    return plugin_tree
