"""A taskset's tasks, and what is refused because nothing here can play it.

Not here: the episode (`episode.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.session import hook_boundary
from verifiers.v1.utils.decorators import discover_decorated

import katgym

TEST_SHARE = 5
"""One task in so many is in `test`, where no argument says which are."""
_BOX = ("image", "agent_user", "skills", "artifacts")
"""Fields of a task that say what is in its container."""


class VerifiersTasks(katgym.TaskSet):
    """The tasks of a split, with upstream's environment and objects behind them."""

    def __init__(self, env: vf.Env, tasks: Iterable[vf.Task], *, split: str) -> None:
        named = [(task.data.id or f"{task.data.idx:06d}", task) for task in tasks]
        super().__init__([_as_task(*item) for item in named], split=split)
        self.env, self.upstream = env, dict(named)


def load(taskset: str, config: Mapping[str, Any], num_tasks: int) -> tuple[vf.Env, list[vf.Task]]:
    """Return upstream's environment and the first `num_tasks` tasks, 0 for all.

    Raises `UsageError` for what cannot be loaded, or not be played.
    """
    try:
        env = vf.load_environment(vf.resolve_env_config({"taskset": {**config, "id": taskset}}))
    except (ImportError, AttributeError, TypeError, ValueError) as e:
        text = f"taskset={taskset!r} is none of verifiers' v1 that loads with {dict(config)}: {e}"
        raise katgym.UsageError(text) from e
    if len(agents := agent_config_fields(env.config)) != 1:
        raise katgym.UsageError(f"{taskset!r} has {len(agents)} agents, {list(agents)}; 1 can play")
    if type(env).start is not vf.Env.start:
        raise katgym.UsageError(f"the environment of {taskset!r} starts servers of its own")
    if not num_tasks and not env.taskset.bounded:
        raise katgym.UsageError(f"{taskset!r} never ends: say num_tasks=NUMBER")
    tasks = list(env.taskset.take(num_tasks) if num_tasks else env.taskset)
    for task in tasks:
        if needs := _needs(task):
            raise katgym.UsageError(f"task {task.data.idx} of {taskset!r} needs {needs}")
    return env, tasks


def is_held_out(task: vf.Task) -> bool:
    """Return whether a task is in `test`, by the hash of its data."""
    return int(task.hash[:8], 16) % TEST_SHARE == 0


def _needs(task: vf.Task) -> str:
    hooks = discover_decorated(task, "intercept")
    stops = [fn for fn in task.hooks("stop") if hook_boundary(fn, allow_trace=True) is not vf.Trace]
    needs = {
        "a container": task.NEEDS_CONTAINER or any(getattr(task.data, name) for name in _BOX),
        "a judge, which is a model": task.config.judges,
        "hooks between a model and its client": hooks + stops,
    }
    return ", ".join(what for what, found in needs.items() if found)


def _as_task(task_id: str, task: vf.Task) -> katgym.Task:
    data = task.data.model_dump(mode="json", exclude_none=True)
    return katgym.Task(task_id=task_id, prompt=task.data.prompt_text, data=data)
