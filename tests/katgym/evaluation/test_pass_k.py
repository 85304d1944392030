"""pass@k and pass^k are shares of subsets of attempts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.evaluation.statistics.pass_k import mean_pass_k, pass_at_k, pass_hat_k, powers_of_two


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, int, int]:
    n = draw(st.integers(1, 9))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(_cases())
def test_both_equal_the_share_of_subsets(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_by_hand() -> None:
    # n = 4, c = 2, k = 2: 6 pairs, 1 without a success, 1 of two successes
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_hat_k(4, 2, 2) == pytest.approx(1 / 6)


def test_large_counts_stay_exact() -> None:
    assert pass_at_k(1025, 1, 1) == pytest.approx(1 / 1025)
    assert pass_hat_k(1025, 1024, 512) == pytest.approx(513 / 1025)


@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k])
def test_fewer_attempts_than_k_are_an_error_not_an_estimate(function: object) -> None:
    assert callable(function)
    with pytest.raises(ValueError, match="k=4 needs at least 4 attempts of the task, got 3"):
        function(3, 1, 4)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (-1, 0, 1)])
def test_impossible_counts_are_an_error(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="got"):
        pass_at_k(n, c, k)


def test_mean_goes_up_to_the_smallest_number_of_attempts() -> None:
    at, hat = mean_pass_k([(4, 2), (3, 3)])
    assert at == pytest.approx({1: (0.5 + 1) / 2, 2: (5 / 6 + 1) / 2})
    assert hat == pytest.approx({1: (0.5 + 1) / 2, 2: (1 / 6 + 1) / 2})


def test_mean_of_no_tasks_is_empty() -> None:
    assert mean_pass_k([]) == ({}, {})


@pytest.mark.parametrize(("limit", "ks"), [(0, []), (1, [1]), (7, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_powers_of_two(limit: int, ks: list[int]) -> None:
    assert powers_of_two(limit) == ks
