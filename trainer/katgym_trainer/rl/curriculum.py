"""Curriculum of a run: envs by their weights, lessons by success, tasks by difficulty.

Groups are drawn in waves of a step's size, tasks of a wave differ. Everything a draw depends on is
in `state_dict`, so that a continued run draws what would have come next. Not here: playing
(`group_stream.py`), how open a task's outcome is (`task_sampler.py`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from katgym.environment.env import Env
from katgym.errors import UsageError
from katgym.play.rollout import RolloutGroup
from katgym.play.seeding import derive_seed
from katgym.plugins.registry import make
from katgym_trainer.config.rl_config import EnvConfig, RolloutsConfig, TaskChoice
from katgym_trainer.task_sampler import TaskSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraw:
    """One group that is to be played.

    Example:
        GroupDraw(number=12, env=0, lesson=1, task_id="L02-train-000412", seed=1829304)
    """

    number: int
    """Draws before it in this run."""
    env: int
    """Place of its [[envs]] section."""
    lesson: int
    task_id: str
    seed: int
    """Of the env; the sampling's follows from it."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


class Curriculum:
    """Draws groups, and learns from how they went."""

    def __init__(self, envs: Sequence[EnvConfig], config: RolloutsConfig, *, seed: int) -> None:
        """Make every env and choose its tasks; `UsageError` for what cannot be played."""
        self._configs = tuple(envs)
        self._wave_size = config.num_groups
        self._seed = seed
        self._courses = [
            _Course(env, config, seed=derive_seed("course", seed, place))
            for place, env in enumerate(envs)
        ]
        total = sum(env.weight for env in envs)
        self._shares = [env.weight / total for env in envs]
        self._credits = [0.0] * len(envs)
        self._num_drawn = 0
        self._wave: deque[GroupDraw] = deque()

    def draw(self) -> GroupDraw:
        """Return the next group."""
        if not self._wave:
            # Whose turn it is: each env gains its share a turn, and pays 1 for its own.
            order = []
            for _ in range(self._wave_size):
                self._credits = [c + s for c, s in zip(self._credits, self._shares, strict=True)]
                place = max(range(len(self._credits)), key=lambda i: (self._credits[i], -i))
                self._credits[place] -= 1
                order.append(place)
            # Each env draws its share of the wave at once, so that its tasks differ.
            drawn = {
                place: deque(self._courses[place].draw(order.count(place))) for place in set(order)
            }
            for number, place in enumerate(order, self._num_drawn):
                lesson, task_id = drawn[place].popleft()
                seed = derive_seed("group", self._seed, place, task_id, number)
                self._wave.append(
                    GroupDraw(number=number, env=place, lesson=lesson, task_id=task_id, seed=seed)
                )
            self._num_drawn += len(order)
        return self._wave.popleft()

    def env(self, draw: GroupDraw) -> Env:
        """Return the env of a draw, to be cloned."""
        return self._courses[draw.env].lessons[draw.lesson].env

    def split(self, draw: GroupDraw) -> str:
        """Return the split of a draw's task."""
        return self._configs[draw.env].split

    def update(self, draw: GroupDraw, group: RolloutGroup) -> None:
        """Take in the valid rewards of a group."""
        self._courses[draw.env].update(draw, group)

    def lesson_names(self) -> dict[str, int]:
        """Return the lesson that each env with a curriculum is in, from 0."""
        pairs = zip(self._configs, self._courses, strict=True)
        return {config.id: course.lesson for config, course in pairs if config.curriculum}

    def first_lessons(self) -> list[tuple[EnvConfig, Env, str]]:
        """Return for each env its config, the env of every lesson, and a task of it."""
        return [
            (config, lesson.env, lesson.task_ids[0])
            for config, course in zip(self._configs, self._courses, strict=True)
            for lesson in course.lessons
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next draws depend on, as JSON values."""
        return {
            "num_drawn": self._num_drawn,
            "credits": list(self._credits),
            "wave": [draw.to_json() for draw in self._wave],
            "courses": [course.state_dict() for course in self._courses],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same envs; `ValueError` for another's."""
        if len(state["courses"]) != len(self._courses):
            raise ValueError(f"the state is of {len(state['courses'])} envs, not these")
        for course, saved in zip(self._courses, state["courses"], strict=True):
            course.load_state_dict(saved)
        self._num_drawn = int(state["num_drawn"])
        self._credits = [float(credit) for credit in state["credits"]]
        self._wave = deque(GroupDraw(**draw) for draw in state["wave"])


class _Lesson:
    """One set of env arguments with the tasks that were chosen of it."""

    def __init__(
        self, env_id: str, kwargs: Mapping[str, Any], env: EnvConfig, config: RolloutsConfig,
        *, seed: int,
    ) -> None:  # fmt: skip
        self.env = make(env_id, **kwargs)
        if len(self.env.seats) > 1:
            raise UsageError(
                f"env {env.id!r} has {len(self.env.seats)} seats; katgym train rl plays one. Name"
                " another opponent, or play it with katgym.run_match"
            )
        tasks = self.env.tasks(env.split)
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(tasks), size=min(env.num_tasks, len(tasks)), replace=False)
        self.task_ids = [tasks[int(place)].task_id for place in sorted(chosen)]
        self.tasks: TaskSampler | _UniformTasks
        if config.choice is TaskChoice.DIFFICULTY:
            self.tasks = TaskSampler(
                self.task_ids, floor=config.floor, decay=config.decay, seed=seed
            )
        else:
            self.tasks = _UniformTasks(self.task_ids, seed=seed)

    def sample(self, num: int) -> list[str]:
        """Return tasks that differ, as far as there are enough."""
        found: list[str] = []
        while len(found) < num:
            found += self.tasks.sample(min(num - len(found), len(self.task_ids)))
        return found


class _Course:
    """One env's lessons, and which of them is being learned."""

    def __init__(self, env: EnvConfig, config: RolloutsConfig, *, seed: int) -> None:
        self._config = env
        self.lessons = [
            _Lesson(env_id, kwargs, env, config, seed=derive_seed("lesson", seed, number))
            for number, (env_id, kwargs) in enumerate(env.lessons)
        ]
        self.lesson = 0
        self._rates: deque[float] = deque(maxlen=env.window)
        self._rng = np.random.default_rng(seed)

    def draw(self, num: int) -> list[tuple[int, str]]:
        """Return lessons and tasks."""
        lessons = [self.lesson] * num
        for place in range(num if self.lesson else 0):
            if self._rng.random() < self._config.review:  # an earlier lesson comes again
                lessons[place] = int(self._rng.integers(self.lesson))
        tasks = {n: deque(self.lessons[n].sample(lessons.count(n))) for n in set(lessons)}
        return [(number, tasks[number].popleft()) for number in lessons]

    def update(self, draw: GroupDraw, group: RolloutGroup) -> None:
        """Take in a group; the next lesson begins when this one is known well enough."""
        rewards = group.rewards
        num_passed = sum(rollout.is_success for rollout in group.rollouts)
        self.lessons[draw.lesson].tasks.update(draw.task_id, num_passed, len(rewards))
        if draw.lesson != self.lesson or not rewards:
            return
        self._rates.append(num_passed / len(rewards))
        is_known = len(self._rates) == self._config.window and (
            sum(self._rates) / len(self._rates) >= self._config.advance_at
        )
        if is_known and self.lesson + 1 < len(self.lessons):
            self.lesson += 1
            self._rates.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "lesson": self.lesson,
            "rates": list(self._rates),
            "rng": json.dumps(self._rng.bit_generator.state),
            "tasks": [lesson.tasks.state_dict() for lesson in self.lessons],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["tasks"]) != len(self.lessons):
            raise ValueError(f"the state is of {len(state['tasks'])} lessons, not of these")
        for lesson, saved in zip(self.lessons, state["tasks"], strict=True):
            lesson.tasks.load_state_dict(saved)
        self.lesson = int(state["lesson"])
        self._rates = deque(state["rates"], maxlen=self._config.window)
        self._rng.bit_generator.state = json.loads(state["rng"])


class _UniformTasks:
    """All tasks alike, each once before any comes again."""

    def __init__(self, task_ids: Sequence[str], *, seed: int) -> None:
        self._task_ids = list(task_ids)
        self._rng = np.random.default_rng(seed)
        self._left: list[int] = []

    def sample(self, num: int) -> list[str]:
        found: list[int] = []
        while len(found) < num:
            if not self._left:
                order = self._rng.permutation(len(self._task_ids)).tolist()
                self._left = sorted(order, key=lambda place: place not in found)  # those last
            found.append(self._left.pop())
        return [self._task_ids[place] for place in found]

    def update(self, task_id: str, num_passed: int, num_valid: int) -> None:
        """Nothing follows from it."""

    def state_dict(self) -> dict[str, Any]:
        return {"left": self._left, "rng": json.dumps(self._rng.bit_generator.state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._left = [int(place) for place in state["left"]]
        self._rng.bit_generator.state = json.loads(state["rng"])
