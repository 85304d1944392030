"""Groups in a row that teach nothing for a reason that playing on would not mend.

Not here: groups whose rewards are all equal (`rl_run.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from katgym.errors import PolicyError
from katgym.play.rollout import RolloutGroup

MAX_FAILED_GROUPS = 3
"""Groups without a valid rollout, one after the other, after which it is given up."""


class FailedGroups:
    """Counts them, and raises when they are too many."""

    def __init__(self) -> None:
        self._num_groups = 0
        self._kinds: Counter[str] = Counter()

    def check(self, group: RolloutGroup) -> None:
        """Count a group if none of its rollouts is valid."""
        if group.rewards:
            self._num_groups = 0
            self._kinds.clear()
            return
        kinds = (str(rollout.failure_kind) for rollout in group.rollouts)
        self.add(kinds, group.rollouts[-1].reason)

    def add(self, kinds: Iterable[str], reason: str) -> None:
        """Count a group; kinds: what was wrong with each rollout. Raises `PolicyError`."""
        self._num_groups += 1
        self._kinds.update(kinds)
        if self._num_groups < MAX_FAILED_GROUPS:
            return
        counts = ", ".join(f"{num} {kind}" for kind, num in self._kinds.most_common())
        raise PolicyError(
            f"{self._num_groups} groups in a row have no valid rollout ({counts}); the last says:"
            f" {reason}. Mend it and run the same command again: it goes on from its last"
            " checkpoint",
            kind=self._kinds.most_common(1)[0][0],
        )
