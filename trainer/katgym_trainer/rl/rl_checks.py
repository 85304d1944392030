"""What can be wrong with a run's model, envs and budgets, found before anything is played.

Not here: what a file's text shows (`rl_config_file.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from katgym.env import Env
from katgym.errors import UsageError
from katgym.rollout_store.store import RolloutStore
from katgym.sync import run_sync
from katgym_trainer.rl.rl_config import EnvConfig, RlConfig


def check_prompts(
    config: RlConfig, renderer: Any, lessons: Iterable[tuple[EnvConfig, Env, str]]
) -> None:
    """Raise `UsageError` for a first prompt that leaves no room for an answer.

    renderer: turns messages into tokens. lessons: each with an env and a task of it, which is
    begun and given up.
    """
    budget = config.policy.max_context_tokens
    for env_config, env, task_id in lessons:
        num = run_sync(_num_prompt_tokens(env.clone(), env_config.split, task_id, renderer))
        if num >= budget:
            raise UsageError(
                f"the first prompt of {env_config.id!r} has {num} tokens (task {task_id!r}), and"
                f" [policy] max_context_tokens is {budget}: raise it to {num} and what is answered"
            )
        trained = config.trainer_config()
        if num >= trained.max_tokens and not trained.should_split:
            raise UsageError(
                f"the first prompt of {env_config.id!r} has {num} tokens (task {task_id!r}), and"
                f" [train] max_tokens is {trained.max_tokens}: raise it, or set should_split = true"
            )


def check_store(config: RlConfig) -> None:
    """Raise `UsageError` where others are to play into a store that is not there."""
    folder = config.rollouts.store
    if folder and not RolloutStore.is_at(folder):
        raise UsageError(
            f"there is no rollout store at {folder!r} ([rollouts] store). Start what plays into it"
            f" first: katgym gateway --upstream URL --store {folder}, or katgym rollouts collect"
            f" ENV --policy URI --store {folder}"
        )


async def _num_prompt_tokens(env: Env, split: str, task_id: str, renderer: Any) -> int:
    observation, _ = await env.areset(seed=0, options={"split": split, "task_id": task_id})
    try:
        tools = [tool.to_openai() for tool in env.tools.values()]
        ids = renderer.render_ids(observation, tools=tools or None, add_generation_prompt=True)
        return len(ids)
    finally:
        await env.aclose()
