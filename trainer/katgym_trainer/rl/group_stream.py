"""Groups played ahead of the trainer, as far as the bound on staleness allows.

    async with GroupStream(source, player, config) as stream:
        taken = await stream.take()     # a step's groups; those for later steps play on
        ...                             # train
        stream.advance(version)         # the policy samples from new weights

With B groups a step and staleness S, at most (S + 1) B groups are begun and not yet taken before a
step's groups are, and S B after: the k-th step trains on tokens of weights k - 1 - S or newer. Not
here: what is played (`curriculum.py`), who plays it, and where (`katgym.play.engine`).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from katgym.play.engine import GroupPlayer, RolloutRequest
from katgym.play.rollout import RolloutGroup
from katgym_trainer.config.rl_config import RolloutsConfig, StaleGroups
from katgym_trainer.rl.curriculum import Curriculum, GroupDraw
from katgym_trainer.rl.failed_groups import FailedGroups

logger = logging.getLogger(__name__)

_POLL_S = 0.2
"""A signal does not wake an event loop that waits; it is looked for so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """A group with what it was drawn as."""

    draw: GroupDraw
    group: RolloutGroup
    begun_version: int
    """Weights that the policy had when it began."""
    was_refused: bool | None = None
    """What a process that ended did with it; None: this one has played it."""

    @property
    def oldest_version(self) -> int:
        """The oldest weights that sampled a token of it."""
        versions = [
            turn.tokens.policy_version
            for rollout in self.group.rollouts
            for turn in rollout.turns
            if turn.tokens is not None
        ]
        return min(versions, default=self.begun_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a step gets."""

    groups: Sequence[PlayedGroup]
    """In the order in which they were drawn; none after `should_stop`."""
    refused: Sequence[PlayedGroup] = ()
    """Groups of equal rewards in whose place others were played."""
    num_dropped: int = 0
    """Groups given up since the last step, as their weights were too old."""
    wait_s: float = 0.0


class GroupFeed(abc.ABC):
    """Where a run's groups come from; an async context manager."""

    async def __aenter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Let go of what it holds."""

    @abc.abstractmethod
    def advance(self, version: int, *, is_sampled: bool = True) -> None:
        """Take note of a step's weights; is_sampled: whether the policy samples from them yet."""

    def note_sampled(self, version: int) -> None:  # noqa: B027 - others play, who see it in tokens
        """Take note that the policy samples from weights that were on their way."""

    def has_next(self, version: int) -> bool:  # others play, and are not asked
        """Return whether the groups of the step after weights `version` are there."""
        return False

    @abc.abstractmethod
    async def take(self, should_stop: Callable[[], bool]) -> Taken:
        """Wait for the groups of a step; none once `should_stop`."""

    def idle_s(self) -> float:
        """Return the wall seconds in which no rollout was played, since this was asked before.

        Always 0 where others play, who know how busy they are.
        """
        return 0.0

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what a continued run goes on from, as JSON values."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before anything was played."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return what it has to say of a step."""


class GroupStream(GroupFeed):
    """Has groups played in the background of one event loop; an async context manager."""

    def __init__(
        self,
        source: Curriculum,
        player: GroupPlayer,
        config: RolloutsConfig,
        *,
        known: Mapping[int, PlayedGroup] | None = None,
    ) -> None:
        """known: groups that a process which ended has played, by the number of their draw."""
        self.version = 0
        """Weights that the policy samples from."""
        self._source, self._player, self._config = source, player, config
        self._again: deque[GroupDraw] = deque()
        """Groups that a process which ended had begun; played before others."""
        self._known = dict(known or {})
        self._running: dict[asyncio.Task[PlayedGroup], GroupDraw] = {}
        self._begun: dict[int, int] = {}
        self._finished: list[PlayedGroup] = []
        self._refused: list[PlayedGroup] = []
        self._num_dropped = 0
        self._trained = 0
        """Weights of the last step."""
        self._next_step = 1
        self._idle = _IdleClock()
        self._failed = FailedGroups()

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def state_dict(self) -> dict[str, Any]:
        """Return what a continued run needs to play the groups that would have come."""
        return {
            "source": self._source.state_dict(),
            "pending": [draw.to_json() for draw in self.pending()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.load_state_dict(state["source"])
        self._again = deque(GroupDraw(**draw) for draw in state["pending"])

    def metrics(self) -> dict[str, float]:
        """Return the lesson of every env with a curriculum."""
        names = self._source.lesson_names()
        return {f"lesson/{name}": float(number) for name, number in names.items()}

    def pending(self) -> list[GroupDraw]:
        """Return what was drawn and not taken: a continued run plays it first."""
        played = (*self._finished, *self._refused)
        draws = [*self._again, *self._running.values(), *(p.draw for p in played)]
        return sorted(draws, key=lambda draw: draw.number)

    def note_sampled(self, version: int) -> None:
        self.version = version
        self._fill()

    def advance(self, version: int, *, is_sampled: bool = True) -> None:
        self._trained, self._next_step = version, version + 1
        if is_sampled:
            self.version = version
        if self._config.stale is StaleGroups.DROP:
            # Give up groups that no step may train on any more.
            oldest = version - self._config.max_staleness
            for task, draw in list(self._running.items()):
                if self._begun[draw.number] < oldest:
                    task.cancel()
                    del self._running[task], self._begun[draw.number]
                    self._num_dropped += 1
            fresh = [played for played in self._finished if played.oldest_version >= oldest]
            self._num_dropped += len(self._finished) - len(fresh)
            self._finished = fresh
        self._fill()

    async def take(self, should_stop: Callable[[], bool] = lambda: False) -> Taken:
        """Wait for the groups of a step; none once `should_stop`, which is asked now and then.

        Raises `PolicyError` when the policy only fails, and mistakes of the caller.
        """
        began = time.perf_counter()
        num_groups, self._next_step = self._config.num_groups, self._trained + 1
        while len(self._finished) < num_groups or self._has_to_wait(self._trained):
            self._fill()
            if should_stop():
                return Taken(groups=())
            await asyncio.wait(self._running, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            self._collect()
        # The oldest weights first, then in the order of their draws.
        order = sorted(self._finished, key=lambda p: (p.begun_version, p.draw.number))
        groups = sorted(order[:num_groups], key=lambda played: played.draw.number)
        self._finished = order[num_groups:]
        self._next_step += 1
        self._fill()
        refused, self._refused = self._refused, []
        dropped, self._num_dropped = self._num_dropped, 0
        for played in sorted([*groups, *refused], key=lambda played: played.draw.number):
            self._source.update(played.draw, played.group)
        return Taken(
            groups=groups,
            refused=refused,
            num_dropped=dropped,
            wait_s=time.perf_counter() - began,
        )

    def idle_s(self) -> float:
        return self._idle.since_last()

    def has_next(self, version: int) -> bool:
        self._collect()
        fresh = self._finished
        if self._config.stale is StaleGroups.DROP:
            oldest = version - self._config.max_staleness
            fresh = [played for played in fresh if played.oldest_version >= oldest]
        return len(fresh) >= self._config.num_groups and not self._has_to_wait(version)

    def _collect(self) -> None:
        """Take in the groups that ended: each is kept, or refused while another can be offered in
        its place."""
        ended = [task for task in self._running if task.done()]
        for task in sorted(ended, key=lambda task: self._running[task].number):
            del self._begun[self._running.pop(task).number]
            played = task.result()
            self._failed.check(played.group)
            is_refused = played.was_refused
            if is_refused is None:
                most = self._config.max_offered - self._config.num_groups
                is_refused = len(self._refused) < most and len(set(played.group.rewards)) < 2
            (self._refused if is_refused else self._finished).append(played)

    def _has_to_wait(self, version: int) -> bool:
        """Return whether a group still plays that some later step than that after weights `version`
        would find too old."""
        if self._config.stale is not StaleGroups.WAIT:
            return False
        finished = sorted(played.begun_version for played in self._finished)
        oldest = version - self._config.max_staleness
        return must_wait(
            self._begun.values(), finished, oldest=oldest, newest=version,
            num_groups=self._config.num_groups,
        )  # fmt: skip

    def _fill(self) -> None:
        """Begin groups while the bound allows it: with those that are taken before them, each in
        a step whose weights are at most max_staleness newer than what is sampled from now."""
        steps = self._config.max_staleness + 2 + self.version - self._next_step
        while len(self._running) + len(self._finished) < steps * self._config.num_groups:
            draw = self._again.popleft() if self._again else self._source.draw()
            self._begun[draw.number] = self.version
            self._running[asyncio.create_task(self._play(draw))] = draw

    async def _play(self, draw: GroupDraw) -> PlayedGroup:
        known = self._known.pop(draw.number, None)
        if known is not None and known.draw == draw:
            return known
        begun_version = self.version
        env, split = self._source.env(draw), self._source.split(draw)
        requests = [
            RolloutRequest(
                env=env, seed=draw.seed, task_id=draw.task_id, split=split, attempt=attempt
            )
            for attempt in range(self._config.group_size)
        ]
        with self._idle.busy():
            rollouts = await self._player.play_group(requests)
        return PlayedGroup(
            draw=draw, group=RolloutGroup(rollouts=rollouts), begun_version=begun_version
        )


def must_wait(
    running: Collection[int], finished: Sequence[int], *, oldest: int, newest: int, num_groups: int
) -> bool:
    """Return whether a step has to wait for running groups, that no later one finds them too old.

    Each step takes num_groups, the oldest first. Of those that it leaves, as many may be of version
    oldest + n or older as n steps take.

    running, finished: versions that groups began with; finished ones in order. oldest, newest: that
    this step may train on.
    """
    left = [*running, *finished[num_groups:]]
    return any(
        min(running, default=newest) <= version
        and sum(begun <= version for begun in left) > num_steps * num_groups
        for num_steps, version in enumerate(range(oldest, newest))
    )


class _IdleClock:
    """Measures the time in which nothing is busy."""

    def __init__(self) -> None:
        self._num_busy, self._idle_s = 0, 0.0
        self._idle_from = time.perf_counter()
        """Nothing has been busy since; of no meaning while something is."""

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Return a context in which something is."""
        if self._num_busy == 0:
            self._idle_s += time.perf_counter() - self._idle_from
        self._num_busy += 1
        try:
            yield
        finally:
            self._num_busy -= 1
            if self._num_busy == 0:
                self._idle_from = time.perf_counter()

    def since_last(self) -> float:
        """Return the idle seconds since this was called before."""
        if self._num_busy == 0:
            at = time.perf_counter()
            self._idle_s += at - self._idle_from
            self._idle_from = at
        found, self._idle_s = self._idle_s, 0.0
        return found
