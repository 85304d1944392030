"""Student's t agrees with scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from katgym.evaluation.statistics.student_t import regularized_beta, t_quantile, t_upper_tail


@pytest.mark.parametrize("probability", [0.55, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995])
def test_quantile_agrees_with_scipy_for_all_dof_to_1000(probability: float) -> None:
    for dof in range(1, 1001):
        expected = float(stats.t.ppf(probability, dof))
        assert t_quantile(probability, dof) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dof", [0.5, 1, 2.7, 9, 63, 1025])
@pytest.mark.parametrize("t", [-40.0, -2.0, -1e-9, 0.0, 1e-9, 0.3, 1.0, 2.5, 12.0, 1e4])
def test_upper_tail_agrees_with_scipy(t: float, dof: float) -> None:
    assert t_upper_tail(t, dof) == pytest.approx(float(stats.t.sf(t, dof)), rel=1e-9, abs=1e-300)


def test_one_degree_of_freedom_is_the_cauchy_distribution() -> None:
    # P(T <= t) = 1/2 + atan(t) / pi, so the 0.975 quantile is tan(0.475 * pi).
    assert t_quantile(0.975, 1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-12)
    assert t_upper_tail(1.0, 1) == pytest.approx(0.25, rel=1e-12)


def test_quantile_is_symmetric_and_zero_at_the_median() -> None:
    assert t_quantile(0.5, 7) == 0.0
    assert t_quantile(0.025, 7) == pytest.approx(-t_quantile(0.975, 7), rel=1e-12)


def test_infinite_t_has_no_tail() -> None:
    assert t_upper_tail(math.inf, 3) == 0.0
    assert t_upper_tail(-math.inf, 3) == 1.0


def test_regularized_beta_of_whole_numbers() -> None:
    # I_x(2, 3) = 6 x**2 - 8 x**3 + 3 x**4
    x = 0.3
    assert regularized_beta(x, 1 - x, 2, 3) == pytest.approx(6 * x**2 - 8 * x**3 + 3 * x**4)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan])
def test_quantile_rejects_what_is_no_probability(probability: float) -> None:
    with pytest.raises(ValueError, match=r"probability is inside \(0, 1\), got"):
        t_quantile(probability, 5)


@pytest.mark.parametrize("dof", [0, -1, math.nan, math.inf])
def test_dof_must_be_positive_and_finite(dof: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom are above 0"):
        t_upper_tail(1.0, dof)
