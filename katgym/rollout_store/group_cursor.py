"""`GroupCursor`: the groups of a store as they become complete, each once; held-out rollouts too.

    cursor = GroupCursor(store, group_size=8)
    for group_id, group in cursor.groups():     # those that are complete and were not yielded yet
        ...
    state = cursor.state_dict()                 # does not grow with what was yielded

A look costs what has changed since the last one. Not here: all groups, whenever they were complete
(`groups.py`); the order of changes (`changes.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from katgym.errors import UnknownNameError
from katgym.play.rollout import Rollout, RolloutGroup
from katgym.rollout_store.changes import epoch_of, first_changes, read_changes, read_groups
from katgym.rollout_store.groups import (
    IncompleteGroup,
    complete_attempts,
    find_incomplete,
    has_ended,
    is_held_out,
    overdue_s,
)
from katgym.rollout_store.records import SessionRecord
from katgym.rollout_store.rollouts import as_rollout
from katgym.rollout_store.store import RolloutStore

_NEVER = 2**63
_LOOKED_AT_TOGETHER = 16
"""Groups: a shard is looked through for them at once, and nearly all are yielded next."""


class Ledger:
    """Which names were handled: all up to a watermark but those that wait, and some behind it.

    A name stands in the order by its first change, which stays.
    """

    def __init__(self) -> None:
        self.watermark = 0
        self.waiting: dict[str, int] = {}
        """Names that are not handled, each with its first change."""
        self._handled: dict[str, int] = {}
        """Those behind the watermark."""
        self.changed: dict[str, None] = {}
        """Waiting ones to look at, in order of their last change."""
        self._due_s: dict[str, float] = {}
        """Waiting ones to look at once it is so late (Unix time), though nothing changes."""

    def note(self, name: str, first: int) -> None:
        """Take note of a change."""
        if name in self._handled:
            self._handled[name] = first
            return
        if first <= self.watermark and name not in self.waiting:
            return
        self.waiting[name] = first
        self.changed.pop(name, None)
        self.changed[name] = None

    def note_due(self) -> None:
        """Take note of what time alone has changed."""
        now_s = time.time()
        for name in [name for name, due_s in self._due_s.items() if due_s < now_s]:
            del self._due_s[name]
            self.changed[name] = None

    def wait(self, name: str, records: Iterable[SessionRecord]) -> None:
        """Have a name wait for its next change, or for one of its sessions to be overdue."""
        self.changed.pop(name, None)
        due_s = min((overdue_s(r) for r in records if not has_ended(r)), default=float("inf"))
        self._due_s.pop(name, None)
        if due_s < float("inf"):
            self._due_s[name] = due_s

    def handle(self, name: str, first: int = _NEVER) -> None:
        """Take note that a name was handled; first: of one that nobody took note of."""
        self.changed.pop(name, None)
        self._due_s.pop(name, None)
        self._handled[name] = self.waiting.pop(name, first)

    def give_back(self, names: Collection[str]) -> None:
        """Take back that names were handled; they come first again."""
        for name in names:
            self.waiting[name] = self._handled.pop(name)
        self.changed = dict.fromkeys([*names, *self.changed])

    def first(self, name: str) -> int:
        """Return the first change of a name that was handled since the last `state_dict`."""
        return self._handled[name]

    def state_dict(self) -> dict[str, Any]:
        """Move the watermark to where the fewest names have to be told, and tell them."""
        marks = [(first, 1, name) for name, first in self._handled.items() if first < _NEVER]
        marks += [(first, 0, name) for name, first in self.waiting.items()]
        watermark = self.watermark
        num = len(self._handled) + sum(first <= watermark for first in self.waiting.values())
        least = num
        for first, was_handled, _ in sorted(marks):
            if first > self.watermark:
                num += -1 if was_handled else 1
                if was_handled and num <= least:
                    least, watermark = num, first
        self.watermark = watermark
        self._handled = {n: first for n, first in self._handled.items() if first > watermark}
        return {
            "watermark": watermark,
            "waiting": sorted(n for n, first in self.waiting.items() if first <= watermark),
            "handled": sorted(self._handled),
        }

    def load(
        self, state: Mapping[str, Any], find: Callable[[Collection[str]], dict[str, int]]
    ) -> None:
        """Go on from a state; find: returns the first changes of the names that are known."""
        self.watermark = int(state["watermark"])
        self.waiting = find(state["waiting"])
        firsts = find(state["handled"])
        self._handled = {name: firsts.get(name, _NEVER) for name in state["handled"]}
        self.changed = dict.fromkeys(sorted(self.waiting, key=lambda name: self.waiting[name]))


class GroupCursor:
    """A reader's place in a store; not for several threads at once.

    The store may be written meanwhile, by others too, and sealed; its sessions may end in any
    order, and be judged again later, which changes nothing of a group that was yielded.
    """

    def __init__(self, store: RolloutStore, *, group_size: int | None = None) -> None:
        """group_size: of groups that do not say; see `stored_groups`."""
        self._store, self._group_size = store, group_size
        self._groups, self._held_out = Ledger(), Ledger()
        self._after = 0
        """All changes up to this one were taken note of."""
        self.began = read_changes(store, _NEVER - 1).last
        """The newest change when this reader began."""

    def groups(self) -> Iterator[tuple[str, RolloutGroup]]:
        """Yield groups that are complete, with their ids; first what changed longest ago.

        Of a session that nobody ended see `groups.py`. A group that is yielded is handled.
        """
        self._look()
        ledger = self._groups
        while batch := list(islice(ledger.changed, _LOOKED_AT_TOGETHER)):
            found = self._trainable(batch)
            for group_id in batch:
                records = found.get(group_id, [])
                members = complete_attempts(records, self._group_size)
                group = None if members is None else self._read(members)
                if group is None:
                    ledger.wait(group_id, records)
                else:
                    ledger.handle(group_id)
                    yield group_id, group

    def held_out(self) -> list[Rollout]:
        """Return the held-out rollouts that ended and were not returned yet."""
        self._look()
        ledger, ended = self._held_out, []
        for record in self._store.records(list(ledger.changed)):
            if has_ended(record) and is_held_out(record):
                ended.append(record)
            else:
                ledger.wait(record.session_id, [record])
        group = self._read(ended) if ended else None
        for record in ended if group else ():
            ledger.handle(record.session_id)
        for session_id in list(ledger.changed):  # those that were dropped
            ledger.wait(session_id, ())
        return [] if group is None else list(group.rollouts)

    def handle(self, group_id: str) -> None:
        """Take note that a group was handled by somebody else."""
        found = first_changes(self._store, [group_id], is_held_out=False)
        self._groups.handle(group_id, found.get(group_id, _NEVER))

    def give_back(self, group_ids: Collection[str]) -> None:
        """Take back that groups were yielded."""
        self._groups.give_back(group_ids)

    def was_there(self, group_id: str) -> bool:
        """Return whether a group that was just yielded had begun before this reader did."""
        return self._groups.first(group_id) <= self.began

    def incomplete(self) -> list[IncompleteGroup]:
        """Return the groups that `groups` waits for, the oldest first."""
        return find_incomplete(self._trainable(self._groups.waiting), self._group_size)

    def state_dict(self) -> dict[str, Any]:
        """Return what a later reader goes on from, as JSON values."""
        self._look()  # a watermark has nothing behind it that nobody took note of
        state = {"groups": self._groups.state_dict(), "held_out": self._held_out.state_dict()}
        at = max(self._groups.watermark, self._held_out.watermark)
        return {**state, "at": at, "epoch": epoch_of(self._store, at)}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on from a state, before anything was yielded; return whether its store is this one.

        It is not where the store was taken from an older copy, or lost its database: what is told
        by name is handled then, and nothing else.
        """
        is_same = epoch_of(self._store, int(state["at"])) == str(state["epoch"])
        for name, ledger in (("groups", self._groups), ("held_out", self._held_out)):
            told = state[name] if is_same else {**state[name], "watermark": 0, "waiting": []}
            self._load(ledger, told)
        self._after = min(self._groups.watermark, self._held_out.watermark)
        return is_same

    def load_names(self, groups: Collection[str], held_out: Collection[str]) -> None:
        """Go on from all that was handled, by name."""
        for ledger, names in ((self._groups, groups), (self._held_out, held_out)):
            self._load(ledger, {"watermark": 0, "waiting": [], "handled": names})

    def _load(self, ledger: Ledger, state: Mapping[str, Any]) -> None:
        is_held_out = ledger is self._held_out
        ledger.load(state, lambda names: first_changes(self._store, names, is_held_out=is_held_out))

    def _look(self) -> None:
        """Take note of what changed since the last look."""
        changes = read_changes(self._store, self._after)
        for ledger, found in ((self._groups, changes.groups), (self._held_out, changes.held_out)):
            for name, first in found:
                ledger.note(name, first)
            ledger.note_due()
        self._after = changes.last

    def _trainable(self, group_ids: Collection[str]) -> dict[str, list[SessionRecord]]:
        """Return the sessions of groups that are not held out, of groups that have any."""
        groups = read_groups(self._store, group_ids).items()
        left = {name: [r for r in records if not is_held_out(r)] for name, records in groups}
        return {name: records for name, records in left.items() if records}

    def _read(self, records: Iterable[SessionRecord]) -> RolloutGroup | None:
        """Return sessions as rollouts; None when one was dropped since it was looked at."""
        try:
            stored = self._store.stored_many([record.session_id for record in records])
        except UnknownNameError:
            return None
        return RolloutGroup(rollouts=list(map(as_rollout, stored)))
