"""Held-out tasks: what they say of a policy; and the best weights, which are kept."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_qwen import tiny_qwen

import katgym
from katgym.play.engine import RolloutEngine, RolloutRequest
from katgym.play.rollout import Rollout
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.rl.held_out import HeldOut
from katgym_trainer.saving.best_model import BestModel
from katgym_trainer.trainer import Trainer

CONFIG = """
[model]
path = "models/tiny"
[[envs]]
id = "katgym/Arithmetic-v1"
[evaluate]
every_steps = 1
num_tasks = 20
envs = ["katgym/Arithmetic-v1", "katgym/OpenSpiel-v0?game=kuhn_poker"]
"""


def test_the_headline_is_the_mean_over_envs_of_what_each_says() -> None:
    held_out = HeldOut(RlConfig.of(tomllib.loads(CONFIG), name="rl.toml"))
    engine = RolloutEngine(katgym.policy("oracle"))
    found = asyncio.run(held_out.evaluate(engine, step=3))
    sums, poker = found.lines
    assert (sums["headline"], poker["headline"]) == ("success_rate", "mean_reward")
    assert (sums["success"], poker["reward"] != poker["success"]) == (1.0, True)
    assert poker["reward_low"] < poker["reward"] < poker["reward_high"]
    assert found.headline == (1.0 + poker["reward"]) / 2
    assert found.success == (1.0 + poker["success"]) / 2
    assert found.metrics["eval/headline"] == found.headline


def test_tasks_go_to_whoever_plays_with_their_own_sampling() -> None:
    groups: list[Sequence[RolloutRequest]] = []

    class Player(RolloutEngine):
        async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
            groups.append(requests)
            return await super().play_group(requests)

    text = CONFIG.replace("num_tasks = 20", "num_tasks = 3\nattempts = 2\ntemperature = 0.25")
    text = text.replace(', "katgym/OpenSpiel-v0?game=kuhn_poker"', "")
    held_out = HeldOut(RlConfig.of(tomllib.loads(text), name="rl.toml"))
    player = Player(katgym.policy("oracle"))
    (line,) = asyncio.run(held_out.evaluate(player, step=3)).lines
    assert (line["num_tasks"], line["num_rollouts"]) == (3, 6)
    assert [[r.attempt for r in group] for group in groups] == [[0, 1]] * 3
    assert len({group[0].task_id for group in groups}) == 3
    assert {r.sampling.temperature for group in groups for r in group} == {0.25}


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(tiny_qwen(), "sft", args={"max_tokens": 64})


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "best").iterdir())


def test_the_newest_of_the_best_is_found(trainer: Trainer, tmp_path: Path) -> None:
    best = BestModel(tmp_path, "tasks")
    assert best.found is None
    with pytest.raises(ValueError, match="holds no model yet"):
        _ = best.path
    kept = [best.offer(trainer, step=s, headline=x) for s, x in ((0, 0.5), (2, 0.4), (4, 0.5))]
    assert kept == [True, False, True]
    assert best.found == {"step": 4, "headline": 0.5}
    assert best.path == tmp_path / "best" / "step-000004"
    assert BestModel(tmp_path, "tasks").found == best.found
    assert BestModel(tmp_path, "other tasks").found is None


def test_a_run_that_was_killed_has_the_best_from_before_its_checkpoint(
    trainer: Trainer, tmp_path: Path
) -> None:
    best = BestModel(tmp_path, "tasks")
    for step, success in ((0, 0.1), (2, 0.5), (4, 0.6), (6, 0.7)):
        best.offer(trainer, step=step, headline=success)
    best.settle(4)
    assert folders(tmp_path) == ["step-000004", "step-000006"]
    best.forget_after(4)
    assert best.found == {"step": 4, "headline": 0.6}
    assert folders(tmp_path) == ["step-000004"]
    best.forget_after(-1)
    assert best.found is None and folders(tmp_path) == []
    nothing = BestModel(tmp_path / "nothing", "tasks")
    nothing.settle(3)
    nothing.forget_after(-1)
    assert not (tmp_path / "nothing").exists()
