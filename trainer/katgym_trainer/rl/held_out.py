"""Held-out tasks, played by the policy while it is trained; a line of `eval.jsonl` for each env.

Not here: evaluating models on disk (`katgym eval`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any
from urllib.parse import urlencode

from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.statistics.summary import summarize
from katgym.play.engine import GroupPlayer
from katgym.play.rollout import Rollout
from katgym.policies.base import Sampling
from katgym.system.concurrency import run_all
from katgym_trainer.config.rl_config import RlConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutResult:
    """What one evaluation found.

    Example:
        HeldOutResult(step=20, success=0.61, headline=0.61, rollouts=[...],
                      lines=[{"step": 20, "env": "katgym/Math-v0", ...}])
    """

    step: int
    success: float
    """Mean over the envs of the share of valid rollouts that succeeded; 0.0 for an env with
    none."""
    headline: float
    """Mean over the envs of what heads the results of each: success or mean reward."""
    lines: Sequence[Mapping[str, Any]]
    rollouts: Sequence[Rollout]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the step that it belongs to."""
        found = {"eval/success": self.success, "eval/headline": self.headline}
        for line in self.lines:
            if line["success"] is not None:
                found[f"eval/{line['env']}/success"] = line["success"]
        return found


class HeldOut:
    """The held-out tasks of a run, chosen once."""

    def __init__(self, config: RlConfig) -> None:
        """Choose the tasks; `UsageError` for what cannot be played."""
        options = config.evaluate
        self._every_steps, self._last_step = options.every_steps, config.loop.num_steps
        self._sampling = Sampling(
            temperature=options.temperature, max_tokens=config.policy.max_tokens
        )
        names = list(options.envs)
        for env in () if names else config.envs:
            # The last lesson of an env, as `id?name=value&...`.
            env_id, kwargs = env.lessons[-1]
            pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in kwargs.items()}
            names.append(f"{env_id}?{urlencode(pairs)}" if pairs else env_id)
        self._plans = {
            name: Plan.of(
                EvalConfig(
                    envs=(name,),
                    policy="trained",
                    num_tasks=options.num_tasks,
                    group_size=options.attempts,
                    seed=options.seed,
                    split=options.split,
                )
            )
            for name in dict.fromkeys(names)
        }

    def __len__(self) -> int:
        """Return the rollouts of one evaluation."""
        return sum(map(len, self._plans.values()))

    def is_due(self, step: int) -> bool:
        """Return whether the tasks are played after a step."""
        return step % max(1, self._every_steps) == 0 or step == self._last_step

    async def evaluate(self, player: GroupPlayer, step: int) -> HeldOutResult:
        """Have all tasks played with the policy as it is, beside groups that are trained on."""
        lines: list[dict[str, Any]] = []
        headlines: list[float] = []
        played: list[Rollout] = []
        for name, plan in self._plans.items():
            requests = [replace(r, sampling=self._sampling) for r in plan.requests()]
            tasks = [list(group) for _, group in groupby(requests, key=lambda r: r.task_id)]
            rollouts = list(chain(*await run_all(player.play_group(task) for task in tasks)))
            found = summarize(rollouts)
            (summary,) = found.envs.values()
            headlines.append(summary.headline[0] or 0.0)
            interval, of_reward = summary.success_interval, summary.t_interval
            lines.append(
                {
                    "step": step,
                    "env": name,
                    "headline": str(summary.success.headline),
                    "success": summary.success_rate,
                    "low": None if interval is None else interval.low,
                    "high": None if interval is None else interval.high,
                    "reward": summary.mean_reward,
                    "reward_low": None if of_reward is None else of_reward.low,
                    "reward_high": None if of_reward is None else of_reward.high,
                    "turns": summary.mean_turns,
                    "turns_per_success": summary.turns_per_success,
                    "tool_calls_per_turn": summary.tool_calls_per_turn,
                    "parallel_calls_per_turn": summary.parallel_calls_per_turn,
                    "num_tasks": summary.num_tasks,
                    "num_rollouts": summary.num_rollouts,
                    "num_invalid": summary.num_invalid,
                    "num_completion_tokens": summary.num_completion_tokens,
                }
            )
            played += rollouts
        rates = [line["success"] or 0.0 for line in lines]
        return HeldOutResult(
            step=step,
            success=sum(rates) / len(rates),
            headline=sum(headlines) / len(headlines),
            lines=lines,
            rollouts=played,
        )
