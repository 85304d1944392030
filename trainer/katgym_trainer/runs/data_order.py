"""Order of the rollouts: every one once an epoch, as a seed decides.

Rollouts of one task lie side by side, so that a step shares what they begin with; tasks are
shuffled, and rollouts within a task. The order is a function of the step, so continuing a run needs
no state but the step. Not here: the rollouts (`training_data.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from katgym.errors import UsageError
from katgym.play.seeding import derive_seed


class DataOrder:
    """The order of some rollouts over all epochs.

    Example:
        DataOrder(["task-1", "task-1", "task-2"], batch_rollouts=2).batch(0)
    """

    def __init__(
        self, tasks: Sequence[Hashable], *, batch_rollouts: int = 8, seed: int = 0
    ) -> None:
        """Keep each rollout's task; `UsageError` if there is none."""
        if not tasks:
            raise UsageError("there is no rollout to train on")
        places: dict[Hashable, list[int]] = {}
        for place, task in enumerate(tasks):
            places.setdefault(task, []).append(place)
        self._tasks = list(places.values())
        self._batch_rollouts = batch_rollouts
        self._seed = seed
        self._epoch: tuple[int, list[int]] = (-1, [])
        self.steps_per_epoch = -(-len(tasks) // batch_rollouts)

    def batch(self, step: int) -> list[int]:
        """Return the places of the rollouts of a step, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            rng = np.random.default_rng(derive_seed("epoch", self._seed, epoch))
            order: list[int] = []
            for task in rng.permutation(len(self._tasks)).tolist():
                order += rng.permutation(self._tasks[task]).tolist()
            self._epoch = (epoch, order)
        start = place * self._batch_rollouts
        return self._epoch[1][start : start + self._batch_rollouts]

    def cursor(self, step: int) -> dict[str, int]:
        """Return where the order stands after `step` steps: what checkpoints keep."""
        epoch, place = divmod(step, self.steps_per_epoch)
        return {"epoch": epoch, "place": place, "seed": self._seed}

    def check(self, cursor: Mapping[str, Any], step: int) -> None:
        """Raise `UsageError` for a cursor of another order."""
        expected = self.cursor(step)
        if dict(cursor) != expected:
            raise UsageError(
                f"the checkpoint of step {step} stands at {dict(cursor)!r} of the data, which these"
                f" rollouts put at {expected!r}: it is of other data"
            )
