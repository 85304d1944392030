"""The training demo: its table by hand, and a quick run of everything.

Not here: what the full one shows (`docs/guides/train-tiny.md`).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from plain_rollout import plain_rollout
from rich.console import Console

from katgym import Reward
from katgym_trainer.cli.demo import training_demo as demo


def test_the_table_has_means_over_seeds_and_their_intervals():
    before = demo.Tested(tight=0.1, free=0.5, turns=3.8, calls_per_turn=1.0)
    after = [
        demo.Tested(tight=tight, free=0.5, turns=3.0, calls_per_turn=1.5)
        for tight in (0.4, 0.5, 0.6)
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(demo.table(before, after))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    # 0.4 on average; t(0.975, 2) = 4.3027, standard error 0.1 / sqrt(3)
    assert lines[1][-5:] == ["10.0%", "50.0%", "+0.400", "[+0.152,", "+0.648]"]
    assert lines[2][-5:] == ["50.0%", "50.0%", "+0.000", "[+0.000,", "+0.000]"]
    assert lines[3][-5:-2] == ["3.80", "3.00", "-0.800"]
    assert lines[4][-5:-2] == ["1.00", "1.50", "+0.500"]


def test_a_task_is_shown_that_was_solved_after_and_not_before():
    def lines(**rewards):
        return [
            plain_rollout(task_id=task, reward=Reward(value=value))
            for task, value in rewards.items()
        ]

    assert demo.newly_solved(lines(a=1, b=0, c=0), lines(c=1, a=1, b=0)) == "c"
    assert demo.newly_solved(lines(a=1, b=0), lines(a=0, b=0)) == "a"


@pytest.mark.slow
def test_a_quick_run_goes_through_everything_and_can_be_repeated(tmp_path):
    command = [sys.executable, "-m", "katgym", "demo", "train", "--quick"]
    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=3600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("solved in 3 turns") == 2
    for game in ("expressions", "hunts"):
        runs = tmp_path / "runs" / "demo-train-quick" / game
        assert (runs / "leaderboard" / "leaderboard.html").exists()
        assert (runs / "plots" / "overview.png").stat().st_size > 10_000
        assert len((runs / "rl-0" / "metrics.jsonl").read_text().splitlines()) == 2
