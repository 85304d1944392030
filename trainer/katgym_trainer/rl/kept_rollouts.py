"""Every rollout that a run trains on, in a store in its folder, before the step that uses it.

A run that goes on from an earlier checkpoint trains the steps since then on these instead of
playing them again. Not here: the store (`katgym.rollout_store`), looking at it (`katgym view`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.play.rollout import Rollout, RolloutGroup
from katgym.rollout_store.changes import known_groups, read_groups
from katgym.rollout_store.groups import GROUP_SIZE, IS_HELD_OUT, IS_REFUSED
from katgym.rollout_store.records import SessionRecord
from katgym.rollout_store.rollouts import as_rollout, as_session
from katgym.rollout_store.store import RolloutStore
from katgym_trainer.rl.curriculum import GroupDraw
from katgym_trainer.rl.group_stream import PlayedGroup
from katgym_trainer.rollouts.rollout_rows import Shaping, rollout_advantages

STEP = "step"
DRAW = "draw"
ADVANTAGE = "advantage"
BEGUN_VERSION = "begun_version"
"""Keys of a session's metadata: the step that trains on it, what its group was drawn as, its
advantage, the weights with which its group began."""


class KeptRollouts:
    """The store `rollouts/` in a run's folder; not for several threads at once."""

    def __init__(self, folder: Path, *, advantage: str, shaping: Shaping) -> None:
        """advantage, shaping: of `rollout_advantages`."""
        self._store = RolloutStore.open(folder / "rollouts")
        self._advantage, self._shaping = advantage, shaping

    def record(
        self, step: int, groups: Sequence[PlayedGroup], refused: Sequence[PlayedGroup] = ()
    ) -> None:
        """Write what a step is going to train on; what is there already is left as it is.

        refused: groups in whose place others were played. A continued run refuses them again.
        """
        sessions = []
        advantages = rollout_advantages(
            [played.group for played in groups], self._advantage, shaping=self._shaping
        )
        for number, played in enumerate([*groups, *refused]):
            common = {
                STEP: step,
                DRAW: played.draw.to_json(),
                BEGUN_VERSION: played.begun_version,
                GROUP_SIZE: len(played.group.rollouts),
                **({} if number < len(groups) else {IS_REFUSED: True}),
            }
            group_id = f"step-{step:06d}-group-{played.draw.number:06d}"
            for place, rollout in enumerate(played.group.rollouts):
                is_compared = number < len(groups) and rollout.reward.is_valid
                more = {ADVANTAGE: float(advantages[number][place])} if is_compared else {}
                sessions.append((rollout, group_id, {**common, **more}))
        self._add(sessions)

    def record_held_out(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write the rollouts of an evaluation."""
        common = {STEP: step, IS_HELD_OUT: True}
        self._add([(r, f"eval-{step:06d}-{r.env_id}-{r.task_id}", common) for r in rollouts])

    def after(self, step: int) -> dict[int, PlayedGroup]:
        """Return the groups of later steps, refused ones too, by the number of their draw."""
        ids: dict[int, list[str]] = {}
        metas: dict[int, Mapping[str, Any]] = {}
        for record in self._records(lambda group_step: group_step > step):
            meta = record.metadata
            if meta.get(IS_HELD_OUT) or not meta.get(STEP, 0) > step:
                continue
            number = GroupDraw(**meta[DRAW]).number
            metas[number] = meta
            ids.setdefault(number, []).append(record.session_id)
        found = {}
        for number, meta in metas.items():
            if len(ids[number]) != int(meta[GROUP_SIZE]):
                continue  # the process ended while it wrote them
            rollouts = [as_rollout(stored) for stored in self._store.stored_many(ids[number])]
            found[number] = PlayedGroup(
                draw=GroupDraw(**meta[DRAW]),
                group=RolloutGroup(rollouts=sorted(rollouts, key=lambda r: r.attempt)),
                begun_version=int(meta[BEGUN_VERSION]),
                was_refused=meta.get(IS_REFUSED) is True,
            )
        return found

    def trained(self, last_step: int) -> set[str]:
        """Return the ids of the tasks that steps up to one were trained on; reads all of them."""
        return {
            GroupDraw(**record.metadata[DRAW]).task_id
            for record in self._records(lambda group_step: group_step <= last_step)
            if not record.metadata.get(IS_HELD_OUT) and record.metadata.get(STEP, 0) <= last_step
        }

    def last_step(self) -> int:
        """Return the last step that anything was recorded for; 0 for none."""
        return max(map(_step_of, known_groups(self._store)), default=0)

    def close(self) -> None:
        """Close the store; may be called twice."""
        self._store.close()

    def _records(self, is_wanted: Callable[[int], bool]) -> list[SessionRecord]:
        """Return the sessions of the groups whose step is wanted; others are not read."""
        names = [name for name in known_groups(self._store) if is_wanted(_step_of(name))]
        found = read_groups(self._store, names)
        return [record for members in found.values() for record in members]

    def _add(self, sessions: Sequence[tuple[Rollout, str, dict[str, Any]]]) -> None:
        now_s = time.time()
        self._store.add_sessions(
            [
                as_session(rollout, group_id=group_id, metadata=metadata, ended_s=now_s)
                for rollout, group_id, metadata in sessions
            ]
        )


def _step_of(group_id: str) -> int:
    """Return the step in a group's id; 0 for a group of others."""
    number = group_id.split("-", 2)[1] if "-" in group_id else ""
    return int(number) if number.isdecimal() else 0
