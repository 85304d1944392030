"""Which tasks of a made set come with katgym."""

from __future__ import annotations

from collections import Counter

from katgym.environment.reward import Trust
from katgym_envs.swe.sources.spec_format import TaskSpec
from swe_sets.make_sets import choose_tasks


def specs(package: str, numbers: range) -> list[TaskSpec]:
    return [
        TaskSpec(
            id=f"{package}-{number}",
            package=package,
            split="train",
            edits={},
            fail_to_pass=(0,),
            statement="",
            workspace_sha256="",
        )
        for number in numbers
    ]


def test_tasks_of_complete_trust_come_first_and_few_others() -> None:
    many, few = specs("many", range(10)), specs("few", range(10))
    levels = {task.id: Trust.COMPLETE for task in many[3:]}
    levels |= {task.id: Trust.COMPLETE for task in few[8:]}
    levels |= {task.id: Trust.PARTIAL for task in few[:8]}
    chosen = choose_tasks([*many, *few], levels, per_package=6, num_partial=2)
    ids = [task.id for task in chosen]
    assert ids == [*(f"many-{n}" for n in range(3, 9)), "few-8", "few-9", "few-0", "few-1"]
    assert Counter(task.package for task in chosen) == {"many": 6, "few": 4}


def test_a_task_whose_trust_is_not_known_is_partial() -> None:
    tasks = specs("p", range(5))
    assert choose_tasks(tasks, {}, per_package=4, num_partial=3) == tasks[:3]
