"""Sampling of tasks: more often those that are neither always solved nor never.

A group whose rollouts all get the same reward has no advantages, so `TaskSampler` prefers tasks
whose outcome is open, and `GroupFilter` leaves out the groups that tell nothing all the same. Not
here: playing the tasks.

Letters: G rollouts of one task.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from katgym_trainer.advantages.group_advantages import Advantage, group_advantages
from katgym_trainer.config.rules import Count, CountOrZero, Decay, NotNegative, check_value
from katgym_trainer.row import Bools, Floats


class TaskSamplerState(TypedDict):
    """What a `TaskSampler` has seen; plain JSON.

    Example:
        {"task_ids": ["a"], "passed": [2.0], "failed": [6.0], "rng": "{...}"}
    """

    task_ids: list[str]
    passed: list[float]
    failed: list[float]
    rng: str
    """JSON text: its integers have 128 bits, more than most readers of JSON keep."""


class TaskSampler:
    """Draws tasks by how open their outcome is; same seed and updates, same draws.

    The chance p of passing each task has a Beta(a, b) posterior, and a draw the weight

        E[p * (1 - p)] + floor == a * b / ((a + b) * (a + b + 1)) + floor

    with a = prior[0] + passed rollouts and b = prior[1] + failed ones.
    """

    def __init__(
        self,
        task_ids: Sequence[str],
        *,
        floor: float = 0.05,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int,
    ) -> None:
        """Start with what the prior says of every task.

        floor: at least 0; keeps settled tasks in play. E[p(1-p)] itself is at most 1/4.
        prior: a and b of a task that was never played, above 0.
        decay: above 0, at most 1; what a task's counts are multiplied by at each of its updates,
            as the policy that made them is gone. 1 forgets nothing.
        """
        self._places = {task_id: place for place, task_id in enumerate(task_ids)}
        if not self._places:
            raise ValueError("there are no tasks to sample from")
        if len(self._places) < len(task_ids):
            twice = next(t for place, t in enumerate(task_ids) if self._places[t] != place)
            raise ValueError(f"task {twice!r} is there more than once")
        check_value("floor", floor, NotNegative)
        if len(prior) != 2 or not all(0 < count < math.inf for count in prior):
            raise ValueError(f"prior is two finite numbers > 0, got {prior!r}")
        check_value("decay", decay, Decay)
        check_value("seed", seed, CountOrZero)
        self._floor, self._prior, self._decay = floor, prior, decay
        self._passed = np.zeros(len(self._places))
        self._failed = np.zeros(len(self._places))
        self._rng = np.random.default_rng(seed)

    def sample(self, num: int) -> list[str]:
        """Return different tasks, drawn one after the other by the weights of those left."""
        check_value("num", num, Count)
        if num > len(self._places):
            raise ValueError(f"cannot sample {num} different tasks, there are {len(self._places)}")
        a, b = self._posterior()
        total = a + b
        weights = a * b / (total * (total + 1)) + self._floor
        # The smallest of exponential waiting times is each task's with its weight's share, and so
        # on among the rest (Efraimidis and Spirakis 2006).
        waits = self._rng.exponential(size=len(weights)) / weights
        names = list(self._places)
        return [names[place] for place in np.argsort(waits)[:num]]

    def update(self, task_id: str, num_passed: int, num_valid: int) -> None:
        """Take in how many of a task's valid rollouts passed.

        Without valid rollouts nothing was seen, and nothing is forgotten.
        """
        place = self._place(task_id)
        if not 0 <= num_passed <= num_valid:
            raise ValueError(
                f"{num_passed!r} of {num_valid!r} rollouts passed, allowed is 0 to all of them"
            )
        if num_valid:
            self._passed[place] = self._decay * self._passed[place] + num_passed
            self._failed[place] = self._decay * self._failed[place] + num_valid - num_passed

    def pass_rate(self, task_id: str) -> float:
        """Return the posterior's mean, a / (a + b)."""
        place = self._place(task_id)
        a, b = self._posterior()
        return float(a[place] / (a[place] + b[place]))

    def state_dict(self) -> TaskSamplerState:
        """Return counts and random state; what the constructor was given is not in it."""
        return {
            "task_ids": list(self._places),
            "passed": self._passed.tolist(),
            "failed": self._failed.tolist(),
            "rng": json.dumps(self._rng.bit_generator.state),
        }

    def load_state_dict(self, state: TaskSamplerState) -> None:
        """Go on from a state of the same tasks: the same draws follow."""
        wanted = TaskSamplerState.__required_keys__
        if set(state) != wanted:
            raise ValueError(f"a state has the keys {sorted(wanted)}, got {sorted(state)}")
        if state["task_ids"] != list(self._places):
            differing = sorted(set(state["task_ids"]) ^ set(self._places))[:3]
            raise ValueError(f"the state is of other tasks, or in another order: {differing}")
        counts = [np.array(state[name], dtype=np.float64) for name in ("passed", "failed")]
        for count in counts:
            if count.shape != self._passed.shape or not (np.isfinite(count) & (count >= 0)).all():
                raise ValueError("passed and failed of a state are counts >= 0, one for each task")
        try:
            self._rng.bit_generator.state = json.loads(state["rng"])
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"rng of a state is what state_dict gave, got {state['rng']!r}") from e
        self._passed, self._failed = counts

    def _posterior(self) -> tuple[Floats, Floats]:
        return self._prior[0] + self._passed, self._prior[1] + self._failed

    def _place(self, task_id: str) -> int:
        if task_id not in self._places:
            near = difflib.get_close_matches(task_id, self._places, n=1)
            hint = f". Did you mean {near[0]!r}?" if near else f" among {len(self._places)}"
            raise ValueError(f"unknown task {task_id!r}{hint}")
        return self._places[task_id]


class GroupFilter:
    """Takes groups until a step has enough that teach something.

    The dynamic sampling of DAPO (arXiv 2503.14476, section 3.2): groups whose rollouts all got the
    same reward are refused, and others are played in their place.

    Example:
        wanted = GroupFilter(64, max_offered=256)
        while not wanted.is_full:
            ...  # play a group
            if wanted.offer(rewards_G): groups.append(group)
    """

    def __init__(self, num_groups: int, max_offered: int) -> None:
        """Wait for so many groups, among at most `max_offered`."""
        check_value("num_groups", num_groups, Count)
        if not isinstance(max_offered, int) or max_offered < num_groups:
            raise ValueError(
                f"max_offered is an int >= num_groups={num_groups}, got {max_offered!r}"
            )
        self._num_groups, self._max_offered = num_groups, max_offered
        self.num_missing = num_groups
        """Groups still to be taken."""
        self.num_refused = 0
        """Groups that taught nothing."""

    def offer(
        self, rewards_G: Sequence[float] | Floats, is_valid_G: Sequence[bool] | Bools | None = None
    ) -> bool:
        """Return whether the group is taken: two of its valid rewards differ.

        is_valid_G: false for rollouts that count for nothing; None: all are valid.

        Raises `RuntimeError` when this was the last group that may be offered and some are still
        missing: the tasks are too hard or too easy, and `num_missing` says how far it came. It is
        taken or refused all the same. Raises `ValueError` when all groups are there, and as
        `group_advantages` does.
        """
        if self.is_full:
            raise ValueError(f"all {self._num_groups} groups are there; start another GroupFilter")
        self._check_offered()
        advantages_G = group_advantages(rewards_G, Advantage.DR_GRPO, is_valid_G=is_valid_G)
        is_taken = bool(advantages_G.any())
        self.num_missing -= is_taken
        self.num_refused += not is_taken
        self._check_offered()
        return is_taken

    @property
    def is_full(self) -> bool:
        """Whether all groups are there."""
        return self.num_missing == 0

    def _check_offered(self) -> None:
        """Raise when groups are missing and no more may be offered."""
        num_offered = self._num_groups - self.num_missing + self.num_refused
        if self.num_missing and num_offered == self._max_offered:
            raise RuntimeError(
                f"{self.num_missing} of {self._num_groups} groups are missing after"
                f" {self._max_offered} were offered: {self.num_refused} had no two valid rewards"
                " that differ. Raise max_offered, or sample tasks that are neither always solved"
                " nor never"
            )
