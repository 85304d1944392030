"""A summary's numbers, by env; what is invalid, missing or alone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from katgym import Rollout, RolloutStatus
from katgym.evaluation.statistics.intervals import (
    bootstrap_interval,
    clustered_standard_error,
    success_interval,
    t_interval,
)
from katgym.evaluation.statistics.summary import RunSummary, summarize, summary_table

Make = Callable[..., Rollout]


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
    env = summarize(_run(make_line)).envs["katgym/Toy-v0"]
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
    env = summarize(_run(make_line), level=0.9, bootstrap_seed=3).envs["katgym/Toy-v0"]
    rows = [("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 0.5), ("b", 0.0)]
    assert env.stderr == clustered_standard_error(rows)
    assert env.t_interval == t_interval(rows, level=0.9)
    rng = np.random.default_rng(3)
    assert env.bootstrap_interval == bootstrap_interval(rows, rng=rng, level=0.9)
    successes = [(task, float(value >= 1)) for task, value in rows]
    assert env.success_interval == success_interval(successes, level=0.9)


def test_success_threshold_moves_success_only(make_line: Make) -> None:
    env = summarize(_run(make_line), success_threshold=0.5).envs["katgym/Toy-v0"]
    assert env.success_rate == pytest.approx(4 / 5)
    assert env.mean_reward == pytest.approx(3.5 / 5)
    assert env.success.threshold == 0.5


def test_order_of_lines_does_not_show(make_line: Make) -> None:
    lines = _run(make_line)
    assert summarize(reversed(lines)) == summarize(lines)


def test_no_lines_give_no_envs() -> None:
    assert summarize([]) == RunSummary(envs={})


def test_only_invalid_rollouts_give_none_not_zero(make_line: Make) -> None:
    env = summarize([make_line("a", None), make_line("b", None)]).envs["katgym/Toy-v0"]
    assert env.mean_reward is None
    assert env.success_rate is None
    assert env.t_interval is None
    assert env.mean_turns is None
    assert (env.num_invalid, env.pass_at_k) == (2, {})


def test_one_task_has_a_mean_without_interval(make_line: Make) -> None:
    env = summarize([make_line("a", 0.0, 0), make_line("a", 1.0, 1)]).envs["katgym/Toy-v0"]
    assert env.mean_reward == 0.5
    assert (env.stderr, env.t_interval, env.success_interval) == (None, None, None)
    assert env.pass_at_k == {1: 0.5, 2: 1.0}


def test_envs_are_summarised_apart_and_do_not_disturb_each_other(make_line: Make) -> None:
    lines = _run(make_line)
    other = [replace(line, env_id="a/Other-v0") for line in lines[:4]]
    both = summarize([*other, *lines])
    assert list(both.envs) == ["a/Other-v0", "katgym/Toy-v0"]
    assert both.envs["katgym/Toy-v0"] == summarize(lines).envs["katgym/Toy-v0"]


def test_hashes_tell_tasks_and_seeds_apart(make_line: Make) -> None:
    def hashes(**fields: Any) -> tuple[str, str]:
        env = summarize([make_line("a", **fields)]).envs["katgym/Toy-v0"]
        return env.tasks_sha256, env.seeds_sha256

    tasks, seeds = hashes()
    assert hashes(value=0.0, attempt=3) == (tasks, seeds)
    assert hashes(seed=8)[0] == tasks
    assert hashes(seed=8)[1] != seeds
    assert hashes(seed=None)[1] != seeds
    assert hashes(task_sha256="f00")[0] != tasks


def test_json_round_trip(make_line: Make) -> None:
    for lines in (_run(make_line), [make_line("a", None)], []):
        summary = summarize(lines)
        text = json.dumps(summary.to_json(), allow_nan=False)
        assert RunSummary.from_json(json.loads(text)) == summary


def test_from_json_names_what_does_not_fit(make_line: Make) -> None:
    data = summarize(_run(make_line)).to_json()
    del data["envs"]["katgym/Toy-v0"]["num_tasks"]
    with pytest.raises(ValueError, match=r"not a run summary: .*`num_tasks`"):
        RunSummary.from_json(data)


def test_attempt_that_occurs_twice_is_an_error(make_line: Make) -> None:
    with pytest.raises(ValueError, match=r"task 't0', attempt 0 of .* occurs twice, as rollout"):
        summarize([make_line(), make_line()])


def test_seats_of_one_game_are_different_rollouts(make_line: Make) -> None:
    lines = [make_line(seat="white"), make_line(seat="black", value=0.0)]
    assert summarize(lines).envs["katgym/Toy-v0"].num_rollouts == 2


def test_table_shows_intervals_and_invalid_counts(make_line: Make) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(summary_table(summarize(_run(make_line))))
    text = console.export_text()
    env = summarize(_run(make_line)).envs["katgym/Toy-v0"]
    assert env.t_interval is not None
    assert f"0.700 [{env.t_interval.low:.3f}".replace("-", "−") in text
    assert "0.500 (k=2)" in text
    assert "of all" in text.splitlines()[0]
    assert "level 0.95, clustered by task" in text


def test_a_run_without_invalid_rollouts_has_one_rate(make_line: Make) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(summary_table(summarize([make_line("a"), make_line("b", 0.0)])))
    assert "of all" not in console.export_text().splitlines()[0]


def test_summary_is_plain_data(make_line: Make) -> None:
    assert asdict(summarize(_run(make_line)))["envs"]["katgym/Toy-v0"]["num_tasks"] == 3
