"""What is shown while training: lines off a terminal, a bar on one."""

from __future__ import annotations

import io

from rich.console import Console

from katgym_trainer.cli.train_progress import TrainProgress

METRICS = {"train/loss": 1.25, "train/num_tokens": 500.0, "time/step_s": 0.5}


def test_a_plain_line_says_step_loss_rate_and_time_left() -> None:
    out = io.StringIO()
    with TrainProgress(Console(file=out, width=120), line_every_s=0) as progress:
        progress.say("loading [model]")
        progress.step(1, 7201, METRICS)
    assert out.getvalue().splitlines() == [
        "loading [model]",
        "step 1/7201, loss 1.2500, 1,000 tokens/s, 1:00:00 left",
    ]


def test_few_lines_are_printed_and_the_last_step_is() -> None:
    out = io.StringIO()
    with TrainProgress(Console(file=out, width=120), line_every_s=100) as progress:
        for step in range(1, 51):
            progress.step(step, 50, METRICS)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("step 50/50, loss 1.2500, ") and line.endswith(" 0:00:00 left")


def test_a_terminal_gets_a_live_line() -> None:
    out = io.StringIO()
    with TrainProgress(Console(file=out, width=120, force_terminal=True)) as progress:
        progress.step(1, 4, METRICS)
        progress.step(2, 4, {"train/loss": 0.5})
    assert "step 2/4, loss 0.5000" in out.getvalue()


def test_metrics_that_are_not_there_are_told_as_unknown() -> None:
    out = io.StringIO()
    with TrainProgress(Console(file=out, width=120), line_every_s=0) as progress:
        progress.step(1, 1, {})
    assert out.getvalue() == "step 1/1, loss nan, 0 tokens/s, 0:00:00 left\n"
