"""Means over rollouts clustered by task, and intervals that respect the clustering.

A row is `(task_id, value)`, one per rollout. Rollouts of one task resemble each other, so the task,
not the rollout, is what was drawn at random: all uncertainty here comes from the spread between
tasks. With one task there is none to be seen, and the interval is None rather than a guess.

Not here: pass@k (`pass_k.py`), two runs against each other (`paired.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from katgym.errors import UsageError
from katgym.evaluation.statistics.student_t import t_quantile

Row = tuple[str, float]

DEFAULT_LEVEL = 0.95
DEFAULT_NUM_RESAMPLES = 10_000
_MAX_CELLS = 2_000_000  # of one block of resamples: 16 MB of indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval, both ends included.

    Example:
        Interval(low=0.41, high=0.63)
    """

    low: float
    high: float


def values_by_task(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Group values by task, both sorted, so that the order of rows never shows in a result.

    `UsageError` (a `ValueError`) for no rows at all and for NaN or infinite values.
    """
    groups: dict[str, list[float]] = {}
    for task_id, value in rows:
        number = float(value)
        if not math.isfinite(number):
            raise UsageError(
                f"value of task {task_id!r} is {number!r}; values are finite numbers."
                " Leave out rollouts without a valid reward, they do not count as 0."
            )
        groups.setdefault(task_id, []).append(number)
    if not groups:
        raise UsageError("no rows: statistics need at least one (task_id, value)")
    return {task_id: sorted(groups[task_id]) for task_id in sorted(groups)}


def mean(rows: Iterable[Row]) -> float:
    """Return the mean over rows: sum(values) / len(values), every rollout weighing the same."""
    return _mean([value for values in values_by_task(rows).values() for value in values])


def _mean(values: list[float]) -> float:
    # Rounding must not push the mean of equal values off them: their spread would not be 0.
    return min(max(math.fsum(values) / len(values), min(values)), max(values))


def clustered_standard_error(rows: Iterable[Row]) -> float:
    """Return the standard error of `mean`, clustered by task (CR1); `UsageError` for one task.

    With N rows in G tasks and residuals e = value - mean:
        CR0 = sum_over_tasks(sum_of_its_e ** 2) / N ** 2
        CR1 = CR0 * G / (G - 1)
        stderr = sqrt(CR1)
    Liang and Zeger 1986; Cameron and Miller 2015, for a regression on a constant, where the other
    factor of CR1, (N - 1) / (N - 1), is 1. Equals statsmodels'
    `OLS(y, ones).fit(cov_type="cluster")` with its default correction. Miller 2024
    (arXiv:2411.00640) recommends clustering for evaluations.
    """
    groups = values_by_task(rows)
    num_tasks = len(groups)
    if num_tasks < 2:
        raise UsageError(
            f"a standard error needs rows of two tasks or more, got only {next(iter(groups))!r}:"
            " one task shows no spread between tasks"
        )
    values = [value for group in groups.values() for value in group]
    center = _mean(values)
    square = math.fsum(math.fsum(v - center for v in group) ** 2 for group in groups.values())
    return math.sqrt(square * num_tasks / (num_tasks - 1)) / len(values)


def t_interval(rows: Iterable[Row], *, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return mean -+ t * stderr with G - 1 degrees of freedom for G tasks; None for one task.

    Equal values give an interval without width: no spread was seen, which is not certainty. For
    rates, `success_interval` does not have that flaw.
    """
    _check_level(level)
    groups = values_by_task(rows)
    if len(groups) < 2:
        return None
    flat = [(task_id, value) for task_id, values in groups.items() for value in values]
    stderr, center = clustered_standard_error(flat), mean(flat)
    half = t_quantile(0.5 + level / 2, len(groups) - 1) * stderr
    return Interval(low=center - half, high=center + half)


def bootstrap_interval(
    rows: Iterable[Row],
    *,
    rng: np.random.Generator,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> Interval | None:
    """Return the percentile interval of the mean under resampling of tasks; None for one task.

    Each resample draws G of the G tasks with replacement, each with all its rollouts (the cluster
    bootstrap: Davison and Hinkley 1997; percentiles: Efron and Tibshirani 1993).
    Too narrow below about 20 tasks, as every percentile bootstrap.
    """
    _check_level(level)
    if num_resamples < 1:
        raise UsageError(f"num_resamples is at least 1, got {num_resamples!r}")
    groups = list(values_by_task(rows).values())
    if len(groups) < 2:
        return None
    sums_G = np.array([math.fsum(group) for group in groups])
    counts_G = np.array([len(group) for group in groups], dtype=np.float64)
    means = np.empty(num_resamples)
    block = max(1, _MAX_CELLS // len(groups))  # resamples at a time, which bounds the memory
    for start in range(0, num_resamples, block):
        size = min(block, num_resamples - start)
        picks = rng.integers(len(groups), size=(size, len(groups)))
        means[start : start + size] = sums_G[picks].sum(axis=1) / counts_G[picks].sum(axis=1)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(low=float(low), high=float(high))


def wilson_interval(rate: float, num_trials: float, *, level: float = DEFAULT_LEVEL) -> Interval:
    """Return Wilson's score interval for a rate over independent trials (Wilson 1927).

    center = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    `num_trials` may be fractional: an effective sample size.
    """
    _check_level(level)
    if not 0.0 <= rate <= 1.0:
        raise UsageError(f"a rate is in [0, 1], got {rate!r}")
    if not num_trials > 0:
        raise UsageError(f"num_trials is above 0, got {num_trials!r}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    shrink = 1.0 + z * z / num_trials
    center = (rate + z * z / (2 * num_trials)) / shrink
    inner = rate * (1 - rate) / num_trials + z * z / (4 * num_trials**2)
    half = z / shrink * math.sqrt(inner)
    # At the edges the ends are exactly 0 and 1; rounding would miss them by an ulp.
    low = 0.0 if rate == 0.0 else max(0.0, center - half)
    high = 1.0 if rate == 1.0 else min(1.0, center + half)
    return Interval(low=low, high=high)


def success_interval(rows: Iterable[Row], *, level: float = DEFAULT_LEVEL) -> Interval | None:
    """Return a Wilson interval for rows of 0 and 1 clustered by task; None for a single task.

    num_trials = min(N, N / deff), where deff = stderr ** 2 / (rate * (1 - rate) / (N - 1)) is how
    much clustering by task widens the variance: the effective sample size of Franco et al. 2019
    (Journal of Survey Statistics and Methodology 7:334). With one rollout a task it is N. Where the
    stderr is 0 (every task has the same rate), num_trials = G, the number of tasks: the cautious
    reading, in which rollouts of one task repeat each other.
    """
    groups = values_by_task(rows)
    flat = [(task_id, value) for task_id, values in groups.items() for value in values]
    for task_id, value in flat:
        if value not in (0.0, 1.0):
            raise UsageError(f"a success is 0 or 1, got {value!r} for task {task_id!r}")
    if len(groups) < 2:
        return None
    stderr, rate = clustered_standard_error(flat), mean(flat)
    num_trials: float = len(groups)
    if stderr > 0.0:
        design_effect = stderr**2 * (len(flat) - 1) / (rate * (1 - rate))
        num_trials = min(len(flat), len(flat) / design_effect)
    return wilson_interval(rate, num_trials, level=level)


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise UsageError(f"a confidence level is inside (0, 1), got {level!r}. 0.95 is usual.")
