"""The groups of a rollout store: heads of all, from sessions' records; rollouts of those shown.

Not here: the store (`katgym.rollout_store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from katgym.errors import UnknownNameError
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
    StoredSession,
    as_rollout,
)
from katgym.rollout_store.groups import chosen_attempts
from katgym.rollout_store.records import reward_value
from katgym.rollout_store.rollouts import rollout_of
from katgym.run_view.json_values import finite, whole
from katgym.run_view.run_view import GroupView, RolloutView
from katgym.run_view.selection import GroupHead, Selection, choose


def stored_groups(folder: Path, selection: Selection) -> tuple[list[GroupView], int, list[str]]:
    """Return the chosen groups, the number of all, and sentences about what is missing."""
    with RolloutStore.open(folder, create=False) as store:
        by_group = _by_group(store.sessions())
        heads = [_head(group_id, records) for group_id, records in by_group.items()]
        chosen = choose(heads, selection)
        wanted = [r.session_id for head in chosen for r in by_group[head.group_id]]
        stored = _read(store, wanted)
        groups = []
        for head in chosen:
            views = _views(by_group[head.group_id], stored)
            groups.append(
                GroupView(
                    group_id=head.group_id, env_id=head.env_id, task_id=head.task_id,
                    step=head.step, is_held_out=head.is_held_out, rollouts=views,
                )
            )  # fmt: skip
        num_left_out = store.num_left_out
    notes = []
    if num_open := sum(head.is_open for head in heads):
        notes.append(f"{num_open} of {len(heads)} groups have rollouts that are still open.")
    if num_left_out:
        notes.append(f"{num_left_out} shards of the rollout store cannot be read and are left out.")
    return groups, len(heads), notes


def session_records(folder: Path) -> list[SessionRecord]:
    """Return the records of all sessions of a store, without their tokens."""
    with RolloutStore.open(folder, create=False) as store:
        return store.sessions()


def step_of(record: SessionRecord) -> int | None:
    """Return the training step that a session was sampled for; None where none is known."""
    return whole(record.metadata.get("step"))


def is_held_out(record: SessionRecord) -> bool:
    """Return whether a session is of an evaluation, which nothing is trained on."""
    return record.metadata.get("is_held_out") is True


def _by_group(records: Sequence[SessionRecord]) -> dict[str, list[SessionRecord]]:
    """Return group id -> its sessions, the oldest group first; one without is its own group.

    An attempt that was played again is there once, as everywhere (`chosen_attempts`).
    """
    found: dict[str, list[SessionRecord]] = {}
    for record in sorted(records, key=lambda record: record.created_s):
        found.setdefault(record.group_id or record.session_id, []).append(record)
    for group_id, members in found.items():
        counted = {record.session_id for record in chosen_attempts(members)}
        found[group_id] = [
            record
            for record in members
            if record.session_id in counted or record.status is SessionStatus.OPEN
        ]
    return found


def _head(group_id: str, records: Sequence[SessionRecord]) -> GroupHead:
    values = [reward for record in records if (reward := reward_value(record)) is not None]
    first = rollout_of(records[0])
    return GroupHead(
        group_id=group_id,
        env_id=first.env_id,
        task_id=first.task_id,
        step=max((s for r in records if (s := step_of(r)) is not None), default=None),
        mean_reward=sum(values) / len(values) if values else None,
        num_invalid=len(records) - len(values),
        is_held_out=any(is_held_out(record) for record in records),
        is_open=any(record.status is SessionStatus.OPEN for record in records),
    )


def _read(store: RolloutStore, wanted: Sequence[str]) -> dict[str, StoredSession]:
    """Return the wanted sessions that are still there."""
    try:
        return dict(zip(wanted, store.stored_many(wanted), strict=True))
    except UnknownNameError:  # one was dropped since the records were read
        found = (s for s in store.each() if s.record.session_id in set(wanted))
        return {stored.record.session_id: stored for stored in found}


def _views(
    records: Sequence[SessionRecord], stored: Mapping[str, StoredSession]
) -> list[RolloutView]:
    views = [
        RolloutView(
            rollout=as_rollout(stored[record.session_id]),
            advantage=finite(record.metadata.get("advantage")),
        )
        for record in records
        if record.session_id in stored
    ]
    return sorted(views, key=lambda view: view.rollout.attempt)
