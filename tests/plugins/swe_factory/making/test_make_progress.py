"""What is shown while tasks are made."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from katgym_plugin_swe_factory.making.make_progress import MakeProgress
from katgym_plugin_swe_factory.making.mutant_trial import TrialOutcome
from katgym_plugin_swe_factory.making.trial import Trial

VALID: Trial[object] = Trial(outcome=TrialOutcome.VALID)
SURVIVED: Trial[object] = Trial(outcome=TrialOutcome.SURVIVED)


def test_a_file_gets_a_line_now_and_then() -> None:
    text = io.StringIO()
    with MakeProgress(Console(file=text, width=200), 10, line_every_s=0) as progress:
        progress("a-1", VALID, False)
        progress("b-2", SURVIVED, False)
    first, second = text.getvalue().splitlines()
    assert first.startswith("1 tasks, 1 mutants tried, ") and first.endswith(" at a-1")
    assert second.startswith("1 tasks, 2 mutants tried, ") and second.endswith(" at b-2")


def test_the_rate_counts_this_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    progress = MakeProgress(Console(file=io.StringIO()), None)
    for _ in range(50):
        progress("a-1", VALID, True)
    now[0] += 60
    progress("a-1", VALID, False)
    progress("a-1", VALID, False)
    assert progress.num_valid == 52
    assert progress.line("a-1") == "52 mutants tried, 2 tasks/min, at a-1"


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    text = io.StringIO()
    with MakeProgress(Console(file=text, force_terminal=True, width=120), 3) as progress:
        progress("a-1", VALID, False)
    shown = text.getvalue()
    assert "1/3" in shown and "1 mutants tried" in shown
