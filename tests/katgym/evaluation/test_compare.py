"""Two runs are compared on the tasks they share: the paired statistics, and what differs."""

from __future__ import annotations

import io
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from katgym import Success
from katgym.environment.reward import Headline
from katgym.evaluation.statistics.compare import RunComparison, compare_runs, comparison_table
from katgym.evaluation.statistics.intervals import Interval, Row
from katgym.evaluation.statistics.paired import compare_paired, sign_flip_p_value

Make = Callable[..., dict[str, Any]]
TOY = "katgym/Toy-v0"
GRADED = Success(threshold=0.5, component="half", headline=Headline.MEAN_REWARD)


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


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8))
def test_sign_flip_equals_enumeration(differences: list[int]) -> None:
    observed = abs(sum(differences))
    flips = itertools.product((-1, 1), repeat=len(differences))
    totals = [abs(sum(s * d for s, d in zip(f, differences, strict=True))) for f in flips]
    expected = sum(total >= observed for total in totals) / len(totals)
    assert sign_flip_p_value(differences, rng=_rng()) == pytest.approx(expected)


def test_sign_flips_are_those_of_scipy_and_sampled_ones_come_near_and_are_never_zero() -> None:
    few = [0.5, -0.1, 0.3, 0.7, -0.2, 0.4, 0.1, 0.6]
    expected = stats.permutation_test(
        (np.array(few),), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p_value(few, rng=_rng()) == pytest.approx(float(expected.pvalue))
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
    with pytest.raises(ValueError, match="share no task: 1 in A such as 'a', 1 in B such as 'b'"):
        compare_paired([("a", 1)], [("b", 1)], rng=_rng())


def test_one_task_or_equal_differences_have_no_t_test() -> None:
    one = compare_paired([("a", 0.25)], [("a", 1.0)], rng=_rng())
    assert (one.difference, one.stderr, one.t_interval, one.bootstrap_interval) == (
        0.75, None, None, None,
    )  # fmt: skip
    assert (one.p_value, one.permutation_p_value) == (None, None)
    rows_a: list[Row] = [(f"t{i}", 0) for i in range(5)]
    rows_b: list[Row] = [(f"t{i}", 1) for i in range(5)]
    result = compare_paired(rows_a, rows_b, rng=_rng())
    assert result.stderr == 0.0
    assert result.p_value is None
    assert result.permutation_p_value == 2 / 2**5
    assert result.t_interval == Interval(low=1.0, high=1.0)
    rows: list[Row] = [("a", 0.1), ("a", 0.7), ("b", 1.0)]
    tied = compare_paired(rows, rows, rng=_rng())
    assert (tied.difference, tied.num_ties, tied.permutation_p_value) == (0.0, 2, 1.0)


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


# ---- runs


def _text(comparison: RunComparison) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(comparison_table(comparison, name_a="base", name_b="[b]trained"))
    return console.export_text()


def test_pairs_by_task_and_counts_invalid(make_line: Make) -> None:
    a = [make_line("a", 0.0), make_line("b", 1.0), make_line("c", None)]
    b = [make_line("a", 1.0), make_line("b", 1.0), make_line("c", 1.0)]
    env = compare_runs(a, b).envs[TOY]
    assert env.paired is not None
    assert (env.paired.num_shared, env.paired.difference) == (2, 0.5)
    assert (env.paired.num_wins, env.paired.num_ties, env.paired.num_losses) == (1, 1, 0)
    assert (env.num_invalid_a, env.num_invalid_b) == (1, 0)
    assert env.warnings == ("1 task ('c') scored only in run B",)


def test_what_differs_between_runs_is_told(make_line: Make) -> None:
    """Of each pair of runs: the number of shared tasks, and the warnings."""

    def lines(tasks: str, value: float = 0.0, **fields: Any) -> list[Any]:
        return [make_line(task, value, **fields) for task in tasks]

    nine = [make_line(f"t{i}") for i in range(9)]
    cases = {
        "the same twice": (nine, nine, 9, ()),
        "changed tasks": (
            lines("abc", task_sha256="1"),
            lines("a", 1.0, task_sha256="2") + lines("bc", 1.0, task_sha256="1"),
            2, ("1 task ('a') changed content between the runs and is left out",),
        ),
        "other seeds": (
            lines("abc", seed=1), lines("a", 1.0, seed=2) + lines("bc", 1.0, seed=1),
            3, ("1 shared task was played with different env seeds:"
                " the episodes are not the same",),
        ),
        "long lists": (
            nine, nine[:2],
            2, ("7 tasks ('t2', 't3', 't4', 't5', 't6' and 2 more) scored only in run A",),
        ),
        "other successes": (
            nine, [make_line(f"t{i}", success=GRADED) for i in range(9)],
            9, ("the runs differ in what heads the results or is a success (half at least 0.5 or"
                " reward at least 1)",),
        ),
        "env of one run": (lines("a"), [], None, ("only run A has this env",)),
        "nothing shared": (
            lines("a"), lines("b"),
            None, ("no task has a valid reward in both runs: nothing to compare",),
        ),
        "one task": (lines("a"), lines("a"), 1, ("one shared task: no interval and no test",)),
    }  # fmt: skip
    found = {}
    for name, (a, b, *_) in cases.items():
        env = compare_runs(a, b).envs[TOY]
        found[name] = [env.paired and env.paired.num_shared, env.warnings]
    assert found == {name: told for name, (_, _, *told) in cases.items()}
    a, b, *_ = cases["other successes"]
    assert compare_runs(a, b).envs[TOY].headline is Headline.MEAN_REWARD
    assert compare_runs([], []).envs == {}


def test_is_repeatable_and_plain_data(make_line: Make) -> None:
    a = [make_line(f"t{i}", float(i % 2)) for i in range(30)]
    b = [make_line(f"t{i}", float(i % 3 == 0)) for i in range(30)]
    assert compare_runs(a, b) == compare_runs(a, b)
    assert json.loads(json.dumps(asdict(compare_runs(a, b))))["envs"][TOY]["env_id"] == TOY


def test_table_shows_numbers_warnings_and_names_as_they_are(make_line: Make) -> None:
    a = [make_line("a", 1.0), make_line("b", 1.0), make_line("c", 1.0)]
    b = [make_line("a", 1.0), make_line("b", 0.0), make_line("[red]x", 0.0)]
    text = _text(compare_runs(a, b))
    assert "[b]trained minus base" in text
    assert "−0.500" in text
    assert "0/1/1" in text
    assert "warning: katgym/Toy-v0: 1 task ('[red]x') scored only in run B" in text
