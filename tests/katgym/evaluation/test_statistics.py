"""Means, clustered standard errors and intervals against numbers by hand, scipy and statsmodels."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from katgym.evaluation.statistics.intervals import (
    Interval,
    Row,
    bootstrap_interval,
    clustered_standard_error,
    mean,
    success_interval,
    t_interval,
    values_by_task,
    wilson_interval,
)

# Three tasks with 2, 1 and 3 rollouts: mean 0.5, residual sums per task 1, -0.5, -0.5.
ROWS: list[Row] = [("a", 1), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 0)]

VALUES = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))
ROW_LISTS = st.lists(st.tuples(st.sampled_from("abcdefg"), VALUES), min_size=1, max_size=40)


def _random_rows(num_tasks: int, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        (f"t{task}", float(rng.normal(task % 5, 1.0)))
        for task in range(num_tasks)
        for _ in range(int(rng.integers(1, 6)))
    ]


def test_mean_weighs_every_rollout_the_same() -> None:
    assert mean(ROWS) == 0.5


def test_standard_error_by_hand() -> None:
    # CR0 = (1**2 + 0.5**2 + 0.5**2) / 6**2 = 1.5 / 36; CR1 = CR0 * 3 / 2 = 0.0625
    assert clustered_standard_error(ROWS) == pytest.approx(0.25)


@pytest.mark.parametrize("num_tasks", [2, 3, 17, 100])
def test_standard_error_equals_statsmodels_clustered_ols(num_tasks: int) -> None:
    rows = _random_rows(num_tasks, seed=num_tasks)
    tasks = np.array([int(task[1:]) for task, _ in rows])
    values = np.array([value for _, value in rows])
    fit = sm.OLS(values, np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": tasks, "use_correction": True}
    )
    assert mean(rows) == pytest.approx(float(fit.params[0]), rel=1e-12)
    assert clustered_standard_error(rows) == pytest.approx(float(fit.bse[0]), rel=1e-10)


def test_one_rollout_a_task_gives_the_ordinary_standard_error() -> None:
    values = [0.1, 0.4, 0.35, 0.8]
    rows = [(f"t{i}", value) for i, value in enumerate(values)]
    assert clustered_standard_error(rows) == pytest.approx(float(stats.sem(values)))


def test_t_interval_equals_scipy_with_tasks_minus_one_dof() -> None:
    interval = t_interval(ROWS, level=0.9)
    low, high = stats.t.interval(0.9, 2, loc=0.5, scale=0.25)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((float(low), float(high)))


def test_repeating_every_rollout_does_not_narrow_the_interval() -> None:
    once, thrice = t_interval(ROWS), t_interval(ROWS * 3)
    assert once is not None and thrice is not None
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 49])
def test_equal_values_have_no_spread_at_all(value: float) -> None:
    rows = [(f"t{i % 7}", value) for i in range(49)]
    assert mean(rows) == value
    assert clustered_standard_error(rows) == 0.0
    assert t_interval(rows) == Interval(low=value, high=value)


def test_one_task_has_no_interval_and_no_standard_error() -> None:
    rows = [("only", 0.0), ("only", 1.0)]
    assert mean(rows) == 0.5
    assert t_interval(rows) is None
    assert bootstrap_interval(rows, rng=np.random.default_rng(0)) is None
    assert success_interval(rows) is None
    with pytest.raises(ValueError, match="two tasks or more, got only 'only'"):
        clustered_standard_error(rows)


def test_no_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="no rows: statistics need at least one"):
        mean([])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_an_error(value: float) -> None:
    with pytest.raises(ValueError, match=r"value of task 'b' is .*finite numbers"):
        t_interval([("a", 1.0), ("b", value)])


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_level_is_checked(level: float) -> None:
    with pytest.raises(ValueError, match=r"confidence level is inside \(0, 1\), got"):
        t_interval(ROWS, level=level)


def test_bootstrap_draws_whole_tasks() -> None:
    # Two tasks, both rows of each equal: a resample's mean is 0, 1/2 or 1, with weights 1, 2, 1.
    rows = [("a", 0.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)]
    interval = bootstrap_interval(rows, rng=np.random.default_rng(0), level=0.6)
    assert interval == Interval(low=0.0, high=1.0)
    narrow = bootstrap_interval(rows, rng=np.random.default_rng(0), level=0.4)
    assert narrow == Interval(low=0.5, high=0.5)


def test_bootstrap_comes_near_the_t_interval_for_many_tasks() -> None:
    rows = _random_rows(400, seed=3)
    exact = t_interval(rows)
    resampled = bootstrap_interval(rows, rng=np.random.default_rng(1))
    assert exact is not None and resampled is not None
    width = exact.high - exact.low
    assert resampled.low == pytest.approx(exact.low, abs=0.05 * width)
    assert resampled.high == pytest.approx(exact.high, abs=0.05 * width)


def test_bootstrap_repeats_with_its_seed_also_in_blocks() -> None:
    rows = [(f"t{i}", float(i % 3)) for i in range(1025)]  # more cells than one block holds
    first = bootstrap_interval(rows, rng=np.random.default_rng(5))
    assert first == bootstrap_interval(rows, rng=np.random.default_rng(5))
    assert first != bootstrap_interval(rows, rng=np.random.default_rng(6))


def test_bootstrap_agrees_with_scipy_for_one_rollout_a_task() -> None:
    values = np.random.default_rng(2).normal(size=63)
    rows = [(f"t{i}", float(value)) for i, value in enumerate(values)]
    ours = bootstrap_interval(rows, rng=np.random.default_rng(1))
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


@given(ROW_LISTS, st.randoms(use_true_random=False))
def test_order_of_rows_never_shows(rows: list[Row], rnd: random.Random) -> None:
    shuffled = list(rows)
    rnd.shuffle(shuffled)
    assert mean(rows) == mean(shuffled)
    assert t_interval(rows) == t_interval(shuffled)
    ours = bootstrap_interval(rows, rng=np.random.default_rng(0), num_resamples=50)
    assert ours == bootstrap_interval(shuffled, rng=np.random.default_rng(0), num_resamples=50)


@given(ROW_LISTS)
def test_bootstrap_interval_lies_within_the_tasks_means(rows: list[Row]) -> None:
    interval = bootstrap_interval(rows, rng=np.random.default_rng(0), num_resamples=50)
    groups = values_by_task(rows)
    if interval is None:
        assert len(groups) == 1
        return
    means = [sum(values) / len(values) for values in groups.values()]
    assert min(means) - 1e-9 <= interval.low <= interval.high <= max(means) + 1e-9


@given(ROW_LISTS)
def test_t_interval_contains_the_mean(rows: list[Row]) -> None:
    interval = t_interval(rows)
    if interval is not None:
        assert interval.low <= mean(rows) <= interval.high


@pytest.mark.parametrize(("hits", "trials"), [(0, 5), (1, 63), (7, 10), (10, 10), (512, 1025)])
def test_wilson_equals_statsmodels(hits: int, trials: int) -> None:
    interval = wilson_interval(hits / trials, trials)
    low, high = proportion_confint(hits, trials, alpha=0.05, method="wilson")
    assert (interval.low, interval.high) == pytest.approx((float(low), float(high)), abs=1e-12)


def test_wilson_rejects_what_is_no_rate() -> None:
    with pytest.raises(ValueError, match=r"a rate is in \[0, 1\], got 1.5"):
        wilson_interval(1.5, 10)
    with pytest.raises(ValueError, match="num_trials is above 0, got 0"):
        wilson_interval(0.5, 0)


def test_success_interval_of_all_successes_counts_tasks_not_rollouts() -> None:
    rows = [(f"t{i}", 1.0) for i in range(10) for _ in range(8)]
    assert success_interval(rows) == wilson_interval(1.0, 10)


def test_success_interval_uses_the_effective_sample_size() -> None:
    # rate 1/2, clustered stderr 1/4: deff = (1/16) / (1/4 / 5) = 5/4, so 4.8 of the 6 rollouts
    interval, expected = success_interval(ROWS), wilson_interval(0.5, 4.8)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_success_interval_of_one_rollout_a_task_is_wilsons() -> None:
    interval = success_interval([(f"t{i}", float(i < 7)) for i in range(10)])
    expected = wilson_interval(0.7, 10)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_success_interval_never_counts_more_than_the_rollouts() -> None:
    # Both tasks are near the mean: the spread between them promises more than 5 rollouts hold.
    rows = [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), ("b", 1.0)]
    interval, floor = success_interval(rows), wilson_interval(0.6, 5)
    assert interval is not None
    assert interval.low <= floor.low + 1e-12 and interval.high >= floor.high - 1e-12


def test_success_interval_takes_only_zero_and_one() -> None:
    with pytest.raises(ValueError, match=r"a success is 0 or 1, got 0.5 for task 'a'"):
        success_interval([("a", 0.5), ("b", 1.0)])
