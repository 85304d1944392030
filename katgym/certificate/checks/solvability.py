"""Checks of the two ends of the reward: the gold solution earns the most, nothing earns nothing.

Not here: players between the two (`floors.py`, `gameability.py`).
"""

from __future__ import annotations

import random

from katgym.certificate.findings import Failed, Skipped
from katgym.certificate.subject import EPSILON, Subject, max_value, oracle, play, spread
from katgym.environment.env import Env

GARBAGE = "zzzz 0x7f \u2603 I am not sure, maybe."


async def check_oracle(subject: Subject) -> str:
    """The gold solution earns the maximum of the rubric, or what the env promises.

    On every level, and on tasks spread over every split.
    """
    env = subject.fresh()
    least = await _check_maximum(env, subject.num_tasks, "")
    for name in subject.levels():
        await _check_maximum(subject.make_level(name), max(2, subject.num_tasks // 4), name)
    if len(env.seats) > 1:
        return (
            f"{subject.num_tasks} episodes played to their end; {len(env.seats)} seats share them"
        )
    levels = f" and on {len(subject.levels())} levels" if subject.levels() else ""
    splits = f" and on tasks of {len(env.splits)} splits" if len(env.splits) > 1 else ""
    return f"at least {least:g} on each of {subject.num_tasks} seeds{splits}{levels}"


async def _check_maximum(env: Env, num_tasks: int, level: str) -> float:
    least, name = env.oracle_minimum(), "the env's oracle_minimum()"
    if least is None:
        least, name = max_value(env), "the rubric's maximum"
    num_more = max(1, num_tasks // 2)
    episodes = [(seed, env.split, None) for seed in range(num_tasks)]
    for split in env.splits:
        tasks = env.tasks(split)
        episodes += [(i, split, tasks[i].task_id) for i in spread(len(tasks), num_more)]  # type: ignore[misc]  # the id may be None
    for seed, split, task_id in episodes:
        options = {"split": split, "task_id": task_id}
        value, _ = await play(env, oracle, seed=seed, options=options)
        if len(env.seats) == 1 and value < least - EPSILON:
            where = f"level {level}, " if level else ""
            raise Failed(
                f"{where}seed {seed}, task {env.task.task_id!r}: the oracle earns {value:g}, {name}"
                f" is {least:g}"
            )
    return least


async def check_floor(subject: Subject) -> str:
    """Saying nothing, nonsense or something random is not paid."""
    env = subject.fresh()
    if len(env.seats) > 1:
        raise Skipped(f"{len(env.seats)} seats: what one earns depends on the others")
    highest = max_value(env)
    seeds = range(subject.num_tasks)
    floors = [(await play(env, lambda *_: "", seed=seed))[0] for seed in seeds]
    if max(floors) - min(floors) > EPSILON:
        raise Failed(f"an empty message earns {min(floors):g} to {max(floors):g}, not always same")
    if floors[0] > highest - EPSILON:
        raise Failed(f"an empty message earns {floors[0]:g}, as much as the solution")
    for seed in seeds:
        value, _ = await play(env, lambda *_: GARBAGE, seed=seed)
        if value > floors[0] + EPSILON:
            raise Failed(
                f"seed {seed}: {GARBAGE!r} earns {value:g}, an empty message {floors[0]:g}"
            )
        rng = random.Random(seed)
        value, _ = await play(env, lambda env, _, rng=rng: env.random_action(rng), seed=seed)  # type: ignore[misc]  # bound per seed
        if value > highest + EPSILON:
            raise Failed(f"seed {seed}: random play earns {value:g}, above the maximum {highest:g}")
    return f"{floors[0]:g} for an empty message and for nonsense"
