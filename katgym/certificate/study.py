"""Study of an env's tasks: what is shown and known of each, and how its oracle answers.

Not here: what is made of it (`floors.py`, `checks/leaks.py`, `checks/gameability.py`).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from katgym.certificate.answers import AnswerForm, learn_form
from katgym.certificate.findings import Skipped
from katgym.certificate.subject import MAX_STEPS, Subject, spread
from katgym.environment.env import Env
from katgym.environment.messages import Action, Message, normalize_action

NUM_TRAIN = 200
NUM_TEST = 100
MIN_TEST = 10
"""Fewer test tasks, or fewer within the budget, prove nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedTask:
    """One task as it opens, and the oracle's actions in it, as far as it was played."""

    index: int
    num_tasks: int
    task_id: str
    answer: Any
    observation: Sequence[Message]
    info: Mapping[str, Any]
    actions: Sequence[Message] = ()
    value: float = 0.0

    @property
    def prompt(self) -> str:
        """What the opening says."""
        return "\n".join(message["content"] for message in self.observation)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Examples of train and test tasks of one env."""

    env: Env
    train: Sequence[StudiedTask]
    test: Sequence[StudiedTask]
    scores: dict[str, list[float]] = field(default_factory=dict)
    """Name of a floor -> what its player earned on each test task, over the maximum."""

    @property
    def test_split(self) -> str:
        """The split that test examples are from."""
        return _test_split(self.env)

    @cached_property
    def form(self) -> AnswerForm:
        """The form of the oracle's last actions."""
        return learn_form((e.actions[-1], e.answer) for e in self.train if e.actions)

    @cached_property
    def frequent_values(self) -> list[str]:
        """Values that the oracle answers with on train tasks, the most frequent first."""
        return [value for value, _ in Counter(map(self.gold, self.train)).most_common() if value]

    @cached_property
    def frequent_actions(self) -> list[Action]:
        """Actions of the oracle on train tasks, last ones and all, the most frequent first."""
        last = Counter(json.dumps(e.actions[-1]) for e in self.train if e.actions)
        every = Counter(json.dumps(action) for e in self.train for action in e.actions)
        found = [text for counter in (last, every) for text, _ in counter.most_common(5)]
        return [json.loads(text) for text in dict.fromkeys(found)]

    def gold(self, example: StudiedTask) -> str:
        """Return the value that the oracle answers a task with, "" if unknown."""
        if not example.actions:
            return ""
        return self.form.unwrap(example.actions[-1]) or ""


async def study_tasks(
    subject: Subject, env: Env, *, num_train: int = NUM_TRAIN, num_test: int = NUM_TEST
) -> Study:
    """Play the oracle on train and test tasks spread over their splits.

    Raises `Skipped` for an env of several seats or without an oracle.
    """
    if len(env.seats) > 1:
        raise Skipped(f"{len(env.seats)} seats: what one earns depends on the others")
    test = await _gather(env, _test_split(env), num_test, subject.budget(1 / 3))
    train = await _gather(env, env.splits[0], num_train, subject.budget(2 / 3))
    return Study(env=env, train=train, test=test)


def _test_split(env: Env) -> str:
    return "test" if "test" in env.splits else env.splits[-1]


async def _gather(
    env: Env, split: str, limit: int, is_spent: Callable[[], bool]
) -> Sequence[StudiedTask]:
    tasks = env.tasks(split)
    found: list[StudiedTask] = []
    indices = list(spread(len(tasks), limit))
    random.Random(0).shuffle(indices)  # what a budget or a smaller sample leaves is spread too
    for index in indices:
        if found and is_spent():
            break
        task = tasks[index]
        options = {"task_id": task.task_id, "split": split}
        observation, info = await env.areset(seed=index, options=options)
        actions: list[Message] = []
        while env.is_running and len(actions) < MAX_STEPS:
            try:
                actions.append(normalize_action(env.oracle_action()))
            except NotImplementedError as e:
                await env.aclose()
                raise Skipped(str(e)) from e
            await env.astep(actions[-1])
        await env.aclose()
        value = env.last_reward.value if env.last_reward is not None else None
        found.append(
            StudiedTask(
                index=index,
                num_tasks=len(tasks),
                task_id=task.task_id,
                answer=task.answer,
                observation=observation,
                info=info,
                actions=actions,
                value=value or 0.0,
            )
        )
    return found
