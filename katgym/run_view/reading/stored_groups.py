"""The groups of a rollout store: the heads of all, and those that were chosen with their turns.

Not here: the files around a store (`source.py`), which groups are chosen (`selection.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from katgym.errors import UnknownNameError
from katgym.play.rollout import Rollout
from katgym.rollout_store import (
    SessionRecord,
    SessionStatus,
    StoredSession,
    StoreReader,
    as_rollout,
)
from katgym.rollout_store.groups import by_group, chosen_attempts, is_held_out, is_refused
from katgym.rollout_store.records import reward_value
from katgym.rollout_store.rollouts import rollout_of
from katgym.run_view.reading.metric_files import finite
from katgym.run_view.reading.panels import step_of
from katgym.run_view.reading.selection import Selection, choose, newest_first
from katgym.run_view.run_view import GroupHead, GroupView, RolloutHead, RolloutView, known_mean

_READ_TOGETHER = 512
"""Sessions whose turns are in memory at once, besides those of chosen groups."""

KnownHeads = dict[str, tuple[int, RolloutHead]]
"""Session id -> its attempt and head, of sessions that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroups:
    """What the pages take from a store; nothing of one that is not there yet."""

    shown: Sequence[GroupView] = ()
    heads: Sequence[GroupHead] = ()
    """Of all groups, the newest step first."""
    records: Sequence[SessionRecord] = ()
    """Of all sessions, without their turns."""
    notes: Sequence[str] = ()


def read_groups(
    folder: Path, selection: Selection | None, known: KnownHeads | None = None
) -> StoredGroups:
    """Read all heads, and the turns of chosen groups; a `selection` of None chooses none.

    known: heads of an earlier call, which are not read again; those that are new are added.
    """
    if not StoreReader.is_at(folder):
        return StoredGroups()
    known = {} if known is None else known
    notes = []
    with StoreReader.open(folder) as store:
        records = store.sessions()
        groups = _counted(records)
        heads = [_head(group_id, members) for group_id, members in groups.items()]
        chosen = [] if selection is None else choose(heads, selection)
        views = _read_sessions(store, groups, {head.group_id for head in chosen}, known)
        if num := store.num_left_out:
            notes.append(f"{num} shards of the rollout store cannot be read and are left out.")
    if num_open := sum(head.is_open for head in heads):
        notes.append(f"{num_open} of {len(heads)} groups have rollouts that are still open.")
    whole = [
        replace(head, rollouts=_in_order(groups[head.group_id], known))
        for head in newest_first(heads)
    ]
    for record in records:
        if record.status is SessionStatus.OPEN:
            known.pop(record.session_id, None)
    shown = [_view(head, views[head.group_id]) for head in chosen]
    return StoredGroups(shown=shown, heads=whole, records=records, notes=notes)


def read_group(folder: Path, head: GroupHead) -> GroupView:
    """Read one group with its turns; without rollouts where it is gone."""
    with StoreReader.open(folder) as store:
        members = _counted(store.sessions()).get(head.group_id, [])
        stored = _read(store, [record.session_id for record in members])
    return _view(head, [_rollout_view(r, stored) for r in members if r.session_id in stored])


def _counted(records: Sequence[SessionRecord]) -> dict[str, list[SessionRecord]]:
    """Return group id -> its sessions, the oldest group first.

    An attempt that was played again is there once, as everywhere (`chosen_attempts`).
    """
    found = by_group(sorted(records, key=lambda record: record.created_s))
    for group_id, members in found.items():
        counted = {record.session_id for record in chosen_attempts(members)}
        found[group_id] = [
            record
            for record in members
            if record.session_id in counted or record.status is SessionStatus.OPEN
        ]
    return found


def _head(group_id: str, records: Sequence[SessionRecord]) -> GroupHead:
    rewards = [reward_value(record) for record in records]
    first = rollout_of(records[0])
    return GroupHead(
        group_id=group_id,
        env_id=first.env_id,
        task_id=first.task_id,
        step=max((s for r in records if (s := step_of(r)) is not None), default=None),
        mean_reward=known_mean(rewards),
        num_invalid=rewards.count(None),
        is_held_out=any(is_held_out(record) for record in records),
        is_refused=is_refused(records[0]),
        is_open=any(record.status is SessionStatus.OPEN for record in records),
    )


def _read_sessions(
    store: StoreReader,
    groups: Mapping[str, Sequence[SessionRecord]],
    chosen: Collection[str],
    known: KnownHeads,
) -> dict[str, list[RolloutView]]:
    """Add the heads that are not known, and return the rollouts of chosen groups."""
    views: dict[str, list[RolloutView]] = {group_id: [] for group_id in chosen}
    wanted = [
        (group_id, record)
        for group_id, members in groups.items()
        for record in members
        if group_id in views or record.session_id not in known
    ]
    for begin in range(0, len(wanted), _READ_TOGETHER):
        some = wanted[begin : begin + _READ_TOGETHER]
        stored = _read(store, [record.session_id for _, record in some])
        for group_id, record in some:
            if record.session_id not in stored:
                continue
            view = _rollout_view(record, stored)
            known[record.session_id] = view.rollout.attempt, _rollout_head(record, view.rollout)
            if group_id in views:
                views[group_id].append(view)
    return views


def _read(store: StoreReader, wanted: Sequence[str]) -> dict[str, StoredSession]:
    """Return the wanted sessions that are still there."""
    try:
        return dict(zip(wanted, store.stored_many(wanted), strict=True))
    except UnknownNameError:  # one was dropped since the records were read
        found = (s for s in store.each() if s.record.session_id in set(wanted))
        return {stored.record.session_id: stored for stored in found}


def _rollout_view(record: SessionRecord, stored: Mapping[str, StoredSession]) -> RolloutView:
    return RolloutView(
        rollout=as_rollout(stored[record.session_id]),
        advantage=finite(record.metadata.get("advantage")),
    )


def _rollout_head(record: SessionRecord, rollout: Rollout) -> RolloutHead:
    is_open = record.status is SessionStatus.OPEN
    return RolloutHead(
        reward=rollout.reward.value,
        is_success=rollout.is_success,
        status="open" if is_open else str(rollout.status),
        failure="" if rollout.failure_kind is None or is_open else str(rollout.failure_kind),
        num_turns=rollout.num_turns,
        num_calls=rollout.num_tool_calls,
        num_parallel=rollout.num_parallel_calls,
        num_errors=sum(result.error is not None for result in rollout.tool_results),
        num_tokens=rollout.num_completion_tokens,
        wall_s=rollout.wall_s,
        has_tokens=rollout.has_tokens,
    )


def _in_order(records: Sequence[SessionRecord], known: KnownHeads) -> list[RolloutHead]:
    """Return the heads of a group's rollouts, in the order of `_view`."""
    found = [known[r.session_id] for r in records if r.session_id in known]
    return [head for _, head in sorted(found, key=lambda one: one[0])]


def _view(head: GroupHead, views: Sequence[RolloutView]) -> GroupView:
    return GroupView(
        group_id=head.group_id, env_id=head.env_id, task_id=head.task_id, step=head.step,
        is_held_out=head.is_held_out, is_refused=head.is_refused,
        rollouts=sorted(views, key=lambda view: view.rollout.attempt),
    )  # fmt: skip
