"""Groups that others play into a store, trained on as they come.

`katgym rollouts collect` and agents behind `katgym gateway` write there; they and the trainer know
nothing of each other but the store, the server that both use, and the versions of its weights. Not
here: groups that the run plays itself (`group_stream.py`), which groups can be trained on
(`stored_group_checks.py`), telling a gateway of versions (`gateway_link.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from katgym.play.rollout import Rollout
from katgym_trainer.config.rl_config import RolloutsConfig
from katgym_trainer.rl.curriculum import GroupDraw
from katgym_trainer.rl.failed_groups import FailedGroups
from katgym_trainer.rl.group_stream import GroupFeed, PlayedGroup, Taken
from katgym_trainer.rl.stored_group_checks import reason_against, waiting_text
from katgym_trainer.rollouts.store_cursors import StoreCursors, find_stores

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_TELL_EVERY_S = 60.0
TOO_OLD = "too_old"
"""Why a group is left out whose weights are older than the bound allows."""


class ReplaceSessions(Protocol):
    """Has others play in place of a group that was left out."""

    async def __call__(self, num_sessions: int, *, group_id: str, store: Path) -> None:
        """Have so many more sessions begin; once for each group, however often it is called.

        store: the folder where the group is.
        """


async def _replace_none(num_sessions: int, *, group_id: str, store: Path) -> None:
    """Leave it to whoever plays how much is played."""


class StoreStream(GroupFeed):
    """The complete groups of a store, oldest first, or of several in turn, each once."""

    def __init__(
        self,
        config: RolloutsConfig,
        *,
        temperature: float,
        replace_sessions: ReplaceSessions = _replace_none,
        known: Mapping[int, PlayedGroup] | None = None,
        find_trained: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Open the stores; `UsageError` if there is none.

        temperature: at which the groups have to be sampled. replace_sessions: told of each group
        that is left out, so that others are played in its place. known: groups that a process
        which ended has trained on, by the number of their draw: they are taken again.
        find_trained: returns the ids of all groups that the run has trained on before; asked where
        a checkpoint's place in the store says nothing of this one.
        """
        self._config, self._temperature = config, temperature
        self._replace_sessions = replace_sessions
        self._to_replace: dict[str, int] = {}
        """Sessions of groups that were left out, and nobody was told yet."""
        self._version = 0
        self._held_out: list[Rollout] = []
        """Held-out rollouts that came since the last step."""
        self._num_taken = 0
        self._known = dict(known or {})
        self._failed = FailedGroups()
        self._left_out: Counter[str] = Counter()
        self._find_trained = find_trained
        self._cursor = StoreCursors(find_stores(config.store), group_size=config.group_size)
        """Groups that were taken or left out are behind it."""

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    def advance(self, version: int, *, is_sampled: bool = True) -> None:
        self._version = version

    async def take(self, should_stop: Callable[[], bool] = lambda: False) -> Taken:
        """Wait until the store has a step's groups that can be trained on; see `GroupFeed`.

        Those that cannot be are left out, with a warning; those of older weights than the bound
        allows are counted. What was found until `should_stop` stays for the next process. Raises
        `PolicyError` when group after group cannot be trained on for other reasons, unless they
        were there when this process began.
        """
        began = told = time.perf_counter()
        num_old = self._left_out[TOO_OLD]
        # Groups with which the process before this one took the step.
        groups: list[PlayedGroup] = []
        while len(groups) < self._config.num_groups and self._num_taken in self._known:
            played = self._known.pop(self._num_taken)
            self._cursor.handle(played.draw.task_id)
            self._num_taken += 1
            groups.append(played)
        # And new ones, looked for until there are enough.
        while len(groups) < self._config.num_groups:
            found = await asyncio.to_thread(self._new, self._config.num_groups - len(groups))
            groups += found
            for group_id, num_sessions in list(self._to_replace.items()):
                await self._replace_sessions(
                    num_sessions, group_id=group_id, store=self._cursor.folder_of(group_id)
                )
                del self._to_replace[group_id]
            if len(groups) == self._config.num_groups:
                break
            if should_stop():
                self._cursor.give_back([played.draw.task_id for played in groups])
                self._num_taken -= len(groups)
                return Taken(groups=())
            if time.perf_counter() - told > _TELL_EVERY_S:
                told = time.perf_counter()
                missing = await asyncio.to_thread(self._cursor.incomplete)
                logger.warning(
                    waiting_text(
                        self._config.store,
                        len(groups),
                        self._config.num_groups,
                        missing=missing,
                        left_out=self._left_out,
                    )
                )
            await asyncio.sleep(_POLL_S if not found else 0)
        self._held_out = await asyncio.to_thread(self._cursor.held_out)
        return Taken(
            groups=groups,
            num_dropped=self._left_out[TOO_OLD] - num_old,
            wait_s=time.perf_counter() - began,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor.state_dict(), "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_taken = int(state["num_taken"])
        if "cursor" not in state:  # of a checkpoint that tells every name, as older ones do
            self._cursor.load_names(state["seen"], state["seen_held_out"])
        elif not self._cursor.load_state_dict(state["cursor"]):
            logger.warning(
                "the store %r is not as this run left it: a copy, or made anew. What the run has"
                " trained on is left out by its own record; held-out rollouts are measured again",
                self._config.store,
            )
            for group_id in self._find_trained():
                self._cursor.handle(group_id)

    def metrics(self) -> dict[str, float]:
        """Return how the held-out rollouts did that ended since the last step, if any did."""
        valid = [rollout for rollout in self._held_out if rollout.reward.is_valid]
        if not valid:
            return {}
        num_passed = sum(rollout.is_success for rollout in valid)
        return {
            "eval/store/success": num_passed / len(valid),
            "eval/store/reward": sum(r.reward.value_or_nan() for r in valid) / len(valid),
            "eval/store/num_rollouts": float(len(valid)),
        }

    def _new(self, num_missing: int) -> list[PlayedGroup]:
        """Return new groups that can be trained on, at most as many as are missing."""
        groups: list[PlayedGroup] = []
        for group_id, group in self._cursor.groups():
            seed = group.rollouts[0].seed or 0
            draw = GroupDraw(number=self._num_taken, env=0, lesson=0, task_id=group_id, seed=seed)
            turns = [turn for rollout in group.rollouts for turn in rollout.turns]
            # With which weights it began is not recorded: its oldest token stands for that.
            oldest = min((turn.tokens.policy_version for turn in turns if turn.tokens), default=0)
            played = PlayedGroup(draw=draw, group=group, begun_version=oldest)
            if self._is_usable(played):
                groups.append(played)
                self._num_taken += 1
            if len(groups) == num_missing:
                break
        return groups

    def _is_usable(self, played: PlayedGroup) -> bool:
        kind, reason = reason_against(
            played.group, temperature=self._temperature, version=self._version
        )
        age = self._version - played.oldest_version
        if not kind and age > self._config.max_staleness:
            kind, reason = TOO_OLD, f"its weights are {age} steps old"
        if not kind:
            self._failed.check(played.group)
            return True
        self._left_out[kind] += 1
        self._to_replace[played.draw.task_id] = len(played.group.rollouts)
        level = logging.INFO if kind == TOO_OLD else logging.WARNING
        logger.log(level, "left out: group %r (%s): %s", played.draw.task_id, kind, reason)
        if kind != TOO_OLD and not self._cursor.was_there(played.draw.task_id):
            self._failed.add([kind] * len(played.group.rollouts), reason)
        return False
