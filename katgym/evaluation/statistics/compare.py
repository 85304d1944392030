"""Compare two runs, env by env, paired by task.

Not here: the statistics (`paired.py`), tables of many runs (`leaderboard.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from katgym.environment.reward import Headline
from katgym.evaluation.statistics.attempts import attempts_by_env
from katgym.evaluation.statistics.intervals import DEFAULT_LEVEL, DEFAULT_NUM_RESAMPLES, Row
from katgym.evaluation.statistics.number_text import (
    NONE,
    count_text,
    interval_text,
    number_text,
    p_value_text,
)
from katgym.evaluation.statistics.paired import PairedComparison, compare_paired
from katgym.play.rollout import Rollout
from katgym.text_table import TextTable

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvComparison:
    """Run B against run A in one env, by the figure that heads its results.

    `paired` is None when there is nothing to pair; `warnings` says why, and everything else that
    makes the two runs less than the same experiment.
    """

    env_id: str
    headline: Headline
    paired: PairedComparison | None
    num_invalid_a: int
    num_invalid_b: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs, by env id; envs of only one run are there too, with a warning."""

    envs: dict[str, EnvComparison]


def compare_runs(
    lines_a: Iterable[Rollout],
    lines_b: Iterable[Rollout],
    *,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
    seed: int = 0,
) -> RunComparison:
    """Compare two runs from their rollouts; differences are B minus A.

    A task whose content hash differs between the runs is left out and named in a warning. `seed` is
    that of the bootstrap and the permutation test. `UsageError` as in `summarize`.
    """
    a, b = attempts_by_env(lines_a), attempts_by_env(lines_b)
    envs = {}
    for env_id in sorted(a.keys() | b.keys()):
        rng = np.random.default_rng(seed)
        ours, theirs = a.get(env_id, []), b.get(env_id, [])
        changed = _find_changed_tasks(ours, theirs)
        headlines = {line.success.headline for line in (*ours, *theirs)}
        headline = headlines.pop() if len(headlines) == 1 else Headline.MEAN_REWARD
        rows_a, rows_b = (_rows(lines, changed, headline) for lines in (ours, theirs))
        paired = None
        if {task_id for task_id, _ in rows_a} & {task_id for task_id, _ in rows_b}:
            paired = compare_paired(
                rows_a, rows_b, rng=rng, level=level, num_resamples=num_resamples
            )
        envs[env_id] = EnvComparison(
            env_id=env_id,
            headline=headline,
            paired=paired,
            num_invalid_a=sum(not line.reward.is_valid for line in ours),
            num_invalid_b=sum(not line.reward.is_valid for line in theirs),
            warnings=tuple(_warnings(ours, theirs, changed, paired)),
        )
    return RunComparison(envs=envs)


def _rows(lines: Iterable[Rollout], left_out: Iterable[str], headline: Headline) -> list[Row]:
    skipped, is_rate = set(left_out), headline is Headline.SUCCESS_RATE
    return [
        (line.task_id, float(line.is_success) if is_rate else line.reward.value)
        for line in lines
        if line.reward.value is not None and line.task_id not in skipped
    ]


def _find_changed_tasks(a: Iterable[Rollout], b: Iterable[Rollout]) -> list[str]:
    """Return ids of tasks that both runs have with different content."""
    hashes_a = {line.task_id: line.task_sha256 for line in a}
    hashes_b = {line.task_id: line.task_sha256 for line in b}
    shared = sorted(hashes_a.keys() & hashes_b.keys())
    return [t for t in shared if hashes_a[t] and hashes_b[t] and hashes_a[t] != hashes_b[t]]


def _warnings(
    a: list[Rollout],
    b: list[Rollout],
    changed: list[str],
    paired: PairedComparison | None,
) -> list[str]:
    if not a or not b:
        return [f"only run {'A' if a else 'B'} has this env"]
    warnings = []
    if changed:
        warnings.append(
            f"{_names(changed)} changed content between the runs and"
            f" {'is' if len(changed) == 1 else 'are'} left out"
        )
    definitions = {str(line.success) for line in (*a, *b)}
    if len({line.success for line in (*a, *b)}) > 1:
        told = " or ".join(sorted(definitions))
        warnings.append(f"the runs differ in what heads the results or is a success ({told})")
    if paired is None:
        warnings.append("no task has a valid reward in both runs: nothing to compare")
        return warnings
    for name, tasks in (("A", paired.only_a), ("B", paired.only_b)):
        if tasks:
            warnings.append(f"{_names(tasks)} scored only in run {name}")
    if paired.num_shared == 1:
        warnings.append("one shared task: no interval and no test")
    seeds_a, seeds_b = _seeds(a), _seeds(b)
    num_differing = sum(seeds_a[t] != seeds_b[t] for t in seeds_a.keys() & seeds_b.keys())
    if num_differing:
        warnings.append(
            f"{num_differing} shared {'task was' if num_differing == 1 else 'tasks were'} played"
            " with different env seeds: the episodes are not the same"
        )
    return warnings


def _seeds(lines: Iterable[Rollout]) -> dict[str, set[int | None]]:
    seeds: dict[str, set[int | None]] = {}
    for line in lines:
        seeds.setdefault(line.task_id, set()).add(line.seed)
    return seeds


def _names(tasks: Iterable[str]) -> str:
    names = list(tasks)
    shown = ", ".join(repr(name) for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{len(names)} {'task' if len(names) == 1 else 'tasks'} ({shown}{more})"


def comparison_table(
    comparison: RunComparison, *, name_a: str = "A", name_b: str = "B"
) -> RenderableType:
    """Return the comparison as something rich can print: a table, then its warnings."""
    levels = sorted({e.paired.level for e in comparison.envs.values() if e.paired is not None})
    shown = " and ".join(f"{level:.4g}" for level in levels) or "none"
    columns = [
        *("env", "headline", "tasks", name_a, name_b, "difference", f"t interval ({shown})"),
        *("p (t)", "p (sign flip)", "won/tied/lost", "invalid"),
    ]
    table = TextTable(
        header=columns,
        rows=[(env.env_id, *_cells(env)) for env in comparison.envs.values()],
        right=columns[2:],
        title=f"{name_b} minus {name_a}, paired by task",
    )
    notes = [
        Text(f"warning: {env.env_id}: {warning}", style="yellow")
        for env in comparison.envs.values()
        for warning in env.warnings
    ]
    return Group(table, *notes)


def _cells(env: EnvComparison) -> list[str]:
    invalid = f"{env.num_invalid_a} / {env.num_invalid_b}"
    pair = env.paired
    name = "success" if env.headline is Headline.SUCCESS_RATE else "reward"
    if pair is None:
        return [name, *[NONE] * 8, invalid]
    sign = "+" if pair.difference > 0 else ""
    return [
        name,
        count_text(pair.num_shared),
        number_text(pair.mean_a),
        number_text(pair.mean_b),
        sign + number_text(pair.difference),
        interval_text(pair.t_interval),
        p_value_text(pair.p_value),
        p_value_text(pair.permutation_p_value),
        f"{pair.num_wins}/{pair.num_ties}/{pair.num_losses}",
        invalid,
    ]
