"""What is not done earns nothing, whatever is tried; what is done earns everything."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import pytest
from terminal_play import folder_of, play, tasks_by_template

import katgym
from katgym_envs.terminal.task_set import SKILLS

ATTACKS: list[dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("terminal_attacks.toml").read_text(encoding="utf-8")
)["attack"]


def paid(attacks: list[dict[str, str]]) -> dict[str, float | None]:
    """Return the attacks whose reward is not a valid 0, with their reward."""
    env = katgym.make("katgym/Terminal-v0", level=1)
    rewards = {}
    for attack in attacks:
        task = tasks_by_template()[attack["template"]]
        command = attack["command"].replace("@gold", task.data["script"])
        reward = play(env, task, command.replace("@dir", folder_of(task)))
        rewards[attack["name"]] = reward.value
    return {name: value for name, value in rewards.items() if value != 0.0}


def test_the_first_attacks_of_every_family_earn_nothing() -> None:
    assert len({attack["name"] for attack in ATTACKS}) == len(ATTACKS) >= 60
    families = {attack["family"] for attack in ATTACKS}
    first = [[a for a in ATTACKS if a["family"] == family][:3] for family in sorted(families)]
    assert len(first) >= 4
    assert paid(list(itertools.chain(*first))) == {}


@pytest.mark.slow
def test_no_attack_earns_anything() -> None:
    assert paid(ATTACKS) == {}


@pytest.mark.slow
def test_the_script_of_every_template_earns_everything_and_nothing_earns_nothing() -> None:
    env = katgym.make("katgym/Terminal-v0", level=1)
    tasks = tasks_by_template()
    assert len(tasks) == sum(len(skill.templates) for skill in SKILLS.values())
    gold = {name: play(env, task, task.data["script"]).value for name, task in tasks.items()}
    assert {name for name, value in gold.items() if value != 1.0} == set()
    noop = {name: play(env, task).value for name, task in tasks.items()}
    assert {name for name, value in noop.items() if value != 0.0} == set()
