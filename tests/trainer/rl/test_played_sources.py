"""Rollouts that the model plays before it is fine-tuned, held to the best known solutions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rl_play import ENV_ID, register_env, save_model

from katgym.cli.main import main
from katgym.errors import UsageError
from katgym.evaluation.store import read_rollouts
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.config.train_run_config import CollectConfig, DataConfig
from katgym_trainer.runs.played_sources import play_model, relative_reward

HUNT = "katgym/TreasureHunt-v1?level=1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=4096)


def collect(**more: object) -> CollectConfig:
    told = {"envs": (HUNT,), "num_tasks": 2, "group_size": 2, "max_tokens": 4, **more}
    return CollectConfig(**told)  # type: ignore[arg-type]  # as the tests say


def test_rewards_are_relative_to_the_turns_of_the_solution() -> None:
    assert relative_reward(1.0, 2, 2) == 1.0
    assert relative_reward(1.0, 1, 2) == 1.0  # better than what was known
    assert relative_reward(1.0, 4, 2) == 0.5
    assert relative_reward(0.5, 8, 2) == 0.125
    assert relative_reward(0.5, 8, None) == 0.5


def test_the_model_plays_every_attempt_and_again_only_what_is_missing(
    model: Path, tmp_path: Path
) -> None:
    assert play_model(collect(), ModelConfig(path=str(model)), tmp_path) == {}
    found = read_rollouts(tmp_path / "collected")
    assert sorted((rollout.task_id, rollout.attempt) for rollout in found) == [
        (task, attempt)
        for task in sorted({rollout.task_id for rollout in found})
        for attempt in (0, 1)
    ]
    assert max(rollout.num_turns for rollout in found) == 7  # the env's own limit
    play_model(collect(), ModelConfig(path=str(model)), tmp_path)
    assert read_rollouts(tmp_path / "collected") == found


def test_a_rollout_that_goes_far_beyond_the_solution_is_stopped(
    model: Path, tmp_path: Path
) -> None:
    best = play_model(collect(slack=1.5), ModelConfig(path=str(model)), tmp_path)
    assert set(best.values()) == {2}  # inspect, then open
    found = read_rollouts(tmp_path / "collected")
    kinds = {rollout.num_turns: rollout.failure_kind for rollout in found}
    assert max(kinds) == 3 and kinds[3] == "max_turns"


def test_what_cannot_be_collected_is_told() -> None:
    for more, text in (
        ({"envs": ()}, "envs names what the model plays"),
        ({"slack": 0.5}, "slack is a number >= 1, or None, got 0.5"),
        ({"group_size": 0}, "group_size is an int >= 1, got 0"),
    ):
        with pytest.raises(UsageError, match=text):
            collect(**more)
    with pytest.raises(UsageError, match="an oracle, or what to collect"):
        DataConfig()


@pytest.mark.slow
def test_a_model_is_fine_tuned_on_the_best_it_played(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_env()
    text = (
        f'[model]\npath = "{model}"\n[data]\nmin_reward = 0.05\n[data.collect]\nenvs = ["{ENV_ID}"]'
        "\nnum_tasks = 8\nmax_tokens = 24\nis_relative = true\n"
        "[train]\nnum_steps = 2\nlearning_rate = 1e-3\n"
    )
    (tmp_path / "rft.toml").write_text(text)
    command = ["train", "rft", str(tmp_path / "rft.toml"), "--out", str(tmp_path / "run"), "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    values = [rollout.reward.value for rollout in read_rollouts(tmp_path / "run" / "collected")]
    assert len(values) == 32
    assert told["num_rollouts"] == sum(value >= 0.05 for value in values) > 0
    assert told["num_left_out"] == {"reward too low": 32 - told["num_rollouts"]}
    lock = json.loads((tmp_path / "run" / "lock.json").read_text())
    assert [source["name"] for source in lock["data"]["sources"]] == ["collected"]
