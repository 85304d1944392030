"""Paired differences and their tests, by hand and against scipy."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from katgym.evaluation.statistics.intervals import Interval, Row
from katgym.evaluation.statistics.paired import compare_paired, sign_flip_p_value


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_by_hand_with_unequal_attempts() -> None:
    # Task means: A 1/2, 0, 1; B 1, 0, 3/4. Differences: 1/2, 0, -1/4.
    a: list[Row] = [("x", 0), ("x", 1), ("y", 0), ("z", 1)]
    b: list[Row] = [("x", 1), ("y", 0), ("y", 0), ("z", 1), ("z", 0.5)]
    result = compare_paired(a, b, rng=_rng())
    assert (result.mean_a, result.mean_b) == pytest.approx((1.5 / 3, 1.75 / 3))
    assert result.difference == pytest.approx(0.25 / 3)
    assert (result.num_wins, result.num_losses, result.num_ties) == (1, 1, 1)
    # Flips of 1/2 and 1/4: |sum| is 3/4, 1/4, 1/4, 3/4, none below the 1/4 observed.
    assert result.permutation_p_value == 1.0


def test_equals_scipys_paired_t_test() -> None:
    rng = np.random.default_rng(4)
    before = rng.normal(size=63)
    after = before + rng.normal(0.2, 0.5, size=63)
    result = compare_paired(
        [(f"t{i}", float(v)) for i, v in enumerate(before)],
        [(f"t{i}", float(v)) for i, v in enumerate(after)],
        rng=_rng(),
    )
    expected = stats.ttest_rel(after, before)
    interval = expected.confidence_interval(0.95)
    assert result.p_value == pytest.approx(float(expected.pvalue), rel=1e-9)
    assert result.t_interval is not None
    assert (result.t_interval.low, result.t_interval.high) == pytest.approx(
        (float(interval.low), float(interval.high))
    )
    assert result.permutation_p_value == pytest.approx(float(expected.pvalue), abs=0.01)


def test_sign_flip_equals_scipys_exact_permutation_test() -> None:
    differences = [0.5, -0.1, 0.3, 0.7, -0.2, 0.4, 0.1, 0.6]
    expected = stats.permutation_test(
        (np.array(differences),), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p_value(differences, rng=_rng()) == pytest.approx(float(expected.pvalue))


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8))
def test_sign_flip_equals_enumeration(differences: list[int]) -> None:
    observed = abs(sum(differences))
    flips = itertools.product((-1, 1), repeat=len(differences))
    totals = [abs(sum(s * d for s, d in zip(f, differences, strict=True))) for f in flips]
    expected = sum(total >= observed for total in totals) / len(totals)
    assert sign_flip_p_value(differences, rng=_rng()) == pytest.approx(expected)


def test_sampled_sign_flips_come_near_the_exact_ones_and_are_never_zero() -> None:
    differences = [0.1 * (i % 5) - 0.1 for i in range(13)]
    exact = sign_flip_p_value(differences, rng=_rng(), num_resamples=2**13)
    sampled = sign_flip_p_value(differences, rng=_rng(), num_resamples=8000)
    assert exact is not None
    assert sampled == pytest.approx(exact, abs=0.02)
    assert sign_flip_p_value([1.0] * 40, rng=_rng(), num_resamples=999) == 1 / 1000


def test_tasks_of_only_one_run_are_named() -> None:
    result = compare_paired(
        [("a", 1), ("b", 0), ("old", 1)], [("b", 1), ("a", 1), ("new1", 0), ("new2", 0)], rng=_rng()
    )
    assert result.num_shared == 2
    assert result.only_a == ("old",)
    assert result.only_b == ("new1", "new2")


def test_no_shared_task_is_an_error() -> None:
    with pytest.raises(ValueError, match="share no task: 1 in A such as 'a', 1 in B such as 'b'"):
        compare_paired([("a", 1)], [("b", 1)], rng=_rng())


def test_one_shared_task_has_a_difference_and_nothing_else() -> None:
    result = compare_paired([("a", 0.25)], [("a", 1.0)], rng=_rng())
    assert result.difference == 0.75
    assert result.stderr is None
    assert result.t_interval is None
    assert result.bootstrap_interval is None
    assert result.p_value is None
    assert result.permutation_p_value is None


def test_equal_differences_have_no_t_test_but_a_sign_flip_test() -> None:
    rows_a: list[Row] = [(f"t{i}", 0) for i in range(5)]
    rows_b: list[Row] = [(f"t{i}", 1) for i in range(5)]
    result = compare_paired(rows_a, rows_b, rng=_rng())
    assert result.stderr == 0.0
    assert result.p_value is None
    assert result.permutation_p_value == 2 / 2**5
    assert result.t_interval == Interval(low=1.0, high=1.0)


def test_a_run_ties_with_itself() -> None:
    rows: list[Row] = [("a", 0.1), ("a", 0.7), ("b", 1.0)]
    result = compare_paired(rows, rows, rng=_rng())
    assert (result.difference, result.num_ties, result.permutation_p_value) == (0.0, 2, 1.0)


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 4)), min_size=5, max_size=20),
    st.randoms(use_true_random=False),
)
def test_order_does_not_show_and_swapping_negates(rows: list[Row], rnd: random.Random) -> None:
    other: list[Row] = [(task, 4 - value * value / 4) for task, value in rows]
    shuffled = list(rows)
    rnd.shuffle(shuffled)
    result = compare_paired(rows, other, rng=_rng(), num_resamples=50)
    assert compare_paired(shuffled, other, rng=_rng(), num_resamples=50) == result
    swapped = compare_paired(other, rows, rng=_rng(), num_resamples=50)
    assert swapped.difference == pytest.approx(-result.difference)
    assert (swapped.num_wins, swapped.num_losses) == (result.num_losses, result.num_wins)
    assert swapped.permutation_p_value == result.permutation_p_value
