"""TextWorld's games as envs: walkthroughs win, texts are whole, seeds are honoured."""

from __future__ import annotations

import random

import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_textworld.env import Cooking, TextWorldEnv, TreasureHunter
from katgym_plugin_textworld.games import make_game

IDS = ("textworld/CoinCollector-v0", "textworld/TreasureHunter-v0", "textworld/Cooking-v0")


@pytest.fixture(scope="module", autouse=True)
def _rules_are_read() -> None:
    """Read the rules and grammars once: TextWorld takes seconds for that, at its first games."""
    make_game("tw-coin_collector", 5, "train", 0)
    make_game("tw-cooking", 1, "train", 0)


def env_of(env_id: str, **kwargs: object) -> TextWorldEnv:
    env = katgym.make(env_id, **kwargs).unwrapped
    assert isinstance(env, TextWorldEnv)
    return env


@pytest.mark.parametrize(
    "env_id", [IDS[0], *(pytest.param(env_id, marks=pytest.mark.slow) for env_id in IDS[1:])]
)
def test_each_env_passes_the_contract(env_id: str) -> None:
    report = check_env(env_id, num_tasks=4, budget_s=3, checks=CONTRACT)
    assert report.ok, report.failures


@pytest.mark.parametrize(
    ("env_id", "level"),
    [(IDS[0], 2), (IDS[0], 110), (IDS[1], 1), (IDS[1], 11), (IDS[2], 1), (IDS[2], 4)],
)
def test_the_walkthrough_wins_on_other_levels_and_no_text_keeps_inform_code(
    env_id: str, level: int
) -> None:
    env = env_of(env_id, level=level)
    env.reset(seed=0)
    while env.is_running:
        _, reward, *_ = env.step(env.oracle_action())
    assert reward == 1.0
    shown = "\n".join(m["content"] for m in env.messages)
    assert "[" not in shown
    assert "-= " in shown


def test_a_wrong_thing_loses_a_treasure_hunt() -> None:
    env = TreasureHunter(level=9)
    rng = random.Random(0)
    ends = set()
    for seed in range(4):
        env.reset(seed=seed)
        while env.is_running:
            takes = [c for c in env._commands() if c.startswith("take")]
            action = takes[0] if takes else env.random_action(rng)
            _, reward, *_ = env.step(action)
        ends.add((env.end_reason, reward))
    assert ("lost", 0.0) in ends
    assert all(reward == (reason == "won") for reason, reward in ends)


def test_an_unknown_command_changes_nothing_and_names_those_that_there_are() -> None:
    env = env_of(IDS[0])
    env.reset(seed=0)
    before = env._progress.state.copy()
    observation, *_ = env.step("fly to the moon")
    assert observation[-1]["content"].startswith("'fly to the moon' is not a legal move.")
    assert " | look" in observation[-1]["content"]
    assert env._progress.state == before


def test_splits_of_the_cooking_game_cook_other_food_or_otherwise() -> None:
    foods = {
        split: {
            tuple(ingredient)
            for seed in range(3)
            for ingredient in make_game("tw-cooking", 4, split, seed).metadata["ingredients"]
        }
        for split in Cooking.splits
    }
    assert not foods["train"] & foods["validation"]
    assert not foods["train"] & foods["test"]
    assert not foods["validation"] & foods["test"]


def test_a_level_out_of_range_is_refused() -> None:
    with pytest.raises(katgym.UsageError, match="unknown level 5; allowed: 1 to 4"):
        Cooking(level=5)
