"""Groups of a store's rollouts, as learners read them.

Sessions of one `group_id` are rollouts of one task. An attempt that was played again, after a
failure or by two collectors at once, counts once: the first that has a valid reward, otherwise the
first that ended. A session that is still open long after its deadline counts as ended, without a
valid reward: whoever had to end it is gone. Held-out sessions are no group's.

Not here: one session (`rollouts.py`); making groups (`katgym.evaluation.store`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from katgym.errors import UsageError
from katgym.play.rollout import Rollout, RolloutGroup
from katgym.rollout_store.records import ENDED, SessionRecord, has_valid_reward
from katgym.rollout_store.rollouts import as_rollout, rollout_of
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import StoreReader

_READ_TOGETHER = 64
"""Sessions: a shard is looked through for them at once."""

GROUP_SIZE = "group_size"
"""Key of the metadata with the number of rollouts that a session's group is to have."""
IS_HELD_OUT = "is_held_out"
"""Key of the metadata that is true for what is played to be measured and never trained on."""
IS_REFUSED = "is_refused"
"""Key of the metadata that is true for what taught nothing, so that others were played for it."""
GRADING_S = 300.0
"""Seconds after a session's deadline in which its reward may still come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteGroup:
    """A group of which rollouts are missing.

    Example:
        IncompleteGroup(group_id="France", num_ended=3, group_size=4, open_sessions=["France-2"],
                        began_s=1.7e9)
    """

    group_id: str
    num_ended: int
    group_size: int | None
    """None: neither its sessions nor the caller say."""
    open_sessions: Sequence[str]
    """Ids of those that have not ended, the oldest first."""
    began_s: float
    """Unix time."""


def stored_groups(
    store: RolloutStore,
    *,
    min_version: int | None = None,
    group_size: int | None = None,
    without: Collection[str] = (),
) -> Iterator[tuple[str, RolloutGroup]]:
    """Yield the complete groups with their ids; first the one that has been complete for longest.

    A group is complete when as many of its rollouts have ended, however, as `metadata` of its
    sessions says (`group_size`, which `katgym rollouts collect` writes). Of a group that does not
    say, `group_size` is taken; without one it is left out, like sessions without a group.

    min_version: leave out groups with a token that older weights sampled; what is not known is 0.
    without: ids of groups to leave out, such as those that were trained on.

    A group is read when it is asked for; those that become complete meanwhile are not seen.
    """
    if group_size is not None and group_size < 1:
        raise UsageError(f"group_size is >= 1 or None, got {group_size!r}")
    complete = []  # when, group id, one session for each attempt
    for group_id, records in _trainable(store, without).items():
        if (members := complete_attempts(records, group_size)) is not None:
            ends = sorted(_ended(record) for record in members)
            complete.append(
                (ends[(_stated_size(records) or group_size or 1) - 1], group_id, members)
            )
    for _, group_id, members in sorted(complete, key=lambda group: group[:2]):
        stored = store.stored_many([member.session_id for member in members])
        group = RolloutGroup(rollouts=list(map(as_rollout, stored)))
        if min_version is None or _oldest_version(group) >= min_version:
            yield group_id, group


def incomplete_groups(
    store: RolloutStore, *, group_size: int | None = None, without: Collection[str] = ()
) -> list[IncompleteGroup]:
    """Return the groups that `stored_groups` waits for, the oldest first."""
    return find_incomplete(_trainable(store, without), group_size)


def find_incomplete(
    groups: Mapping[str, Sequence[SessionRecord]], group_size: int | None
) -> list[IncompleteGroup]:
    """Return those of some groups, with their sessions, that are not complete, the oldest first."""
    found = []
    for group_id, records in groups.items():
        size, num_ended = _stated_size(records) or group_size, len(chosen_attempts(records))
        if size is None or num_ended < size:
            is_open = [record for record in records if not has_ended(record)]
            is_open.sort(key=lambda record: (record.created_s, record.session_id))
            found.append(
                IncompleteGroup(
                    group_id=group_id,
                    num_ended=num_ended,
                    group_size=size,
                    open_sessions=[record.session_id for record in is_open],
                    began_s=min(record.created_s for record in records),
                )
            )
    return sorted(found, key=lambda group: (group.began_s, group.group_id))


def held_out_rollouts(
    store: RolloutStore, *, without: Collection[str] = ()
) -> list[tuple[str, Rollout]]:
    """Return the held-out rollouts that have ended with their session ids, the oldest first.

    without: ids of sessions to leave out, such as those that were looked at.
    """
    ids = [
        record.session_id
        for record in store.sessions()
        if is_held_out(record) and has_ended(record) and record.session_id not in without
    ]
    return [(stored.record.session_id, as_rollout(stored)) for stored in store.stored_many(ids)]


def is_held_out(record: SessionRecord) -> bool:
    """Return whether a session is only measured."""
    return record.metadata.get(IS_HELD_OUT) is True


def is_refused(record: SessionRecord) -> bool:
    """Return whether a session's group taught nothing, so that others were played for it."""
    return record.metadata.get(IS_REFUSED) is True


def stored_rollouts(store: RolloutStore | StoreReader) -> Iterator[Rollout]:
    """Yield every rollout that has ended, those of a group together in order of their attempts.

    Groups come in the order of their ids, whenever they were played and whether they are sealed or
    not: what is trained on them is the same each time.
    """
    groups = by_group(record for record in store.sessions() if record.status in ENDED)
    in_order = (sorted(members, key=_began_of_attempt) for _, members in sorted(groups.items()))
    yield from _read(store, in_order)


def stored_attempts(store: RolloutStore) -> Iterator[Rollout]:
    """Yield the rollouts that have ended, of every attempt of a group one, as groups count them."""
    yield from _read(store, map(chosen_attempts, by_group(store.sessions()).values()))


def by_group(records: Iterable[SessionRecord]) -> dict[str, list[SessionRecord]]:
    """Return group id -> its sessions; one without a group is a group of its own."""
    groups: dict[str, list[SessionRecord]] = {}
    for record in records:
        groups.setdefault(record.group_id or record.session_id, []).append(record)
    return groups


def _read(
    store: RolloutStore | StoreReader, groups: Iterable[list[SessionRecord]]
) -> Iterator[Rollout]:
    ids = [record.session_id for members in groups for record in members]
    for start in range(0, len(ids), _READ_TOGETHER):
        yield from map(as_rollout, store.stored_many(ids[start : start + _READ_TOGETHER]))


def chosen_attempts(records: Iterable[SessionRecord]) -> list[SessionRecord]:
    """Return the sessions of one group that have ended, one for each attempt, in their order."""
    by_attempt: dict[Hashable, SessionRecord] = {}
    preferred = sorted(  # those with a valid reward, then the first that ended
        filter(has_ended, records),
        key=lambda record: (not has_valid_reward(record), _ended(record), record.session_id),
    )
    for record in preferred:
        # Sessions of a gateway are one attempt each.
        whole = record.rollout
        attempt = record.session_id if whole is None else (whole.attempt, whole.seat)
        by_attempt.setdefault(attempt, record)
    return sorted(by_attempt.values(), key=_began_of_attempt)


def _trainable(store: RolloutStore, without: Collection[str]) -> dict[str, list[SessionRecord]]:
    sessions = store.sessions(without_groups={"", *without})
    return by_group(record for record in sessions if not is_held_out(record))


def complete_attempts(
    records: Sequence[SessionRecord], group_size: int | None
) -> list[SessionRecord] | None:
    """Return the sessions of a group that count, None where some are missing.

    group_size: of a group whose sessions do not say.
    """
    size, members = _stated_size(records) or group_size, chosen_attempts(records)
    return members if size is not None and len(members) >= size else None


def has_ended(record: SessionRecord) -> bool:
    """Return whether a session ended, or should have long ago."""
    return record.status in ENDED or time.time() > overdue_s(record)


def overdue_s(record: SessionRecord) -> float:
    """Return when an open session counts as ended, in Unix time; infinity for never."""
    return float("inf") if record.deadline_s is None else record.deadline_s + GRADING_S


def _stated_size(records: Iterable[SessionRecord]) -> int | None:
    """Return the largest size that a group's sessions state; None if they state none."""
    sizes = [record.metadata.get(GROUP_SIZE) for record in records]
    return max([size for size in sizes if type(size) is int and size >= 1], default=None)


def _ended(record: SessionRecord) -> float:
    ends = (record.ended_s, record.deadline_s, record.created_s)
    return next(end for end in ends if end is not None)


def _began_of_attempt(record: SessionRecord) -> tuple[int, float, str]:
    return rollout_of(record).attempt, record.created_s, record.session_id


def _oldest_version(group: RolloutGroup) -> float:
    """Return the oldest version behind a group's rewards; infinity if no token of it counts."""
    return min(
        (
            0 if turn.tokens is None else turn.tokens.policy_version
            for rollout in group.rollouts
            if rollout.reward.is_valid
            for turn in rollout.turns
        ),
        default=float("inf"),
    )
