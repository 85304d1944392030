"""Minigrid's levels as envs: the bot wins, views tell what is there, seeds are honoured."""

from __future__ import annotations

import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_minigrid.env import MAX_MOVES, BabyAI, MiniGrid
from katgym_plugin_minigrid.levels import (
    BABYAI_EXCLUDED,
    MINIGRID_EXCLUDED,
    _registered,
    find_levels,
    make_level,
)
from katgym_plugin_minigrid.view import view_text


@pytest.mark.parametrize("env_id", ["minigrid/BabyAI-v0", "minigrid/MiniGrid-v0"])
def test_each_env_passes_the_contract(env_id: str) -> None:
    report = check_env(env_id, num_tasks=4, budget_s=3, checks=CONTRACT)
    assert report.ok, report.failures


def test_every_level_of_upstream_is_in_or_left_out_by_name() -> None:
    assert len(find_levels("BabyAI")) == 88
    assert len(find_levels("MiniGrid")) == 55
    assert set(BABYAI_EXCLUDED) <= set(_registered("BabyAI"))
    assert set(MINIGRID_EXCLUDED) <= set(_registered("MiniGrid"))


def test_every_level_can_be_made() -> None:
    for family in ("BabyAI", "MiniGrid"):
        for level in find_levels(family):
            assert make_level(family, level, 0).mission, level


@pytest.mark.parametrize("level", ["GoToSeq", "PutNextS5N2", "UnlockPickup", "FindObjS5"])
def test_the_bot_does_every_mission(level: str) -> None:
    env = BabyAI(level=level)
    for seed in range(2):
        env.reset(seed=seed)
        while env.is_running:
            _, reward, *_ = env.step(env.oracle_action())
        assert (reward, env.end_reason) == (1.0, "done")


def test_the_view_names_what_lies_before_the_agent() -> None:
    grid = make_level("MiniGrid", "Empty-Random-6x6", 0)
    grid.agent_pos, grid.agent_dir = (1, 1), 0
    assert view_text(grid) == (
        "You see 3 forward and 3 right: green goal. You can go 3 steps forward."
        " You carry nothing.\n"
        "#######\n#######\n#######\n###...G\n###....\n###....\n###^..."
    )


def test_several_moves_are_made_in_one_turn_and_wrong_ones_not_at_all() -> None:
    env = MiniGrid(level="Empty-Random-6x6")
    env.reset(seed=1)
    before = env._grid.agent_dir
    env.step("turn left, turn left")
    assert env._grid.agent_dir == (before + 2) % 4
    observation, *_ = env.step("turn left, jump")
    assert observation[-1]["content"].startswith("'jump' is no move: give 1 to 8 of turn left,")
    env.step(", ".join(["turn left"] * (MAX_MOVES + 1)))
    assert env._grid.agent_dir == (before + 2) % 4
    assert env._grid.step_count == 2


def test_an_unknown_level_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(katgym.UsageError, match="Did you mean 'GoToLocal'"):
        BabyAI(level="GotoLocal")
