"""Writes rollouts of the agent loop into a store: a session each, a node for every turn.

    with RolloutStore.open("rollouts") as store:
        record_rollout(store, await katgym.run_rollout(env, policy), group_id="task-7")

`as_rollout` gives them back as they were. What the policy sampled goes into nodes, bit for bit;
what has no column goes into the metadata (`recorded_details.py`).

Not here: playing and recording many (`katgym.evaluation.store_collection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from katgym.errors import UsageError
from katgym.messages import Message
from katgym.policies.base import TokenRecord
from katgym.rollout import Rollout, Turn
from katgym.rollout_store.recorded_details import (
    GENERAL_KEYS,
    RESERVED,
    KeptComponent,
    KeptReward,
    KeptToolResult,
    KeptTurn,
    RecordedDetails,
    content_of,
    replies,
)
from katgym.rollout_store.records import (
    Node,
    NodeText,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.store import RolloutStore
from katgym.scheduler import ToolResult

ROUTE = "katgym/agent-loop"
"""The `route` of recorded nodes; a gateway's name its API."""
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

    Raises `UsageError` for a rollout that cannot be kept: turns that do not line up with its
    messages, tokens that do not hold together, values that are not JSON.
    """
    return bool(record_rollouts(store, [rollout], group_id=group_id, metadata=metadata))


def record_rollouts(
    store: RolloutStore,
    rollouts: Iterable[Rollout],
    *,
    group_id: str | Callable[[Rollout], str] = "",
    metadata: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write many rollouts in one transaction, and return the ids of the sessions that are new.

    group_id: of all of them, or a function that tells each one's. See `record_rollout`.
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
        ]
    )


def as_session(
    rollout: Rollout, *, group_id: str, metadata: Mapping[str, Any], ended_s: float
) -> StoredSession:
    """Return a rollout as a session that ended at Unix time `ended_s`."""
    _check(rollout, metadata)
    session_id = rollout.episode_id
    if rollout.seat not in _ONLY_SEATS:
        session_id = f"{session_id}-{rollout.seat}"
    began_s = ended_s - rollout.wall_s
    record = SessionRecord(
        session_id=session_id,
        group_id=group_id,
        metadata={**_general(rollout), **metadata, RESERVED: _details(rollout).to_json()},
        created_s=began_s,
        ended_s=ended_s,
        status=SessionStatus.FINISHED if rollout.reward.is_valid else SessionStatus.FAILED,
        reward=rollout.reward.value,
        reward_components={name: c.score for name, c in rollout.reward.components.items()},
    )
    turns = range(len(rollout.turns))
    return StoredSession(
        record=record,
        nodes=[_node(rollout, index, session_id, began_s) for index in turns],
        texts=[_text(rollout, index) for index in turns],
    )


def _check(rollout: Rollout, metadata: Mapping[str, Any]) -> None:
    for key in metadata:
        if key == RESERVED or key in GENERAL_KEYS:
            raise UsageError(
                f"metadata has the key {key!r}, which the rollout itself decides; the others are"
                " free"
            )
    before = -1
    for index, turn in enumerate(rollout.turns):
        place = turn.num_messages
        found = rollout.messages[place : place + 1] if place > before else ()
        if not found or found[0]["role"] != "assistant":
            raise UsageError(
                f"turn {index} of rollout {rollout.episode_id!r} saw {place} messages, so the next"
                " one is its answer, after that of the turn before; there is none among the"
                f" {len(rollout.messages)} messages"
            )
        before = place


def _general(rollout: Rollout) -> dict[str, Any]:
    """Return the metadata that any session may have."""
    found = {
        "env_id": rollout.env_id,
        "env_kwargs": dict(rollout.env_kwargs),
        "plugin_version": rollout.plugin_version,
        "task_id": rollout.task_id,
        "task_sha256": rollout.task_sha256,
        "split": rollout.split,
        "seed": rollout.seed,
        "attempt": rollout.attempt,
        "seat": rollout.seat,
    }
    if rollout.failure_kind is not None:
        found["failure_kind"] = str(rollout.failure_kind)
    if rollout.reason:
        found["reason"] = rollout.reason
    return found


def _details(rollout: Rollout) -> RecordedDetails:
    reward = rollout.reward
    last = rollout.turns[-1].num_messages if rollout.turns else -1
    seen = [turn.num_messages for turn in rollout.turns]
    return RecordedDetails(
        episode_id=rollout.episode_id,
        policy=rollout.policy,
        status=rollout.status,
        sampling=rollout.sampling,
        sampling_seed=rollout.sampling_seed,
        wall_s=rollout.wall_s,
        num_retries=rollout.num_retries,
        reward=KeptReward(
            is_valid=reward.is_valid,
            failure_kind=reward.failure_kind,
            reason=reward.reason,
            components={
                name: KeptComponent(weight=c.weight, is_gate=c.is_gate)
                for name, c in reward.components.items()
            },
        ),
        turns=[
            _kept_turn(turn, reply)
            for turn, reply in zip(rollout.turns, replies(rollout.messages, seen), strict=True)
        ],
        messages=[dict(message) for message in rollout.messages[last + 1 :]],
        artifacts=dict(rollout.artifacts),
    )


def _kept_turn(turn: Turn, reply: Sequence[Message]) -> KeptTurn:
    return KeptTurn(
        has_tokens=turn.tokens is not None,
        num_prompt_tokens=turn.num_prompt_tokens,
        num_completion_tokens=turn.num_completion_tokens,
        started_s=turn.started_s,
        completed_s=turn.completed_s,
        ended_s=turn.ended_s,
        tool_results=[_kept_result(result, reply) for result in turn.tool_results],
    )


def _kept_result(result: ToolResult, reply: Sequence[Message]) -> KeptToolResult:
    is_there = content_of(result.call_id, reply) == result.content
    return KeptToolResult(**{**asdict(result), "content": None if is_there else result.content})


def _node(rollout: Rollout, index: int, session_id: str, began_s: float) -> Node:
    turn = rollout.turns[index]
    record = turn.tokens or TokenRecord(parent=_parent(rollout, index))
    sampling = asdict(rollout.sampling)
    if rollout.sampling_seed is not None:
        sampling["seed"] = rollout.sampling_seed
    return Node(
        index=index,
        call_id=f"{session_id}-{index}",
        parent=record.parent,
        num_shared=record.num_shared,
        prompt_ids=record.prompt_ids,
        completion_ids=record.completion_ids,
        policy_logprobs=record.policy_logprobs,
        versions=record.version_spans,
        branch=record.branch,
        finish_reason=turn.finish_reason,
        model=rollout.policy,
        route=ROUTE,
        sampling=sampling,
        received_s=began_s + turn.started_s,
        sent_s=began_s + turn.started_s,
        answered_s=began_s + turn.completed_s,
    )


def _text(rollout: Rollout, index: int) -> NodeText:
    """A turn saw the first messages of its rollout, whichever turn its tokens go on from."""
    place, parent = rollout.turns[index].num_messages, _parent(rollout, index)
    num_shared = 0 if parent is None else rollout.turns[parent].num_messages + 1
    return NodeText(
        num_shared_messages=num_shared,
        messages=rollout.messages[num_shared:place],
        answer=rollout.messages[place],
        tools=rollout.tools,
    )


def _parent(rollout: Rollout, index: int) -> int | None:
    """Return the turn before in the tree; without tokens it is the one before in time."""
    tokens = rollout.turns[index].tokens
    if tokens is not None:
        return tokens.parent
    return index - 1 if index else None
