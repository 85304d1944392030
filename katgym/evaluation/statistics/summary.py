"""The summary of a run, per env: reward, success, pass@k, turns, tools, tokens, with intervals.

Invalid rollouts (infrastructure faults, scorer errors) are counted and shown, and enter no mean:
failed is not zero. Where there are any, the success rate stands beside the one that counts them as
failures: a policy gains nothing by making unscorable what it cannot solve. Not here: two runs
against each other (`compare.py`), several runs (`leaderboard.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from katgym.environment.failure import RolloutStatus
from katgym.environment.reward import Headline, Success, Trust
from katgym.errors import UsageError
from katgym.evaluation.statistics.attempts import attempts_by_env, spent_tokens
from katgym.evaluation.statistics.component_summary import (
    ComponentSummary,
    summarize_components,
)
from katgym.evaluation.statistics.intervals import (
    DEFAULT_LEVEL,
    DEFAULT_NUM_RESAMPLES,
    Interval,
    bootstrap_interval,
    clustered_standard_error,
    mean,
    success_interval,
    t_interval,
)
from katgym.evaluation.statistics.number_text import NONE, count_text, estimate_text, number_text
from katgym.evaluation.statistics.pass_k import mean_pass_k
from katgym.play.rollout import Rollout
from katgym.text_table import TextTable

UNSPECIFIED = "unspecified"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSummary:
    """One env of a run. "Scored" rollouts are those with a valid reward.

    Means and rates are over scored rollouts, each weighing the same; None when there is none.
    Intervals and `stderr` are None with fewer than two scored tasks. Totals (tokens, time,
    statuses) are over all rollouts.

    Example:
        EnvSummary(env_id="katgym/Math-v0", num_tasks=50, num_rollouts=200, num_invalid=3,
                   mean_reward=0.61, stderr=0.05, t_interval=Interval(low=0.51, high=0.71), ...)
    """

    env_id: str
    num_tasks: int
    num_scored_tasks: int
    """Tasks with a scored rollout."""
    num_rollouts: int
    num_invalid: int
    invalid_kinds: dict[str, int]
    """Failure kind -> number of invalid rollouts."""
    mean_reward: float | None
    stderr: float | None
    """Of the mean reward, clustered by task (CR1)."""
    t_interval: Interval | None
    bootstrap_interval: Interval | None
    success_rate: float | None
    """Share of scored rollouts that are a `success`."""
    success_interval: Interval | None
    """Wilson, with the effective sample size under clustering by task."""
    success: Success
    """As the env says, and which of the two figures heads its results."""
    pass_at_k: dict[int, float]
    """k -> mean over scored tasks; k up to the smallest number of scored rollouts of a task."""
    pass_hat_k: dict[int, float]
    mean_turns: float | None
    tool_calls_per_turn: float | None
    parallel_calls_per_turn: float | None
    """Calls that ran in a stage of two or more."""
    turns_per_success: float | None = None
    """Turns of all scored rollouts over the number of those that succeeded: the price of one."""
    parallel_calls_per_success: float | None = None
    truncated_fraction: float | None
    """Share of scored rollouts that a budget ended."""
    statuses: dict[str, int]
    num_prompt_tokens: int
    num_completion_tokens: int
    wall_s: float
    """Summed over rollouts; more than the run took, when they ran at the same time."""
    level: float
    """Of all intervals."""
    num_resamples: int
    bootstrap_seed: int
    tasks_sha256: str
    """Of the task ids played and their content hashes: equal for runs of the same tasks."""
    seeds_sha256: str
    """Of the pairs of task id and env seed: equal for runs of the same episodes."""
    components: dict[str, ComponentSummary] = field(default_factory=dict)
    """Reward components and metrics by name; empty in summaries of katgym < 0.2."""
    trust: dict[str, int] = field(default_factory=dict)
    """Level -> number of tasks whose verdicts have it, `withheld` -> number of verdicts; empty
    where no verdict has a level."""
    withheld_reason: str = ""
    """Of the first verdict that is withheld, with its task."""

    @property
    def success_rate_of_all(self) -> float:
        """Share of all rollouts that succeeded: an invalid one counts as a failure."""
        return (self.success_rate or 0.0) * (1 - self.num_invalid / self.num_rollouts)

    @property
    def headline(self) -> tuple[float | None, Interval | None]:
        """The figure that heads the env's results, and its interval."""
        if self.success.headline is Headline.MEAN_REWARD:
            return self.mean_reward, self.t_interval
        return self.success_rate, self.success_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The summaries of all envs of a run, by env id."""

    envs: dict[str, EnvSummary]
    root: str = ""
    """Of the run's hash chain when it was summarised; "" without one."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: `summary.json`."""
        data: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        for env in data["envs"].values():
            for name in ("trust", "withheld_reason"):
                if not env[name]:
                    del env[name]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSummary:
        """Return the summary that `to_json` wrote; `UsageError` names a field that does not fit."""
        try:
            return msgspec.convert(dict(data), cls, str_keys=True)
        except msgspec.ValidationError as e:
            raise UsageError(f"not a run summary: {e}. `katgym eval` writes summary.json.") from e


def summarize(
    rollouts: Iterable[Rollout],
    *,
    success_threshold: float | None = None,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
    bootstrap_seed: int = 0,
) -> RunSummary:
    """Summarise a run's rollouts, in any order; none give no envs.

    success_threshold: of the reward, in place of what the envs call a success (None).

    `UsageError` (a `ValueError`) names an attempt that occurs twice.
    """
    envs = {}
    for env_id, lines in sorted(attempts_by_env(rollouts).items()):
        success = lines[-1].success
        if success_threshold is not None:
            success = replace(success, threshold=success_threshold, component="")
        envs[env_id] = _summarize_env(
            lines,
            success=success,
            level=level,
            num_resamples=num_resamples,
            bootstrap_seed=bootstrap_seed,
        )
    return RunSummary(envs=envs)


def _summarize_env(
    lines: Sequence[Rollout],
    *,
    success: Success,
    level: float,
    num_resamples: int,
    bootstrap_seed: int,
) -> EnvSummary:
    scored = [line for line in lines if line.reward.is_valid]
    rows = [(s.task_id, s.reward.value) for s in scored if s.reward.value is not None]
    successes = [(line.task_id, float(success.is_met(line.reward))) for line in scored]
    outcomes: dict[str, list[float]] = {}
    for task_id, value in successes:
        outcomes.setdefault(task_id, []).append(value)
    at, hat = mean_pass_k((len(s), round(sum(s))) for s in outcomes.values())
    kinds = Counter(
        str(x.reward.failure_kind or UNSPECIFIED) for x in lines if not x.reward.is_valid
    )
    num_turns = sum(line.num_turns for line in scored)
    num_parallel = sum(line.num_parallel_calls for line in scored)
    num_successes = round(sum(value for _, value in successes))
    truncated = sum(line.status == RolloutStatus.TRUNCATED for line in scored)
    rng = np.random.default_rng(bootstrap_seed)
    trust, withheld_reason = _count_trust(scored)
    return EnvSummary(
        env_id=lines[0].env_id,
        num_tasks=len({line.task_id for line in lines}),
        num_scored_tasks=len(outcomes),
        num_rollouts=len(lines),
        num_invalid=len(lines) - len(scored),
        invalid_kinds=dict(sorted(kinds.items())),
        mean_reward=mean(rows) if rows else None,
        stderr=clustered_standard_error(rows) if len(outcomes) > 1 else None,
        t_interval=t_interval(rows, level=level) if rows else None,
        bootstrap_interval=bootstrap_interval(
            rows, rng=rng, level=level, num_resamples=num_resamples
        )
        if rows
        else None,
        success_rate=mean(successes) if rows else None,
        success_interval=success_interval(successes, level=level) if rows else None,
        success=success,
        pass_at_k=at,
        pass_hat_k=hat,
        mean_turns=_ratio(num_turns, len(scored)),
        tool_calls_per_turn=_ratio(sum(line.num_tool_calls for line in scored), num_turns),
        parallel_calls_per_turn=_ratio(num_parallel, num_turns),
        turns_per_success=_ratio(num_turns, num_successes),
        parallel_calls_per_success=_ratio(num_parallel, num_successes),
        truncated_fraction=_ratio(truncated, len(scored)),
        statuses=dict(sorted(Counter(str(line.status) for line in lines).items())),
        num_prompt_tokens=sum(spent_tokens(line)[0] for line in lines),
        num_completion_tokens=sum(spent_tokens(line)[1] for line in lines),
        wall_s=sum(line.wall_s for line in lines),
        level=level,
        num_resamples=num_resamples,
        bootstrap_seed=bootstrap_seed,
        tasks_sha256=_sha256({(line.task_id, line.task_sha256) for line in lines}),
        seeds_sha256=_sha256({(line.task_id, line.seed) for line in lines}),
        components=summarize_components(scored, level=level),
        trust=trust,
        withheld_reason=withheld_reason,
    )


def _count_trust(scored: Iterable[Rollout]) -> tuple[dict[str, int], str]:
    """Return `EnvSummary.trust` and `withheld_reason`; a task of several levels has the least."""
    levels, tasks, withheld = list(Trust), dict[str, Trust](), list[Rollout]()
    for line in sorted(scored, key=lambda line: (line.task_id, line.attempt)):
        trust = line.reward.trust
        if trust is Trust.WITHHELD:
            withheld.append(line)
        elif trust is not None:
            tasks[line.task_id] = max(trust, tasks.get(line.task_id, trust), key=levels.index)
    counts = Counter({**Counter(tasks.values()), Trust.WITHHELD: len(withheld)})
    first = f"{withheld[0].task_id}: {withheld[0].reward.trust_reason}" if withheld else ""
    return {str(level): counts[level] for level in levels if counts[level]}, first


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _sha256(items: Iterable[tuple[object, ...]]) -> str:
    return hashlib.sha256(json.dumps(sorted(items, key=repr)).encode()).hexdigest()


def trust_text(envs: Iterable[EnvSummary]) -> str:
    """Return the levels of trust over envs; "" where no verdict has one.

    Example:
        "complete 41, partial 9, withheld 1"
    """
    counts: Counter[str] = Counter()
    for env in envs:
        counts.update(env.trust)
    return ", ".join(f"{level} {count_text(counts[level])}" for level in Trust if counts[level])


def success_text(envs: Iterable[EnvSummary]) -> str:
    """Return what counts as success, with the envs named where they differ.

    Example:
        "reward at least 1; katgym/OpenSpiel-v0: win at least 1"
    """
    found: dict[str, list[str]] = {}
    for env in envs:
        found.setdefault(str(env.success), []).append(env.env_id)
    if len(found) < 2:
        return "".join(found)
    most = max(found, key=lambda text: len(found[text]))
    others = [
        f"{', '.join(dict.fromkeys(ids))}: {text}" for text, ids in found.items() if text != most
    ]
    return "; ".join([most, *others])


def summary_table(summary: RunSummary) -> TextTable:
    """Return a table of a run, one row per env; the caption says what the intervals are."""
    levels = sorted({env.level for env in summary.envs.values()})
    shown = " and ".join(f"{level:.4g}" for level in levels) or "none"
    columns = "env,headline,reward,success,pass^k,tasks,rollouts,invalid,turns,parallel,tokens out"
    if has_invalid := any(env.num_invalid for env in summary.envs.values()):
        columns = columns.replace("success", "success,of all")
    rows = []
    for env in summary.envs.values():
        k = max(env.pass_hat_k, default=0)
        cells = (
            env.env_id,
            "success" if env.success.headline is Headline.SUCCESS_RATE else "reward",
            estimate_text(env.mean_reward, env.t_interval),
            estimate_text(env.success_rate, env.success_interval),
            *([number_text(env.success_rate_of_all)] if has_invalid else []),
            f"{env.pass_hat_k[k]:.3f} (k={k})" if k else NONE,
            count_text(env.num_tasks),
            count_text(env.num_rollouts),
            count_text(env.num_invalid),
            number_text(env.mean_turns, 1),
            number_text(env.parallel_calls_per_turn, 1),
            count_text(env.num_completion_tokens),
        )
        rows.append(cells)
    names = columns.split(",")
    caption = (
        f"intervals: level {shown}, clustered by task; invalid rollouts are in no mean;\n"
        f"of all: with invalid ones as failures; success: {success_text(summary.envs.values())};\n"
        "parallel: calls a turn that overlapped"
    )
    return TextTable(header=names, rows=rows, right=names[2:], caption=caption)
