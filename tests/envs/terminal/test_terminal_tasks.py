"""The tasks of `katgym/Terminal-v0` as they are drawn; nothing is played."""

from __future__ import annotations

import csv
import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nightly import some_of

import katgym
from katgym.environment.task import SPLITS
from katgym.errors import UsageError
from katgym_envs.terminal.state.entries import tree_of_json, tree_to_json
from katgym_envs.terminal.task_set import LEVELS, SKILLS, check_choice, task_set

PROOF = Path(__file__).parents[3] / "benchmarks" / "terminal.csv"


@functools.cache
def all_tasks() -> tuple[katgym.Task, ...]:
    return tuple(t for split in SPLITS for t in task_set(split))


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def without_folders(tree: dict[str, Any]) -> str:
    return canonical(sorted((path.partition("/")[2], canonical(e)) for path, e in tree.items()))


@pytest.mark.slow
def test_a_thousand_tasks_differ_in_prompt_and_in_end_state_whatever_the_folders_names() -> None:
    tasks = all_tasks()
    assert Counter(t.split for t in tasks) == {"train": 800, "validation": 100, "test": 100}
    assert len({t.prompt for t in tasks}) == 1000
    assert len({canonical(t.answer) for t in tasks}) == 1000
    assert len({without_folders(t.answer) for t in tasks}) == 1000


@pytest.mark.slow
def test_ten_skills_with_fifty_templates_occur_at_four_levels() -> None:
    assert len(SKILLS) == 10
    assert min(len(skill.templates) for skill in SKILLS.values()) >= 4
    names = Counter(name for t in all_tasks() for name in t.data["templates"])
    assert len(names) == sum(len(skill.templates) for skill in SKILLS.values()) >= 50
    assert min(Counter(name.partition(".")[0] for name in names.elements()).values()) > 200
    assert Counter(t.data["level"] for t in all_tasks()) == dict.fromkeys(LEVELS, 250)


def test_a_level_is_the_number_of_exercises_each_of_another_skill_in_a_folder_of_its_own() -> None:
    for task in task_set("train")[:40]:
        names = task.data["templates"]
        assert len({name.partition(".")[0] for name in names}) == len(names) == task.data["level"]
        assert len({path.partition("/")[0] for path in task.answer}) == len(names)


def test_one_skill_can_be_asked_for_at_every_level() -> None:
    for level in LEVELS:
        task = task_set("test", level=level, skill="services")[3]
        assert task.task_id == f"L{level}-services-test-000003"
        assert len(task.data["templates"]) == len(set(task.data["templates"])) == level
        assert {name.partition(".")[0] for name in task.data["templates"]} == {"services"}


def test_an_unknown_level_or_skill_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="level is an int from 1 to 4, or None to mix; got 5"):
        check_choice(5, None)
    with pytest.raises(UsageError, match=r"unknown skill 'gti'\. Did you mean 'git'\?"):
        check_choice(None, "gti")


def test_trees_survive_json() -> None:
    for task in task_set("train")[:40]:
        assert tree_to_json(tree_of_json(json.loads(json.dumps(task.answer)))) == task.answer


def test_every_task_as_it_is_was_solved_by_its_script_and_not_by_nothing() -> None:
    with PROOF.open(encoding="utf-8") as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    sets = [task_set(split) for split in SPLITS]
    assert len(rows) == sum(map(len, sets))
    tasks = [tasks[index] for tasks in sets for index in some_of(range(len(tasks)), 20)]
    shas = {task.task_id: task.sha256[:12] for task in tasks}
    assert shas == {name: rows[name]["sha256"] for name in shas}
    assert {(row["gold"], row["noop"]) for row in rows.values()} == {("1.0", "0.0")}
