"""Progress of an evaluation's run, and the configuration that goes on with it.

Not here: what a run holds (`store.py`), the command line of a configuration
(`katgym.cli.plan_options`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.config.sections import section
from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig, env_text
from katgym.play.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Rollouts that have ended, of those that are planned.

    Example:
        RunState(folder=Path("runs/a"), config=EvalConfig(...), num_planned=20, num_ended=2,
                 num_invalid=0)
    """

    folder: Path
    config: EvalConfig
    """As the lock tells it: what is not a run's identity is the default."""
    num_planned: int
    num_ended: int
    """Each attempt at a task once, with a valid reward or without."""
    num_invalid: int
    """Of those, without a valid reward: the same command plays them again."""

    @classmethod
    def of(cls, folder: Path, lock: Mapping[str, Any], rollouts: Sequence[Rollout]) -> RunState:
        """Return the state of an evaluation by its lock and its rollouts.

        `UsageError` for a training run.
        """
        if "envs" not in lock:
            raise UsageError(
                f"{str(folder)!r} is a training run; katgym view {folder} --html shows it"
            )
        return cls(
            folder=folder,
            config=config_of(lock),
            num_planned=sum(env["num_tasks"] for env in lock["envs"]) * lock["group_size"],
            num_ended=len(rollouts),
            num_invalid=sum(not rollout.reward.is_valid for rollout in rollouts),
        )

    @property
    def is_finished(self) -> bool:
        """Whether every planned rollout has ended."""
        return self.num_ended >= self.num_planned

    @property
    def missing(self) -> str:
        """Say how far it is; "" when it is finished."""
        if self.is_finished:
            return ""
        return f"{self.num_ended} of {self.num_planned} rollouts have ended"

    def __str__(self) -> str:
        invalid = f", {self.num_invalid} invalid" if self.num_invalid else ""
        return f"{self.missing or 'finished'}{invalid}"


def policy_text(lock: Mapping[str, Any]) -> str:
    """Return who played an evaluation: its policy, with how attempts were chosen where they were.

    Example:
        "oracle?accuracy=0.4 tts:best_of=8"
    """
    return f"{lock['policy']} tts:{lock['tts']}" if lock.get("tts") else str(lock["policy"])


def config_of(lock: Mapping[str, Any]) -> EvalConfig:
    """Return the configuration that an evaluation's lock was made of."""
    named = ("policy", "split", "seed", "group_size", "sampling", "limits")
    raw = {
        **{name: lock[name] for name in named},
        "tts": lock.get("tts", ""),
        "envs": [env_text(env["env_id"], env["kwargs"]) for env in lock["envs"]],
        # Every env has as many tasks as there are, or this number of them.
        "num_tasks": max(env["num_tasks"] for env in lock["envs"]),
    }
    return section(EvalConfig, raw, "lock.json")
