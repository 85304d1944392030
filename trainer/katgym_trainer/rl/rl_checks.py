"""Checks of a run's model, envs and budgets, made before anything is played.

Not here: what a file's text shows (`config/rl_config.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from katgym.environment.env import Env
from katgym.errors import UsageError
from katgym.play.episode_clock import EpisodeClock, HungError, Phase
from katgym.play.limits import Limits
from katgym.rollout_store.store import RolloutStore
from katgym.system.concurrency import DaemonThreads
from katgym.system.sync import run_sync
from katgym_trainer.config.rl_config import EnvConfig, RlConfig
from katgym_trainer.rollouts.store_cursors import find_stores

logger = logging.getLogger(__name__)


def check_prompts(
    config: RlConfig, renderer: Any, lessons: Iterable[tuple[EnvConfig, Env, str]]
) -> None:
    """Raise `UsageError` for a first prompt that leaves no room for an answer.

    renderer: turns messages into tokens. lessons: each with an env and a task of it, which is
    begun and given up. A prompt that does not come within `[rollouts] timeout_s` is not checked.
    """
    budget = config.policy.max_context_tokens
    for env_config, env, task_id in lessons:
        limits, split = config.rollouts.limits, env_config.split
        try:
            num = len(run_sync(first_prompt(env.clone(), split, task_id, renderer, limits)))
        except HungError as e:  # while playing, another episode takes its place
            logger.warning("the first prompt of %r is not checked: %s", env_config.id, e)
            continue
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
    for folder in map(str, find_stores(config.rollouts.store)):
        if not RolloutStore.is_at(folder):
            raise UsageError(
                f"there is no rollout store at {folder!r} ([rollouts] store). Start what plays into"
                f" it first: katgym gateway --upstream URL --store {folder}, or katgym rollouts"
                f" collect ENV --policy URI --store {folder}"
            )


async def first_prompt(
    env: Env, split: str, task_id: str, renderer: Any, limits: Limits
) -> list[int]:
    """Return the token ids of a task's first prompt; `HungError` if `limits` end before it comes.

    The episode is given up, and the env closed.
    """
    asyncio.get_running_loop().set_default_executor(DaemonThreads())  # the env may hang in them
    clock = EpisodeClock(limits)

    async def render() -> list[int]:
        try:
            async with clock.running(Phase.RESET):
                options = {"split": split, "task_id": task_id}
                observation, _ = await env.areset(seed=0, options=options)
        except TimeoutError as e:
            raise clock.fault(e) or e from None
        else:
            tools = [tool.to_openai() for tool in env.tools.values()]
            how = {"tools": tools or None, "add_generation_prompt": True}
            return list(renderer.render_ids(observation, **how))
        finally:
            await clock.release(env)

    return await clock.watch(render())
