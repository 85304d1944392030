"""Components of rewards and prices in summaries: whose means, and when shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from katgym import Reward, Rollout
from katgym.environment.reward import Component
from katgym.evaluation.statistics.component_summary import choose_metrics, metrics_table
from katgym.evaluation.statistics.summary import RunSummary, summarize

Make = Callable[..., Rollout]


def _line(make_line: Make, task: str, value: float, **metrics: float) -> Rollout:
    line = make_line(task, value)
    parts = {name: Component(score=score, weight=0.0) for name, score in metrics.items()}
    return replace(line, reward=Reward(value=value, components={**line.reward.components, **parts}))


def _env(lines: list[Rollout]) -> Any:
    return summarize(lines).envs["katgym/Toy-v0"]


def test_means_are_over_the_rollouts_that_have_the_component(make_line: Make) -> None:
    lines = [
        _line(make_line, "a", 1.0, distance=0.5, tampered=0.0),
        _line(make_line, "b", 0.0, tampered=0.0),
        make_line("c", None),
    ]
    parts = _env(lines).components
    assert (parts["correct"].mean, parts["correct"].weight) == (0.5, 1.0)
    assert (parts["distance"].mean, parts["distance"].num_rollouts) == (0.5, 1)
    assert parts["distance"].t_interval is None
    assert (parts["tampered"].mean, parts["tampered"].num_rollouts) == (0.0, 2)


def test_only_metrics_that_say_something_are_shown(make_line: Make) -> None:
    lines = [
        _line(make_line, "a", 1.0, distance=0.5, tampered=0.0),
        _line(make_line, "b", 0.0, distance=0.7, tampered=0.0),
    ]
    assert choose_metrics([_env(lines).components]) == ["distance"]
    tampered = [_line(make_line, "a", 0.0, tampered=1.0)]
    both = [_env(lines).components, _env(tampered).components]
    assert choose_metrics(both) == ["distance", "tampered"]


def test_an_env_without_metrics_has_no_table(make_line: Make) -> None:
    assert metrics_table("metrics", _env([make_line("a", 1.0)]).components) is None


def test_price_of_a_success(make_line: Make) -> None:
    lines = [make_line("a", 1.0, num_turns=2), make_line("b", 0.0, num_turns=6)]
    env = _env(lines)
    assert (env.turns_per_success, env.parallel_calls_per_success) == (8, 4)
    assert _env([make_line("a", 0.0)]).turns_per_success is None


def test_components_survive_the_file_and_older_files_have_none(make_line: Make) -> None:
    summary = summarize([_line(make_line, "a", 1.0, distance=0.5), make_line("b", 1.0)])
    data = summary.to_json()
    assert RunSummary.from_json(data) == summary
    for env in data["envs"].values():
        del env["components"], env["turns_per_success"], env["parallel_calls_per_success"]
    assert RunSummary.from_json(data).envs["katgym/Toy-v0"].components == {}


def test_a_component_that_loses_its_weight_keeps_the_largest(make_line: Make) -> None:
    rewarded, metric = make_line("a", 1.0), _line(make_line, "b", 1.0, correct=1.0)
    assert _env([rewarded, metric]).components["correct"].weight == pytest.approx(1.0)
