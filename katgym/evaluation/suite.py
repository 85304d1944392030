"""A suite of evaluations: its runs, played one after the other within a budget, and their board.

Each run is a folder as `katgym eval` makes it, so that the suite goes on where it stopped, and a
changed file plays what is new in it alone. Not here: the file (`suite_config.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import katgym
from katgym.errors import KatgymError
from katgym.evaluation.bounds import PlanBounds
from katgym.evaluation.leaderboard.leaderboard import Leaderboard, build_leaderboard
from katgym.evaluation.leaderboard.leaderboard_entry import EnvLock, LeaderboardEntry
from katgym.evaluation.plan import Plan, parse_env, plan_env
from katgym.evaluation.run import Watch, play_run
from katgym.evaluation.run_folders import LOCK_FILE, default_folder
from katgym.evaluation.run_state import RunState
from katgym.evaluation.statistics.summary import EnvSummary, summarize
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.evaluation.suite_config import SuiteConfig, SuiteModel
from katgym.play.rollout import Rollout
from katgym.policies.uri import policy as make_policy
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.groups import stored_rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """One model in one env with one seed."""

    model: SuiteModel
    env_id: str
    seed: int
    plan: Plan
    folder: Path

    def rollouts(self) -> list[Rollout]:
        """Return what has ended, each attempt once."""
        return read_rollouts(self.folder) if (self.folder / LOCK_FILE).exists() else []

    def state(self, rollouts: Sequence[Rollout]) -> RunState:
        """Return how far it is."""
        return RunState(
            folder=self.folder,
            config=self.plan.config,
            num_planned=len(self.plan),
            num_ended=len(rollouts),
            num_invalid=sum(not rollout.reward.is_valid for rollout in rollouts),
        )

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is missing or invalid."""
        return str(self.state(self.rollouts())) == "finished"

    @property
    def spent(self) -> float:
        """Dollars, for every rollout that has ended, played again or not."""
        if not RolloutStore.is_at(self.folder):
            return 0.0
        with RolloutStore.open(self.folder, create=False) as store:
            return sum(_cost(self, rollout) for rollout in stored_rollouts(store))

    def bounds(self) -> PlanBounds:
        """Return what is missing of it at most."""
        whole = PlanBounds.of(self.plan)
        return whole.share(whole.num_rollouts - self.state(self.rollouts()).num_ended)

    def max_cost(self, bounds: PlanBounds) -> float | None:
        """Return dollars for what bounds allow; None where no one knows how long prompts are."""
        if bounds.num_calls and self.model.prompt_price and not self.model.context_tokens:
            return None
        num_prompt_tokens = bounds.num_calls * self.model.context_tokens
        return self.model.prices.cost(num_prompt_tokens, bounds.num_completion_tokens)


@dataclass(kw_only=True)
class Suite:
    """All runs of a suite, what they have cost, and what went wrong."""

    config: SuiteConfig
    runs: list[SuiteRun]
    spent: float = 0.0
    """Dollars, for every rollout that has ended, played again or not."""
    problems: dict[str, str] = field(default_factory=dict)
    """Model -> why its runs were given up."""

    @classmethod
    def of(cls, config: SuiteConfig, folder: Path) -> Suite:
        """Plan every run, in folders of their own below `folder`.

        `UsageError` for what cannot be played; nothing is written.
        """
        runs = []
        for seed in config.seeds:
            for env in config.envs:
                env_id, kwargs = parse_env(env)
                planned = plan_env(env_id, kwargs, config.config_of(config.models[0], env, seed))
                for model in config.models:
                    plan = Plan(config.config_of(model, env, seed), (planned,))
                    place = default_folder(plan, folder)
                    runs.append(
                        SuiteRun(model=model, env_id=env_id, seed=seed, plan=plan, folder=place)
                    )
        order = {model.label: number for number, model in enumerate(config.models)}
        suite = cls(config=config, runs=sorted(runs, key=lambda run: order[run.model.label]))
        suite.spent = sum(run.spent for run in suite.runs)
        return suite

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return self.config.max_cost is not None and self.spent >= self.config.max_cost

    async def play(self, watch: Watch) -> None:
        """Play what is missing; a model that fails is given up, and the next one is played.

        watch: as in `evaluate`, for each run.
        """
        for model in self.config.models:
            mine = [run for run in self.runs if run.model is model and not run.is_done]
            if not mine or self.is_spent:
                continue
            try:
                async with aclosing(make_policy(model.uri)) as policy:
                    for run in mine:
                        await play_run(
                            run.plan,
                            policy,
                            run.folder,
                            watch=watch,
                            budget=_RunBudget(self, run),
                        )
            except KatgymError as e:
                self.problems[model.label] = str(e)

    def states(self) -> list[RunState]:
        """Return how far each run is."""
        return [run.state(run.rollouts()) for run in self.runs]

    def entries(self) -> list[LeaderboardEntry]:
        """Return each model's row of the board: all its envs, over all seeds."""
        return [self._entry(model) for model in self.config.models]

    def board(self, title: str) -> Leaderboard | None:
        """Return the models side by side; None before any rollout has ended."""
        entries = self.entries()
        if not any(entry.summary.envs for entry in entries):
            return None
        return build_leaderboard(entries, title=title)

    def _entry(self, model: SuiteModel) -> LeaderboardEntry:
        mine = [run for run in self.runs if run.model is model]
        found = [run.rollouts() for run in mine]
        states = [run.state(rollouts) for run, rollouts in zip(mine, found, strict=True)]
        num_ended, num_planned = (
            sum(getattr(state, name) for state in states) for name in ("num_ended", "num_planned")
        )
        # Attempts of several seeds at one task are told apart, as attempts of one seed are.
        pooled = [
            replace(rollout, attempt=rollout.attempt + place * self.config.group_size)
            for run, rollouts in zip(mine, found, strict=True)
            for place in [self.config.seeds.index(run.seed)]
            for rollout in rollouts
        ]
        locks = [read_lock(run.folder) for run in mine if (run.folder / LOCK_FILE).exists()]
        return LeaderboardEntry(
            run_name=model.label,
            policy=model.uri,
            date=min((str(lock["created"])[:10] for lock in locks), default=""),
            katgym_version=katgym.__version__,
            sampling={"temperature": model.sampling.temperature, "top_p": model.sampling.top_p},
            env_locks={run.env_id: self._lock(run.env_id) for run in mine},
            summary=summarize(pooled),
            prices=model.prices,
            unfinished=""
            if num_ended >= num_planned
            else f"{num_ended} of {num_planned} rollouts have ended",
        )

    def _lock(self, env_id: str) -> EnvLock:
        """Return what pins an env over all seeds."""
        first = self.config.models[0]
        mine = [run for run in self.runs if run.env_id == env_id and run.model is first]
        told = [run.plan.envs[0].lock() for run in mine]
        hashes = "\n".join(lock["tasks_sha256"] for lock in told)
        digest = hashlib.sha256(hashes.encode()).hexdigest()
        return EnvLock(plugin_version=told[0]["plugin_version"], tasks_sha256=digest)

    def to_json(self) -> dict[str, Any]:
        """Return what came of it as plain JSON values: a row for each run."""
        rows = [_row(run) for run in self.runs]
        return {
            "is_finished": all(row["state"] == "finished" for row in rows),
            "spent": self.spent,
            "max_cost": self.config.max_cost,
            "problems": self.problems,
            "runs": rows,
        }


@dataclass(frozen=True, slots=True)
class _RunBudget:
    """The suite's budget, while one of its runs is played."""

    suite: Suite
    run: SuiteRun

    def may_begin(self) -> bool:
        """See `PlayBudget.may_begin`."""
        return not self.suite.is_spent

    def count(self, rollout: Rollout) -> None:
        """See `PlayBudget.count`."""
        self.suite.spent += _cost(self.run, rollout)


def _cost(run: SuiteRun, rollout: Rollout) -> float:
    return run.model.prices.cost(rollout.num_prompt_tokens, rollout.num_completion_tokens)


def _row(run: SuiteRun) -> dict[str, Any]:
    rollouts = run.rollouts()
    state = run.state(rollouts)
    env: EnvSummary | None = summarize(rollouts).envs.get(run.env_id)
    figures = ("success_rate", "mean_reward", "wall_s")
    interval = env.success_interval if env is not None else None
    return {
        "model": run.model.label,
        "env": run.plan.config.envs[0],
        "seed": run.seed,
        "folder": str(run.folder),
        "state": str(state),
        "num_planned": state.num_planned,
        "num_ended": state.num_ended,
        "num_invalid": state.num_invalid,
        **{name: getattr(env, name, None) for name in figures},
        "num_prompt_tokens": sum(rollout.num_prompt_tokens for rollout in rollouts),
        "num_completion_tokens": sum(rollout.num_completion_tokens for rollout in rollouts),
        "success_interval": [interval.low, interval.high] if interval is not None else None,
        "cost": sum(_cost(run, rollout) for rollout in rollouts),
    }
