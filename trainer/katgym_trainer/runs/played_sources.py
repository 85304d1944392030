"""Rollouts that are played at the start of a run: by the envs' own solutions, and by the model.

What the model plays can be held to the best known solution of each task, which the env itself plays
first: it is stopped when it has taken `slack` times as many turns or tool calls, and its reward can
be made relative,

    r' = r * min(1, t_best / t)      t, t_best: turns of the rollout, and of the solution

Not here: reading rollouts (`training_data.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.playing import play_missing
from katgym.evaluation.run import evaluate
from katgym.evaluation.store import open_run, read_rollouts
from katgym.play.engine import RolloutRequest
from katgym.play.limits import Limits
from katgym.policies.base import Sampling
from katgym.policies.uri import policy as make_policy
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.config.train_run_config import CollectConfig, OracleRolloutsConfig

logger = logging.getLogger(__name__)

TaskKey = tuple[str, str]
"""Env id and task id."""


@dataclass(frozen=True, slots=True)
class GuidedPlan(Plan):
    """A plan whose rollouts are stopped when they have gone far beyond the best known solution."""

    num_turns: Mapping[TaskKey, int]
    """Turns of each task's solution; a task that has none is played without a limit."""
    slack: float
    """At least 1: times that many turns are allowed."""

    def requests(self) -> Iterator[RolloutRequest]:
        """Yield the plan's rollouts, each with its own limit of turns."""
        for request in super(GuidedPlan, self).requests():
            env_id, task_id, _ = request.key.rsplit(" ", 2)
            best = self.num_turns.get((env_id, task_id))
            if best is None:
                yield request
                continue
            most = math.ceil(self.slack * best)
            limits = self.config.limits
            if limits.max_turns is not None:
                most = min(most, limits.max_turns)
            yield replace(request, limits=replace(limits, max_turns=most))


def oracle_plan(oracle: OracleRolloutsConfig, envs: tuple[str, ...]) -> EvalConfig:
    """Return what the envs' own solutions play."""
    return EvalConfig(
        envs=envs,
        policy=oracle.policy,
        num_tasks=oracle.num_tasks,
        seed=oracle.seed,
        split=oracle.split,
    )


def collect_plan(collect: CollectConfig, model: ModelConfig) -> EvalConfig:
    """Return what the model plays."""
    options = {"max_context_tokens": str(collect.max_context_tokens)}
    if model.renderer:
        options["renderer"] = model.renderer
    return EvalConfig(
        envs=collect.envs,
        policy=f"hf:{model.path}?{urlencode(options)}",
        num_tasks=collect.num_tasks,
        group_size=collect.group_size,
        seed=collect.seed,
        split=collect.split,
        sampling=Sampling(temperature=collect.temperature, max_tokens=collect.max_tokens),
        limits=Limits(max_turns=collect.max_turns),
        max_concurrency=collect.max_concurrency,
    )


def play_oracle(oracle: OracleRolloutsConfig, envs: tuple[str, ...], folder: Path) -> None:
    """Let the envs solve their tasks; what an earlier start played is kept."""
    result = asyncio.run(evaluate(oracle_plan(oracle, envs), folder))
    if result.num_failed:
        logger.warning("%d oracle rollouts have no valid reward", result.num_failed)


def play_model(collect: CollectConfig, model: ModelConfig, folder: Path) -> dict[TaskKey, int]:
    """Let the model play into `folder`/collected; return the turns of the best known solutions.

    Those are played into `folder`/solutions, where they are asked for. What an earlier start played
    is kept.
    """
    wanted = collect_plan(collect, model)
    best: dict[TaskKey, int] = {}
    if collect.needs_solutions:
        solutions = replace(
            wanted, policy="oracle", group_size=1, sampling=Sampling(), limits=Limits()
        )
        asyncio.run(evaluate(solutions, folder / "solutions"))
        best = {
            (rollout.env_id, rollout.task_id): rollout.num_turns
            for rollout in read_rollouts(folder / "solutions")
            if (rollout.reward.value or 0) > 0
        }
        if not best:
            raise UsageError(
                f"no env solves a task of its own: {str(folder / 'solutions')!r} holds no solution"
            )
    plan = Plan.of(wanted)
    if collect.slack is not None:
        plan = GuidedPlan(plan.config, plan.envs, best, collect.slack)
    policy = make_policy(plan.config.policy)

    async def play() -> None:
        try:
            with open_run(folder / "collected", plan, policy.describe()) as store:
                await play_missing(plan, policy, store, lambda _: None)
        finally:
            await policy.aclose()

    asyncio.run(play())
    return best


def relative_reward(value: float, num_turns: int, best: int | None) -> float:
    """Return a reward relative to the best known solution's number of turns; None: as it is."""
    return value if best is None else value * min(1.0, best / max(1, num_turns))
