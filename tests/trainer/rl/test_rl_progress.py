"""What is shown while a model learns by reinforcement."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from katgym_trainer.cli.rl_progress import RlProgress, sparkline, split_of
from katgym_trainer.cli.stage_progress import StageProgress

METRICS = {
    "rollout/reward": 0.4125,
    "rollout/reward_low": 0.35,
    "rollout/reward_high": 0.475,
    "rollout/success": 0.38,
    "rollout/turns": 2.1,
    "rollout/parallel_calls_per_turn": 0.8,
    "rollout/num_rollouts": 64.0,
    "rollout/open_groups": 0.625,
    "rollout/num_invalid": 3.0,
    "rollout/invalid/sandbox_error": 2.0,
    "rollout/invalid/policy_timeout": 1.0,
    "rollout/staleness": 0.5,
    "rollout/model_share": 0.75,
    "train/loss": -0.0123,
    "train/entropy": 1.21,
    "train/por": 0.712,
    "rate/sampled_tokens_per_s": 1230.0,
    "rate/trained_tokens_per_s": 8400.0,
    "memory/resident_mib": 1234.0,
    "time/total_s": 10.0,
    "time/wait_s": 4.0,
    "time/step_s": 5.0,
    "time/sync_s": 0.5,
}


def test_a_plain_line_has_reward_success_rate_and_time_left() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=200), line_every_s=0) as progress:
        progress.say("loading [model]")
        progress.step(10, 370, {**METRICS, "eval/success": 0.25})
        progress.step(11, 371, METRICS)
    first, second, third = out.getvalue().splitlines()
    assert first == "loading [model]"
    assert second == (
        "step 10/370, reward 0.412 [0.350, 0.475], success 0.380, held-out 0.250 (step 10),"
        " 2.10 turns, 0.80 parallel calls a turn, 1,230 tokens/s, 1:00:00 left"
    )
    assert "held-out 0.250 (step 10)" in third


def test_few_lines_are_printed_and_the_first_and_last_step_are() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=200), line_every_s=100) as progress:
        for step in range(1, 51):
            progress.step(step, 50, METRICS)
    first, last = out.getvalue().splitlines()
    assert first.startswith("step 1/50, ") and last.startswith("step 50/50, ")


def test_a_terminal_gets_a_table_of_everything() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=120, force_terminal=True, no_color=True)) as progress:
        progress.step(12, 100, METRICS)
    shown = out.getvalue()
    for text in (
        "step 12/100", "0:14:40 left", "0.412 [0.350, 0.475]", "64 a step", "62% of groups teach",
        "3 invalid (sandbox_error 2, policy_timeout 1)", "loss -0.0123", "entropy 1.210",
        "overlap 71%", "8,400 trained", "staleness 0.5", "1,234 MiB", "generate 30%", "env 10%",
        "train 50%", "sync 5%",
    ):  # fmt: skip
        assert text in shown, text


def test_metrics_that_are_not_there_are_told_as_unknown() -> None:
    out = io.StringIO()
    with RlProgress(Console(file=out, width=120, force_terminal=True)) as progress:
        progress.step(1, 2, {"rollout/reward": float("nan")})
    assert "step 1/2" in out.getvalue()
    assert "–" in out.getvalue()


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([0.0, 0.5, 1.0], "▁▅█"), ([2.0, 2.0], "▁▁"), ([-1.0, 1.0, 0.0], "▁█▅")],
)
def test_sparklines_span_the_least_to_the_most(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_stages_of_both_kinds_follow_each_other_on_a_terminal() -> None:
    out = io.StringIO()
    with StageProgress(Console(file=out, width=120, force_terminal=True, no_color=True)) as shown:
        shown.step(1, 2, {"train/loss": 1.25, "time/step_s": 0.5})
        shown.step(1, 2, METRICS)
        shown.step(2, 2, {"train/loss": 0.75, "time/step_s": 0.5})
    for text in ("step 1/2, loss 1.2500", "0.412 [0.350, 0.475]", "step 2/2, loss 0.7500"):
        assert text in out.getvalue(), text


def test_the_wait_is_split_between_policy_and_envs() -> None:
    assert split_of(METRICS) == pytest.approx(
        {"generate": 0.3, "env": 0.1, "train": 0.5, "sync": 0.05, "evaluate": 0.0, "save": 0.0}
    )
    assert split_of({}) == {}
