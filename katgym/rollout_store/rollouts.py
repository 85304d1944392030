"""Rollouts in a store: the agent loop's are written whole, a gateway's grow call by call.

    with RolloutStore.open("rollouts") as store:
        record_rollout(store, await katgym.run_rollout(env, policy), group_id="task-7")

Not here: playing and recording many (`katgym.evaluation`); rows of other libraries (`exporters/`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from katgym.environment.failure import FailureKind, RolloutStatus, failure_kind
from katgym.environment.reward import Reward
from katgym.environment.scheduler import ToolResult
from katgym.errors import UsageError
from katgym.play.rollout import Rollout, RolloutGroup, Turn, parent_of
from katgym.rollout_store.records import (
    FACTS,
    EpisodeFacts,
    SessionRecord,
    SessionStatus,
    StoredSession,
    has_valid_reward,
)
from katgym.rollout_store.store import RolloutStore

_ONLY_SEATS = ("player", "agent")
"""What the one seat of an episode is called, here and in rollouts of a gateway."""


def record_rollout(
    store: RolloutStore,
    rollout: Rollout,
    *,
    group_id: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> bool:
    """Write a rollout as a session, and return whether it was not there.

    group_id: siblings of one task share it. metadata: more to find it by, plain JSON; keys that say
    what the rollout itself says are refused. The session's id is the rollout's episode id, with the
    seat where an episode has several; a session that has this id is left as it is.

    Raises `UsageError` for a rollout that cannot be kept: turns or tokens that do not hold
    together, values that are not JSON.
    """
    return bool(record_rollouts(store, [rollout], group_id=group_id, metadata=metadata))


def record_rollouts(
    store: RolloutStore,
    rollouts: Iterable[Rollout],
    *,
    group_id: str | Callable[[Rollout], str] = "",
    metadata: Mapping[str, Any] | None = None,
    is_durable: bool = False,
) -> list[str]:
    """Write many rollouts in one transaction, and return the ids of the sessions that are new.

    group_id: of all of them, or a function that returns each one's. is_durable: they are on the
    disk when this returns. See `record_rollout`.
    """
    now_s = time.time()
    return store.add_sessions(
        [
            as_session(
                rollout,
                group_id=group_id if isinstance(group_id, str) else group_id(rollout),
                metadata=metadata or {},
                ended_s=now_s,
            )
            for rollout in rollouts
        ],
        is_durable=is_durable,
    )


def as_session(
    rollout: Rollout, *, group_id: str, metadata: Mapping[str, Any], ended_s: float
) -> StoredSession:
    """Return a rollout as a session that ended at Unix time `ended_s`."""
    for key in metadata:
        if key in Rollout.__slots__:
            raise UsageError(
                f"metadata has the key {key!r}, which the rollout itself decides; the others are"
                " free"
            )
    session_id = rollout.episode_id
    if rollout.seat not in _ONLY_SEATS:
        session_id = f"{session_id}-{rollout.seat}"
    record = SessionRecord(
        session_id=session_id,
        group_id=group_id,
        metadata=metadata,
        created_s=ended_s - rollout.wall_s,
        ended_s=ended_s,
        status=SessionStatus.FINISHED if rollout.reward.is_valid else SessionStatus.FAILED,
        reward=rollout.reward,
        rollout=replace(rollout, turns=()),
    )
    return StoredSession(record=record, turns=rollout.turns)


def rollouts(store: RolloutStore, session_id: str) -> Rollout:
    """Return a session as a rollout; see `as_rollout`."""
    return as_rollout(store.stored(session_id))


def rollout_groups(
    store: RolloutStore, statuses: Sequence[SessionStatus] | None = None
) -> list[RolloutGroup]:
    """Return the sessions as rollouts, together by `group_id`; one without is a group of its own.

    statuses: only sessions in these; None takes all.
    """
    groups: dict[tuple[str, str], list[Rollout]] = {}
    for stored in store.each(statuses):
        record = stored.record
        key = (record.group_id, "" if record.group_id else record.session_id)
        groups.setdefault(key, []).append(as_rollout(stored))
    return [RolloutGroup(rollouts=found) for found in groups.values()]


def as_rollout(stored: StoredSession) -> Rollout:
    """Return a session as a rollout: one that `record_rollout` wrote as it was.

    Of a gateway's, turns are its calls in their order, all branches and all answers of one call
    among them, with the tool results that later prompts tell. The reward is valid for a finished
    session that has a valid one.
    """
    rollout = rollout_of(stored.record)
    if stored.record.rollout is not None:
        return replace(rollout, turns=stored.turns)
    last_s = max((turn.completed_s for turn in stored.turns), default=0.0)
    return replace(
        rollout,
        turns=_with_results(stored.turns),
        policy=", ".join(dict.fromkeys(turn.model for turn in stored.turns)),
        wall_s=rollout.wall_s or max(0.0, last_s),
    )


def rollout_of(record: SessionRecord) -> Rollout:
    """Return what is known of a session's rollout without its turns.

    A gateway's has what `EpisodeFacts` names from the metadata, no `sampling` (its turns have
    theirs), and the models that its calls named for a policy, once its turns are there. Sessions
    without a `task_id` are attempts at the task that their group, or else they themselves, are.
    """
    if record.rollout is not None:
        was_valid = record.rollout.status not in (RolloutStatus.FAILED, RolloutStatus.CANCELLED)
        is_invalid = record.reward is not None and not record.reward.is_valid
        if has_valid_reward(record):
            is_as_recorded = was_valid
        else:
            is_as_recorded = is_invalid and record.status is SessionStatus.FAILED
        if is_as_recorded:
            return record.rollout
        # Its owner judged it otherwise since then.
        status, reward = _outcome(record, None, "")
        return replace(
            record.rollout, status=status, reward=reward, failure_kind=reward.failure_kind,
            reason=reward.reason,
        )  # fmt: skip
    facts, meta = EpisodeFacts.of(record.session_id, record.metadata), dict(record.metadata)
    kind = failure_kind(facts.failure_kind) if facts.failure_kind else None
    status, reward = _outcome(record, kind, facts.reason)
    ended_s = record.created_s if record.ended_s is None else record.ended_s
    stated = {name: getattr(facts, name) for name in FACTS}
    stated |= {
        "task_id": facts.task_id or record.group_id or record.session_id,
        "failure_kind": reward.failure_kind,
        "reason": reward.reason,
    }
    return Rollout(
        **stated,
        policy="",
        episode_id=record.session_id,
        status=status,
        reward=reward,
        wall_s=max(0.0, ended_s - record.created_s),
        artifacts={"metadata": meta} if meta else {},
        final_messages=[],
    )


def _outcome(
    record: SessionRecord, kind: FailureKind | None, reason: str
) -> tuple[RolloutStatus, Reward]:
    """Return how a session ended, and its reward; kind, reason: what is said of a failure."""
    if record.reward is not None and has_valid_reward(record):
        return RolloutStatus.TERMINATED, record.reward
    match record.status:
        case SessionStatus.FINISHED:
            status, kind = RolloutStatus.FAILED, FailureKind.VERIFIER_UNAVAILABLE
            reason = reason or "the session finished without a reward"
        case SessionStatus.FAILED:
            status, kind = RolloutStatus.FAILED, kind or FailureKind.INFRASTRUCTURE_ERROR
            reason = reason or "its owner said that the session failed"
        case SessionStatus.EXPIRED:
            status, kind = RolloutStatus.CANCELLED, FailureKind.CANCELLED
            reason = reason or "the session's deadline passed"
        case SessionStatus.OPEN:
            status, kind = RolloutStatus.CANCELLED, FailureKind.CANCELLED
            reason = reason or "the session is still open"
    return status, Reward.invalid(kind, reason)


def _with_results(turns: Sequence[Turn]) -> list[Turn]:
    """Return a gateway's turns with what the turns that go on from them tell.

    That is when the agent was done with an answer, and its tools' results, each as the first later
    prompt has it.
    """
    children: dict[int, list[Turn]] = {}
    for index, turn in enumerate(turns):
        if (parent := parent_of(turns, index)) is not None:
            children.setdefault(parent, []).append(turn)
    found = []
    for index, turn in enumerate(turns):
        later = children.get(index, [])
        replies = [m for child in later for m in child.messages if m["role"] == "tool"]
        results = []
        for call in turn.answer.get("tool_calls", ()) if turn.answer else ():
            texts = [m["content"] for m in replies if m.get("tool_call_id") == call["id"]]
            if texts:
                name = call["function"]["name"]
                results.append(ToolResult(call_id=call["id"], name=name, content=texts[0]))
        next_s = [c.started_s for c in later if c.started_s >= turn.completed_s]
        ended_s = min(next_s, default=turn.completed_s)
        found.append(msgspec.structs.replace(turn, tool_results=results, ended_s=ended_s))
    return found
