"""An env's success and headline reach every table through the run's record alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import katgym
from katgym.cli.main import main
from katgym.environment.reward import Headline
from katgym.errors import UnknownNameError
from katgym.evaluation.statistics.compare import compare_runs
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.store import read_rollouts

GRADED = katgym.Success(threshold=0.5, component="half", headline=Headline.MEAN_REWARD)
ENV_ID = "success_test/Number-v0"


class Number(katgym.Env):
    """Rewards the number that is answered; half of it is the component that counts."""

    success = GRADED

    def load_tasks(self, split):
        return [katgym.Task(task_id=f"{split}-{n}", prompt=f"{n}", answer=n) for n in range(4)]

    @katgym.scorer()
    def number(self):
        return self.task.answer / 4

    @katgym.scorer(weight=0.0)
    def half(self):
        return self.task.answer / 2


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """An evaluation of an env that no other process knows."""
    katgym.register(ENV_ID, Number, should_replace=True)
    folder = tmp_path_factory.mktemp("runs") / "noop"
    assert main(["eval", ENV_ID, "--policy", "noop", "--tasks", "4", "--out", str(folder)]) == 0
    return folder


def _katgym(*arguments: object) -> str:
    command = [sys.executable, "-m", "katgym", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_eval_heads_with_the_headline_and_counts_what_the_env_calls_a_success(run):
    env = summarize(read_rollouts(run)).envs[ENV_ID]
    assert env.success == GRADED
    assert env.success_rate == 0.75  # 1/2, 2/2 and 3/2 of 0, 1, 2 and 3
    assert env.headline == (env.mean_reward, env.t_interval) == (0.375, env.t_interval)
    overridden = summarize(read_rollouts(run), success_threshold=0.75).envs[ENV_ID]
    assert overridden.success_rate == 0.25
    assert overridden.success.headline is Headline.MEAN_REWARD


@pytest.mark.slow
def test_commands_follow_it_in_a_process_that_does_not_know_the_env(run, tmp_path):
    assert "reward" in _katgym("compare", run, run).splitlines()[-1].split()
    table = _katgym("leaderboard", run, "--out", tmp_path / "board")
    assert "Mean reward" in table
    assert "0.375" in table
    assert "75.0%" in table
    assert "Success: half at least 0.5." in table
    shown = _katgym("view", run)
    assert shown.count("reward 0, no success (half at least 0.5)") == 1
    assert shown.count(", success ") == 3
    _katgym("view", run, "--html", "--out", tmp_path / "pages")
    page = (tmp_path / "pages" / "index.html").read_text()
    assert 'aria-label="mean reward 0.375' in page
    ranked = _katgym("leaderboard", run, "--by", "success_rate", "--json", "--out", tmp_path / "b")
    assert next(iter(json.loads(ranked).values()))["envs"][ENV_ID]["success"] == {
        "threshold": 0.5,
        "component": "half",
        "headline": "mean_reward",
    }


def test_an_oracle_at_the_games_value_is_told_from_random(tmp_path):
    pytest.importorskip("pyspiel")
    runs = {}
    for policy in ("oracle", "random"):
        folder, env = tmp_path / policy, "katgym/OpenSpiel-v0?game=kuhn_poker"
        command = ["eval", env, "--policy", policy, "--out", str(folder), "--tasks", "120"]
        assert main(command) == 0
        runs[policy] = read_rollouts(folder)
    found = compare_runs(runs["oracle"], runs["random"]).envs["katgym/OpenSpiel-v0"]
    assert found.headline is Headline.MEAN_REWARD
    assert found.paired is not None
    assert found.paired.p_value is not None
    assert (found.paired.difference < 0, found.paired.p_value < 0.01) == (True, True)


def test_a_component_that_no_scorer_has_is_an_error_at_reset():
    class Typo(Number):
        success = katgym.Success(component="hafl")

    with pytest.raises(UnknownNameError, match=r"component of success 'hafl'.*Did you mean 'half'"):
        asyncio.run(Typo().areset(seed=0))
