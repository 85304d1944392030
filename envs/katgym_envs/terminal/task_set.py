"""Draws the tasks: which exercises one has, in which folders, and what it is asked as.

A task of level n has n exercises of different skills (of one, if a skill is asked for), each in a
folder of its own. Not here: the exercises (`skills/`), the episode (`env.py`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import numpy as np

from katgym.environment.task import SPLITS, ProceduralTaskSet, Task
from katgym.errors import UsageError, unknown_name
from katgym_envs.terminal.exercise import Exercise, Skill
from katgym_envs.terminal.skills import (
    archives,
    config_files,
    databases,
    files,
    git_history,
    logs,
    processes,
    services,
    tables,
    text,
)
from katgym_envs.terminal.state.entries import Entry, tree_to_json
from katgym_envs.terminal.words import NOUNS

SKILLS: Mapping[str, Skill] = {
    module.SKILL.name: module.SKILL
    for module in (
        files, text, processes, git_history, archives, services, config_files, logs, databases,
        tables,
    )
}  # fmt: skip
LEVELS = (1, 2, 3, 4)
SPLIT_SIZES = {"train": 800, "validation": 100, "test": 100}


def check_choice(level: object, skill: object) -> None:
    """Raise `UsageError` for a level or a skill that there is not; None mixes."""
    if level is not None and (type(level) is not int or level not in LEVELS):
        raise UsageError(f"level is an int from 1 to {len(LEVELS)}, or None to mix; got {level!r}")
    if skill is not None and skill not in SKILLS:
        raise UsageError(unknown_name("skill", str(skill), SKILLS))


def task_set(
    split: str, *, level: int | None = None, skill: str | None = None
) -> ProceduralTaskSet:
    """Return the tasks of a split; ids name level and skill (`L2-git-train-000012`), or "mix"."""
    parts = ["" if level is None else f"L{level}-", "" if skill is None else f"{skill}-"]
    return ProceduralTaskSet(
        functools.partial(make_task, level=level, skill=skill),
        size=SPLIT_SIZES[split],
        split=split,
        prefix="".join(parts) or "mix-",
        splits=SPLITS,
    )


def make_task(
    rng: np.random.Generator, index: int, *, level: int | None = None, skill: str | None = None
) -> Task:
    """Draw a task; with `level=None` the levels take turns by index.

    `answer` is the whole state that is to be reached, `data` the state before and a solution.
    """
    number = index % len(LEVELS) + 1 if level is None else level
    fast_rng = random.Random(int(rng.integers(2**63)))
    if skill is None:
        names = fast_rng.sample(sorted(SKILLS), number)
        templates = [fast_rng.choice(SKILLS[name].templates) for name in names]
    else:
        names = [skill] * number
        templates = fast_rng.sample(SKILLS[skill].templates, number)
    folders = ["-".join(fast_rng.sample(NOUNS, 2)) for _ in range(number)]
    if len(set(folders)) < number:
        return make_task(rng, index, level=level, skill=skill)
    exercises = [template(fast_rng) for template in templates]
    before, after = {}, {}
    for folder, exercise in zip(folders, exercises, strict=True):
        before.update(_below(folder, exercise.before))
        after.update(_below(folder, exercise.after()))
    data = {
        "level": number,
        "templates": [f"{n}.{t.__name__}" for n, t in zip(names, templates, strict=True)],
        "before": tree_to_json(before),
        "script": _script(folders, exercises),
    }
    return Task(
        task_id="", prompt=_prompt(folders, exercises), answer=tree_to_json(after), data=data
    )


def _below(folder: str, tree: Mapping[str, Entry]) -> dict[str, Entry]:
    return {f"{folder}/{path}": entry for path, entry in tree.items()}


def _prompt(folders: list[str], exercises: list[Exercise]) -> str:
    asked = [f"In {f}/: {e.prompt}" for f, e in zip(folders, exercises, strict=True)]
    if len(asked) == 1:
        return asked[0]
    return "\n\n".join(f"{i}. {text}" for i, text in enumerate(asked, start=1))


def _script(folders: list[str], exercises: list[Exercise]) -> str:
    parts = [
        f"(\nset -e\ncd /workspace/{folder}\n{exercise.script.strip()}\n)"
        for folder, exercise in zip(folders, exercises, strict=True)
    ]
    return "\n".join(parts)
