"""A summary's numbers, by env; what is invalid, missing or alone; components of rewards."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from katgym import Reward, Rollout, RolloutStatus, Trust
from katgym.environment.reward import Component
from katgym.evaluation.statistics.component_summary import choose_metrics, metrics_table
from katgym.evaluation.statistics.intervals import (
    bootstrap_interval,
    clustered_standard_error,
    success_interval,
    t_interval,
)
from katgym.evaluation.statistics.summary import (
    RunSummary,
    summarize,
    summary_table,
    trust_text,
)

Make = Callable[..., Rollout]
TOY = "katgym/Toy-v0"


def _env(lines: list[Rollout], **options: Any) -> Any:
    return summarize(lines, **options).envs[TOY]


def _run(make_line: Make) -> list[Rollout]:
    """Return three tasks: a has 2 of 2 successes, b 1 of 3, c only an invalid rollout."""
    return [
        make_line("a", 1.0, 0, num_turns=1, num_tool_calls=0, num_parallel_calls=0),
        make_line("a", 1.0, 1, num_turns=3, num_tool_calls=4, num_parallel_calls=4),
        make_line("b", 1.0, 0),
        make_line("b", 0.5, 1, status=RolloutStatus.TRUNCATED),
        make_line("b", 0.0, 2),
        make_line("c", None, 0, num_turns=50, num_completion_tokens=1000),
    ]


def test_numbers_by_hand(make_line: Make) -> None:
    env = _env(_run(make_line))
    assert (env.num_tasks, env.num_scored_tasks, env.num_rollouts) == (3, 2, 6)
    assert (env.num_invalid, env.invalid_kinds) == (1, {"sandbox_error": 1})
    assert env.mean_reward == pytest.approx(3.5 / 5)
    assert env.success_rate == pytest.approx(3 / 5)
    assert env.success_rate_of_all == pytest.approx(3 / 6)
    assert env.pass_at_k == pytest.approx({1: (1 + 1 / 3) / 2, 2: (1 + 2 / 3) / 2})
    assert env.pass_hat_k == pytest.approx({1: (1 + 1 / 3) / 2, 2: (1 + 0) / 2})
    assert env.mean_turns == pytest.approx((1 + 3 + 2 + 2 + 2) / 5)
    assert env.tool_calls_per_turn == pytest.approx((0 + 4 + 3 + 3 + 3) / 10)
    assert env.parallel_calls_per_turn == pytest.approx((0 + 4 + 2 + 2 + 2) / 10)
    assert env.truncated_fraction == pytest.approx(1 / 5)
    assert env.statuses == {"failed": 1, "terminated": 4, "truncated": 1}
    assert (env.num_prompt_tokens, env.num_completion_tokens) == (600, 1100)
    assert env.wall_s == 3.0


def test_intervals_are_those_of_the_statistics(make_line: Make) -> None:
    env = _env(_run(make_line), level=0.9, bootstrap_seed=3)
    rows = [("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 0.5), ("b", 0.0)]
    assert env.stderr == clustered_standard_error(rows)
    assert env.t_interval == t_interval(rows, level=0.9)
    rng = np.random.default_rng(3)
    assert env.bootstrap_interval == bootstrap_interval(rows, rng=rng, level=0.9)
    successes = [(task, float(value >= 1)) for task, value in rows]
    assert env.success_interval == success_interval(successes, level=0.9)


def test_success_threshold_moves_success_only(make_line: Make) -> None:
    env = _env(_run(make_line), success_threshold=0.5)
    assert (env.success_rate, env.mean_reward) == pytest.approx((4 / 5, 3.5 / 5))
    assert env.success.threshold == 0.5


def test_envs_are_summarised_apart_in_any_order(make_line: Make) -> None:
    lines = _run(make_line)
    assert summarize(reversed(lines)) == summarize(lines)
    other = [replace(line, env_id="a/Other-v0") for line in lines[:4]]
    both = summarize([*other, *lines])
    assert list(both.envs) == ["a/Other-v0", TOY]
    assert both.envs[TOY] == summarize(lines).envs[TOY]
    assert summarize([]) == RunSummary(envs={})


def test_what_is_invalid_or_alone_gives_none_not_zero(make_line: Make) -> None:
    env = _env([make_line("a", None), make_line("b", None)])
    assert [env.mean_reward, env.success_rate, env.t_interval, env.mean_turns] == [None] * 4
    assert (env.num_invalid, env.pass_at_k) == (2, {})
    one = _env([make_line("a", 0.0, 0), make_line("a", 1.0, 1)])
    assert (one.mean_reward, one.pass_at_k) == (0.5, {1: 0.5, 2: 1.0})
    assert (one.stderr, one.t_interval, one.success_interval) == (None, None, None)


def test_hashes_tell_tasks_and_seeds_apart(make_line: Make) -> None:
    def hashes(**fields: Any) -> tuple[str, str]:
        env = _env([make_line("a", **fields)])
        return env.tasks_sha256, env.seeds_sha256

    tasks, seeds = hashes()
    assert hashes(value=0.0, attempt=3) == (tasks, seeds)
    assert hashes(seed=8)[0] == tasks
    assert hashes(seed=8)[1] != seeds
    assert hashes(seed=None)[1] != seeds
    assert hashes(task_sha256="f00")[0] != tasks


def test_a_summary_is_read_back_and_what_does_not_fit_is_named(make_line: Make) -> None:
    for lines in (_run(make_line), [make_line("a", None)], []):
        summary = summarize(lines)
        text = json.dumps(summary.to_json(), allow_nan=False)
        assert RunSummary.from_json(json.loads(text)) == summary
    data = summarize(_run(make_line)).to_json()
    del data["envs"][TOY]["num_tasks"]
    with pytest.raises(ValueError, match=r"not a run summary: .*`num_tasks`"):
        RunSummary.from_json(data)


def test_trust_counts_tasks_by_their_least_level_and_withheld_verdicts(make_line: Make) -> None:
    def line(task_id: str, attempt: int, trust: Trust | None, why: str = "") -> Rollout:
        reward = Reward(value=1.0, trust=trust, trust_reason=why)
        return make_line(task_id, attempt=attempt, reward=reward)

    lines = [
        line("b", 1, Trust.WITHHELD, "it walked the stack"),
        line("b", 0, Trust.COMPLETE),
        line("a", 1, Trust.PARTIAL),
        line("a", 0, Trust.COMPLETE),
        line("c", 0, Trust.WITHHELD, "it opened tests/"),
        line("d", 0, None),
        make_line("e", None),
    ]
    summary = summarize(lines)
    (env,) = summary.envs.values()
    assert env.trust == {"complete": 1, "partial": 1, "withheld": 2}
    assert env.withheld_reason == "b: it walked the stack"
    assert trust_text([env, env]) == "complete 2, partial 2, withheld 4"
    assert RunSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    plain = summarize([make_line()])
    assert trust_text(plain.envs.values()) == ""
    assert not plain.to_json()["envs"]["katgym/Toy-v0"].keys() & {"trust", "withheld_reason"}


def test_an_attempt_occurs_once_for_each_seat(make_line: Make) -> None:
    assert _env([make_line(seat="white"), make_line(seat="black", value=0.0)]).num_rollouts == 2
    with pytest.raises(ValueError, match=r"task 't0', attempt 0 of .* occurs twice, as rollout"):
        summarize([make_line(), make_line()])


def _table(lines: list[Rollout]) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(summary_table(summarize(lines)))
    return console.export_text()


def test_table_shows_intervals_and_invalid_counts(make_line: Make) -> None:
    text, env = _table(_run(make_line)), _env(_run(make_line))
    assert f"0.700 [{env.t_interval.low:.3f}".replace("-", "−") in text
    assert "0.500 (k=2)" in text
    assert "of all" in text.splitlines()[0]
    assert "level 0.95, clustered by task" in text
    assert "of all" not in _table([make_line("a"), make_line("b", 0.0)]).splitlines()[0]


# ---- components of rewards, and prices


def _line(make_line: Make, task: str, value: float, **metrics: float) -> Rollout:
    line = make_line(task, value)
    parts = {name: Component(score=score, weight=0.0) for name, score in metrics.items()}
    return replace(line, reward=Reward(value=value, components={**line.reward.components, **parts}))


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
    # One that is rewarded here and a metric there keeps the largest weight.
    both = [make_line("a", 1.0), _line(make_line, "b", 1.0, correct=1.0)]
    assert _env(both).components["correct"].weight == 1.0


def test_only_metrics_that_say_something_are_shown(make_line: Make) -> None:
    lines = [
        _line(make_line, "a", 1.0, distance=0.5, tampered=0.0),
        _line(make_line, "b", 0.0, distance=0.7, tampered=0.0),
    ]
    assert choose_metrics([_env(lines).components]) == ["distance"]
    tampered = [_line(make_line, "a", 0.0, tampered=1.0)]
    both = [_env(lines).components, _env(tampered).components]
    assert choose_metrics(both) == ["distance", "tampered"]
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
    assert RunSummary.from_json(data).envs[TOY].components == {}
