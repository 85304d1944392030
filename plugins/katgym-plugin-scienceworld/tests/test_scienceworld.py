"""ScienceWorld's experiments as envs: gold paths, splits, failures, copies."""

from __future__ import annotations

import copy

import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_scienceworld.env import ScienceWorld
from katgym_plugin_scienceworld.kinds import variations
from katgym_plugin_scienceworld.simulator import World, _new_world

KIND = "find-non-living-thing"


@pytest.fixture(scope="module", autouse=True)
def _java_runs() -> None:
    """Start the Java process once, which takes seconds."""
    _new_world()


def test_the_env_passes_the_contract() -> None:
    report = check_env(
        "scienceworld/ScienceWorld-v0", kind=KIND, num_tasks=2, budget_s=3, checks=CONTRACT
    )
    assert report.ok, report.failures


def test_splits_are_those_of_upstream_and_hold_every_variation() -> None:
    world = _new_world()
    for kind in (KIND, "boil", "identify-life-stages-1"):
        world.load(kind, 0, "", False)
        assert list(variations(kind, "train")) == list(world.getVariationsTrain())
        assert list(variations(kind, "validation")) == list(world.getVariationsDev())
        assert list(variations(kind, "test")) == list(world.getVariationsTest())
    env = ScienceWorld()
    sizes = [len(env.tasks(split)) for split in env.splits]
    assert sizes == [3592, 1796, 1819]


def test_a_part_of_a_task_is_not_paid() -> None:
    env = ScienceWorld(kind="boil", max_turns=2)
    env.reset(seed=0)
    env.step(env.oracle_action())
    _, reward, _, truncated, _ = env.step(env.oracle_action())
    assert env.last_reward is not None
    assert env.last_reward.components["score"].score > 0
    assert (reward, truncated) == (0.0, True)


def test_things_are_listed_in_one_order() -> None:
    looks = {World(KIND, 127).look() for _ in range(4)}
    assert len(looks) == 1


def test_a_copy_in_mid_episode_plays_on_by_itself() -> None:
    env = ScienceWorld(kind=KIND)
    env.reset(seed=1)
    env.step("look around")
    other = copy.deepcopy(env)
    while other.is_running:
        _, reward, *_ = other.step(other.oracle_action())
    assert reward == 1.0
    assert env.is_running
    assert env._world.score() < 1.0


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(katgym.UsageError, match=r"unknown kind 'boyl'\. Did you mean 'boil'"):
        ScienceWorld(kind="boyl")
