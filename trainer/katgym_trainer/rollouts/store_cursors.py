"""A reader's place in several stores, as one: those of several gateways, or of a gateway's shards.

Groups are whole in one store each. Where there are several, a group's name begins with its store's.
Not here: the place in one store (`katgym.rollout_store.group_cursor`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.play.rollout import Rollout, RolloutGroup
from katgym.rollout_store.group_cursor import GroupCursor
from katgym.rollout_store.groups import IncompleteGroup
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import store_folders
from katgym_trainer.config.rules import split_list


def find_stores(folders: str) -> list[Path]:
    """Return the stores of folders named with commas, each of which is one or holds several."""
    return [store for folder in split_list(folders) for store in store_folders(folder)]


class StoreCursors:
    """A `GroupCursor` for each store; not for several threads at once."""

    def __init__(self, folders: Sequence[Path], *, group_size: int | None = None) -> None:
        """Open the stores; `UsageError` for one that is not there."""
        self._stores: list[RolloutStore] = []
        self._cursors: dict[str, GroupCursor] = {}
        self.folders: dict[str, Path] = {}
        """What names of groups begin with -> folder of the store; "" for one store alone."""
        is_named_alike = len({folder.name for folder in folders}) < len(folders)
        try:
            for folder in folders:
                store = RolloutStore.open(folder, create=False)
                self._stores.append(store)
                name = f"{folder if is_named_alike else folder.name}:" if len(folders) > 1 else ""
                self._cursors[name] = GroupCursor(store, group_size=group_size)
                self.folders[name] = folder
        except BaseException:
            self.close()
            raise
        self._num_looks = 0

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    def groups(self) -> Iterator[tuple[str, RolloutGroup]]:
        """Yield groups that are complete, with their names, in turn from each store."""
        self._num_looks += 1
        names = list(self._cursors)
        first = self._num_looks % len(names)
        reading = {n: self._cursors[n].groups() for n in names[first:] + names[:first]}
        while reading:
            for name, groups in list(reading.items()):
                found = next(groups, None)
                if found is None:
                    del reading[name]
                else:
                    yield name + found[0], found[1]

    def held_out(self) -> list[Rollout]:
        """Return the held-out rollouts that ended and were not returned yet."""
        return [rollout for cursor in self._cursors.values() for rollout in cursor.held_out()]

    def handle(self, name: str) -> None:
        """Take note that a group was handled by somebody else; in all stores if none is told."""
        for prefix, group_id in self._split(name):
            self._cursors[prefix].handle(group_id)

    def give_back(self, names: Collection[str]) -> None:
        """Take back that groups were yielded."""
        for name in reversed(list(names)):  # each comes first in its store
            for prefix, group_id in self._split(name):
                self._cursors[prefix].give_back([group_id])

    def was_there(self, name: str) -> bool:
        """Return whether a group that was just yielded had begun before this reader did."""
        return any(
            self._cursors[prefix].was_there(group_id) for prefix, group_id in self._split(name)
        )

    def folder_of(self, name: str) -> Path:
        """Return the folder of a group's store."""
        return self.folders[next(iter(self._split(name)))[0]]

    def incomplete(self) -> list[IncompleteGroup]:
        """Return the groups that `groups` waits for, the oldest first."""
        found = [
            dataclasses.replace(group, group_id=prefix + group.group_id)
            for prefix, cursor in self._cursors.items()
            for group in cursor.incomplete()
        ]
        return sorted(found, key=lambda group: group.began_s)

    def state_dict(self) -> dict[str, Any]:
        """Return what a later reader goes on from, as JSON values."""
        if "" in self._cursors:
            return self._cursors[""].state_dict()
        return {"stores": {name: cursor.state_dict() for name, cursor in self._cursors.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on from a state, before anything was yielded; return whether all stores are known."""
        states: Mapping[str, Any] = state.get("stores", {"": state})
        is_same = True
        for name, cursor in self._cursors.items():
            is_same &= name in states and cursor.load_state_dict(states[name])
        return is_same

    def load_names(self, groups: Collection[str], held_out: Collection[str]) -> None:
        """Go on from all that was handled, by name."""
        for cursor in self._cursors.values():
            cursor.load_names(groups, held_out)

    def _split(self, name: str) -> list[tuple[str, str]]:
        """Return the stores that a group may be in, with its id there."""
        told = [(p, name[len(p) :]) for p in self._cursors if name.startswith(p)]
        return told or [(prefix, name) for prefix in self._cursors]
