"""Groups that others play into a store, trained on as they come.

`katgym rollouts collect` and agents behind `katgym gateway` write there; they and the trainer know
nothing of each other but the store, and the server that both use. Not here: groups that the run
plays itself (`group_stream.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from katgym.rollout import RolloutGroup
from katgym.rollout_store.groups import stored_groups
from katgym.rollout_store.store import RolloutStore
from katgym_trainer.rl.group_stream import PlayedGroup, Taken
from katgym_trainer.rl.rl_config import RolloutsConfig
from katgym_trainer.rl.task_source import GroupDraw

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_TELL_EVERY_S = 60.0


class StoreStream:
    """The complete groups of a store, oldest first, each once; a `GroupFeed`."""

    def __init__(self, config: RolloutsConfig) -> None:
        """Open the store; `UsageError` if there is none."""
        self._config = config
        self._version = 0
        self._seen: set[str] = set()
        self._num_taken = 0
        self._store = RolloutStore.open(config.store, create=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()

    def advance(self, version: int) -> None:
        """See `GroupFeed`."""
        self._version = version

    async def take(self, should_stop: Callable[[], bool] = lambda: False) -> Taken:
        """Wait until the store has a step's groups that are new and not too old; see `GroupFeed`.

        Groups of older weights than the bound allows are left out, and counted.
        """
        began = told = time.perf_counter()
        groups: list[PlayedGroup] = []
        num_dropped = 0
        while len(groups) < self._config.num_groups:
            found, num_old = await asyncio.to_thread(self._new, len(groups))
            groups += found
            num_dropped += num_old
            if len(groups) == self._config.num_groups:
                break
            if should_stop():
                return Taken(groups=())
            if time.perf_counter() - told > _TELL_EVERY_S:
                told = time.perf_counter()
                logger.warning(
                    "waiting for groups in %r: %d of %d are there",
                    self._config.store, len(groups), self._config.num_groups,
                )  # fmt: skip
            await asyncio.sleep(_POLL_S if not found else 0)
        return Taken(groups=groups, num_dropped=num_dropped, wait_s=time.perf_counter() - began)

    def idle_s(self) -> float:
        """Return 0: others play, and know how busy they are."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """See `GroupFeed`."""
        return {"seen": sorted(self._seen), "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `GroupFeed`."""
        self._seen = set(state["seen"])
        self._num_taken = int(state["num_taken"])

    def metrics(self) -> dict[str, float]:
        """See `GroupFeed`."""
        return {}

    def _new(self, num_there: int) -> tuple[list[PlayedGroup], int]:
        """Return new groups, at most as many as are missing, and how many were too old."""
        groups: list[PlayedGroup] = []
        num_old = 0
        for group_id, group in stored_groups(
            self._store, group_size=self._config.group_size, without=frozenset(self._seen)
        ):
            self._seen.add(group_id)
            played = self._played(group)
            if self._version - played.oldest_version > self._config.max_staleness:
                num_old += 1
                continue
            groups.append(played)
            self._num_taken += 1
            if num_there + len(groups) == self._config.num_groups:
                break
        return groups, num_old

    def _played(self, group: RolloutGroup) -> PlayedGroup:
        first = group.rollouts[0]
        draw = GroupDraw(
            number=self._num_taken, env=0, lesson=0, task_id=first.task_id, seed=first.seed or 0
        )
        return PlayedGroup(draw=draw, group=group, begun_version=0)
