"""Means, clustered errors, intervals, Student's t, pass@k: by hand, by scipy and statsmodels."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from nightly import IS_NIGHT
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
from katgym.evaluation.statistics.pass_k import mean_pass_k, pass_at_k, pass_hat_k, powers_of_two
from katgym.evaluation.statistics.student_t import regularized_beta, t_quantile, t_upper_tail

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


def test_mean_and_standard_error_by_hand() -> None:
    assert mean(ROWS) == 0.5
    # CR0 = (1**2 + 0.5**2 + 0.5**2) / 6**2 = 1.5 / 36; CR1 = CR0 * 3 / 2 = 0.0625
    assert clustered_standard_error(ROWS) == pytest.approx(0.25)


def test_standard_error_equals_statsmodels_clustered_ols_and_the_ordinary_one() -> None:
    for num_tasks in (2, 3, 17, 100):
        rows = _random_rows(num_tasks, seed=num_tasks)
        tasks = np.array([int(task[1:]) for task, _ in rows])
        values = np.array([value for _, value in rows])
        fit = sm.OLS(values, np.ones(len(values))).fit(
            cov_type="cluster", cov_kwds={"groups": tasks, "use_correction": True}
        )
        assert mean(rows) == pytest.approx(float(fit.params[0]), rel=1e-12), num_tasks
        assert clustered_standard_error(rows) == pytest.approx(float(fit.bse[0]), rel=1e-10)
    once = [("t0", 0.1), ("t1", 0.4), ("t2", 0.35), ("t3", 0.8)]
    assert clustered_standard_error(once) == pytest.approx(float(stats.sem([v for _, v in once])))


def test_t_interval_equals_scipy_with_tasks_minus_one_dof() -> None:
    interval = t_interval(ROWS, level=0.9)
    low, high = stats.t.interval(0.9, 2, loc=0.5, scale=0.25)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((float(low), float(high)))


def test_repeating_every_rollout_does_not_narrow_the_interval() -> None:
    once, thrice = t_interval(ROWS), t_interval(ROWS * 3)
    assert once is not None and thrice is not None
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


def test_equal_values_have_no_spread_at_all() -> None:
    for value in (0.0, 1.0, 0.1, 1 / 49):
        rows = [(f"t{i % 7}", value) for i in range(49)]
        assert (mean(rows), clustered_standard_error(rows)) == (value, 0.0)
        assert t_interval(rows) == Interval(low=value, high=value)


def test_one_task_has_no_interval_and_no_standard_error() -> None:
    rows = [("only", 0.0), ("only", 1.0)]
    assert mean(rows) == 0.5
    assert t_interval(rows) is None
    assert bootstrap_interval(rows, rng=np.random.default_rng(0)) is None
    assert success_interval(rows) is None
    with pytest.raises(ValueError, match="two tasks or more, got only 'only'"):
        clustered_standard_error(rows)


def test_what_no_statistic_is_made_of_is_an_error(subtests: pytest.Subtests) -> None:
    with pytest.raises(ValueError, match="no rows"):
        mean([])
    with pytest.raises(ValueError, match=r"got 0.5 for task 'a'"):
        success_interval([("a", 0.5), ("b", 1.0)])
    with pytest.raises(ValueError, match=r"got 1.5"):
        wilson_interval(1.5, 10)
    with pytest.raises(ValueError, match="num_trials is above 0, got 0"):
        wilson_interval(0.5, 0)
    for value in (math.nan, math.inf, -math.inf):
        with subtests.test(value=value), pytest.raises(ValueError, match=r"task 'b'.*finite"):
            t_interval([("a", 1.0), ("b", value)])
    for level in (0.0, 1.0, 95.0):
        with subtests.test(level=level), pytest.raises(ValueError, match=f"level .*got {level}"):
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
    rows = [(f"t{i}", float(i % 3)) for i in range(1025)]

    def interval(seed: int) -> Interval | None:  # of more cells than one block holds
        return bootstrap_interval(rows, rng=np.random.default_rng(seed), num_resamples=2000)

    assert interval(5) == interval(5) != interval(6)


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
def test_a_t_interval_has_the_mean_and_a_bootstrap_lies_within_the_tasks_means(
    rows: list[Row],
) -> None:
    found = t_interval(rows)
    resampled = bootstrap_interval(rows, rng=np.random.default_rng(0), num_resamples=50)
    groups = values_by_task(rows)
    assert (found is None) == (resampled is None) == (len(groups) == 1)
    if found is not None and resampled is not None:
        assert found.low <= mean(rows) <= found.high
        means = [sum(values) / len(values) for values in groups.values()]
        assert min(means) - 1e-9 <= resampled.low <= resampled.high <= max(means) + 1e-9


def test_wilson_equals_statsmodels() -> None:
    for hits, trials in ((0, 5), (1, 63), (7, 10), (10, 10), (512, 1025)):
        interval = wilson_interval(hits / trials, trials)
        low, high = proportion_confint(hits, trials, alpha=0.05, method="wilson")
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12), trials


def test_a_success_interval_is_wilsons_of_the_effective_sample_size() -> None:
    # ROWS: rate 1/2, clustered stderr 1/4: deff = (1/16) / (1/4 / 5) = 5/4, so 4.8 of 6 rollouts.
    cases = {
        "effective": (ROWS, wilson_interval(0.5, 4.8)),
        "one rollout a task": (
            [(f"t{i}", float(i < 7)) for i in range(10)], wilson_interval(0.7, 10),
        ),
        "all successes count tasks, not rollouts": (
            [(f"t{i}", 1.0) for i in range(10) for _ in range(8)], wilson_interval(1.0, 10),
        ),
    }  # fmt: skip
    for name, (rows, expected) in cases.items():
        interval = success_interval(rows)
        assert interval is not None
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high)), name


def test_success_interval_never_counts_more_than_the_rollouts() -> None:
    # Both tasks are near the mean: the spread between them promises more than 5 rollouts hold.
    rows = [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), ("b", 1.0)]
    interval, floor = success_interval(rows), wilson_interval(0.6, 5)
    assert interval is not None
    assert interval.low <= floor.low + 1e-12 and interval.high >= floor.high - 1e-12


# ---- Student's t


def test_student_t_agrees_with_scipy() -> None:
    some_dofs = range(1, 1001) if IS_NIGHT else (*range(1, 41), 63, 100, 1000)
    for probability in (0.55, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995):
        found = [t_quantile(probability, dof) for dof in some_dofs]
        expected = stats.t.ppf(probability, list(some_dofs))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), probability
    for dof in (0.5, 1, 2.7, 9, 63, 1025):
        points = [-40.0, -2.0, -1e-9, 0.0, 1e-9, 0.3, 1.0, 2.5, 12.0, 1e4]
        tails = [t_upper_tail(t, dof) for t in points]
        assert tails == pytest.approx(stats.t.sf(points, dof), rel=1e-9, abs=1e-300), dof


def test_student_t_by_hand_and_what_it_refuses(subtests: pytest.Subtests) -> None:
    # One degree is Cauchy's: P(T <= t) = 1/2 + atan(t) / pi, so the quantile is tan(0.475 * pi).
    assert t_quantile(0.975, 1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert t_upper_tail(1.0, 1) == pytest.approx(0.25, rel=1e-12)
    assert t_quantile(0.5, 7) == 0.0
    assert t_quantile(0.025, 7) == pytest.approx(-t_quantile(0.975, 7), rel=1e-12)
    assert (t_upper_tail(math.inf, 3), t_upper_tail(-math.inf, 3)) == (0.0, 1.0)
    x = 0.3  # I_x(2, 3) = 6 x**2 - 8 x**3 + 3 x**4
    assert regularized_beta(x, 1 - x, 2, 3) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4)
    for probability in (0.0, 1.0, -0.1, math.nan):
        with subtests.test(probability=probability), pytest.raises(ValueError, match="probability"):
            t_quantile(probability, 5)
    for dof in (0, -1, math.nan, math.inf):
        with subtests.test(dof=dof), pytest.raises(ValueError, match="degrees of freedom"):
            t_upper_tail(1.0, dof)


# ---- pass@k and pass^k: shares of subsets of attempts


@st.composite
def _attempts(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 9))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(_attempts())
def test_pass_at_k_and_pass_hat_k_are_shares_of_subsets(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_pass_k_of_large_and_of_impossible_counts(subtests: pytest.Subtests) -> None:
    assert pass_at_k(1025, 1, 1) == pytest.approx(1 / 1025)
    assert pass_hat_k(1025, 1024, 512) == pytest.approx(513 / 1025)
    for function in (pass_at_k, pass_hat_k):
        for counts in [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0), (-1, 0, 1)]:
            told = "k=4 .*got 3" if counts[2] == 4 else "got"
            with subtests.test(counts=counts), pytest.raises(ValueError, match=told):
                function(*counts)


def test_mean_pass_k_goes_up_to_the_smallest_number_of_attempts() -> None:
    # n = 4, c = 2, k = 2: 6 pairs, 1 without a success, 1 of two successes
    at, hat = mean_pass_k([(4, 2), (3, 3)])
    assert at == pytest.approx({1: (0.5 + 1) / 2, 2: (5 / 6 + 1) / 2})
    assert hat == pytest.approx({1: (0.5 + 1) / 2, 2: (1 / 6 + 1) / 2})
    assert mean_pass_k([]) == ({}, {})
    ks = {0: [], 1: [1], 7: [1, 2, 4], 8: [1, 2, 4, 8]}
    assert {limit: powers_of_two(limit) for limit in ks} == ks
