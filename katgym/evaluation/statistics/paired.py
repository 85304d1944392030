"""Two runs on the same tasks, compared task by task.

Pairing removes the spread between easy and hard tasks, which is most of what an interval around one
run's mean consists of (Miller 2024, arXiv:2411.00640).

Not here: matching runs by env id and telling about seeds (`compare.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from katgym.errors import UsageError
from katgym.evaluation.statistics.intervals import (
    DEFAULT_LEVEL,
    DEFAULT_NUM_RESAMPLES,
    Interval,
    Row,
    bootstrap_interval,
    clustered_standard_error,
    mean,
    t_interval,
    values_by_task,
)
from katgym.evaluation.statistics.student_t import t_upper_tail

_MAX_CELLS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """Run B minus run A, over the tasks both have.

    `num_wins` counts tasks on which B's mean is higher. A None says that the number does not exist:
    fewer than two shared tasks, or for `p_value` differences without any spread.

    Example:
        PairedComparison(num_shared=40, difference=0.05, p_value=0.03, num_wins=9, ...)
    """

    num_shared: int
    only_a: tuple[str, ...]
    """Ids of tasks that B lacks."""
    only_b: tuple[str, ...]
    mean_a: float
    """Mean over shared tasks of A's mean on each."""
    mean_b: float
    difference: float
    stderr: float | None
    t_interval: Interval | None
    bootstrap_interval: Interval | None
    p_value: float | None
    """Two-sided, of the paired t test."""
    permutation_p_value: float | None
    """Two-sided, of the sign-flip test: no assumption of normality."""
    num_wins: int
    num_losses: int
    num_ties: int
    level: float


def compare_paired(
    rows_a: Iterable[Row],
    rows_b: Iterable[Row],
    *,
    rng: np.random.Generator,
    level: float = DEFAULT_LEVEL,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> PairedComparison:
    """Compare per-task means of two runs over the tasks both have.

    d = mean_b - mean_a per task; t = mean(d) / (stdev(d) / sqrt(G)) with G - 1 degrees of freedom.
    `UsageError` (a `ValueError`) when no task is shared.
    """
    groups_a, groups_b = values_by_task(rows_a), values_by_task(rows_b)
    shared = [task_id for task_id in groups_a if task_id in groups_b]
    if not shared:
        raise UsageError(
            f"the runs share no task: {len(groups_a)} in A such as {next(iter(groups_a))!r},"
            f" {len(groups_b)} in B such as {next(iter(groups_b))!r}."
            " A paired comparison needs runs over the same tasks."
        )
    means_a = [(t, mean((t, v) for v in groups_a[t])) for t in shared]
    means_b = [(t, mean((t, v) for v in groups_b[t])) for t in shared]
    rows = [(t, b - a) for (t, a), (_, b) in zip(means_a, means_b, strict=True)]
    difference = mean(rows)
    stderr = clustered_standard_error(rows) if len(shared) > 1 else None
    p_value = None
    if stderr:
        p_value = 2 * t_upper_tail(abs(difference) / stderr, len(shared) - 1)
    return PairedComparison(
        num_shared=len(shared),
        only_a=tuple(t for t in groups_a if t not in groups_b),
        only_b=tuple(t for t in groups_b if t not in groups_a),
        mean_a=mean(means_a),
        mean_b=mean(means_b),
        difference=difference,
        stderr=stderr,
        t_interval=t_interval(rows, level=level),
        bootstrap_interval=bootstrap_interval(
            rows, rng=rng, level=level, num_resamples=num_resamples
        ),
        p_value=p_value,
        permutation_p_value=sign_flip_p_value(
            [d for _, d in rows], rng=rng, num_resamples=num_resamples
        ),
        num_wins=sum(d > 0 for _, d in rows),
        num_losses=sum(d < 0 for _, d in rows),
        num_ties=sum(d == 0 for _, d in rows),
        level=level,
    )


def sign_flip_p_value(
    differences: Iterable[float],
    *,
    rng: np.random.Generator,
    num_resamples: int = DEFAULT_NUM_RESAMPLES,
) -> float | None:
    """Return the two-sided p-value of "each difference's sign is a coin flip"; None for one task.

    p = share of sign patterns with |sum(sign * d)| >= |sum(d)|. All 2**m patterns of the m
    differences that are not 0 are counted when there are at most `num_resamples` of them, else
    p = (1 + hits) / (1 + num_resamples) over random ones (Phipson and Smyth 2010), which is
    never 0.
    """
    values = [float(d) for d in differences]
    if len(values) < 2:
        return None
    nonzero = np.sort(np.array([d for d in values if d != 0.0]))
    if len(nonzero) == 0:
        return 1.0
    # Patterns that tie with the observed sum on paper must tie after rounding too.
    bound = abs(math.fsum(nonzero)) - 1e-12 * float(np.abs(nonzero).sum())
    if 2 ** len(nonzero) <= num_resamples:
        patterns = np.array(list(itertools.product((-1.0, 1.0), repeat=len(nonzero))))
        return float(np.mean(np.abs(patterns @ nonzero) >= bound))
    hits = 0
    block = max(1, _MAX_CELLS // len(nonzero))
    for start in range(0, num_resamples, block):
        size = min(block, num_resamples - start)
        signs = 2.0 * rng.integers(2, size=(size, len(nonzero))) - 1.0
        hits += int((np.abs(signs @ nonzero) >= bound).sum())
    return (1 + hits) / (1 + num_resamples)
