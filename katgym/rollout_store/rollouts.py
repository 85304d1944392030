"""A stored session as a `katgym.Rollout`: what the trainer and everything else of katgym takes.

Not here: rows of other libraries (`exporters/`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from katgym.messages import Message
from katgym.policies.base import Sampling
from katgym.rollout import Rollout, RolloutGroup, Turn
from katgym.rollout_store.recorded_details import details_of
from katgym.rollout_store.recorded_rollouts import recorded_rollout
from katgym.rollout_store.records import NodeText, SessionStatus, StoredSession
from katgym.rollout_store.session_outcome import outcome
from katgym.rollout_store.store import RolloutStore
from katgym.scheduler import ToolResult


def rollouts(store: RolloutStore, session_id: str) -> Rollout:
    """Return a session as a rollout, a turn for each of its nodes; see `as_rollout`."""
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

    Of a gateway's, turns are its nodes in their order, all branches and all answers of one call
    among them. The reward is valid for a finished session that has one. `messages` holds what each
    call adds, followed by its answer: on a branch the model saw other messages before that;
    `conversation` has them. Env, task and the like come from the session's metadata where they are
    there (`env_id`, `task_id`, ...).
    """
    record, meta = stored.record, stored.record.metadata
    if (details := details_of(record)) is not None:
        return recorded_rollout(stored, details)
    messages: list[Message] = []
    places: dict[int, int] = {}  # index of a node -> its turn
    children: dict[int, list[int]] = {}  # index of a node -> the turns that continue it
    num_before = []
    for turn, (node, text) in enumerate(zip(stored.nodes, stored.texts, strict=True)):
        places[node.index] = turn
        if node.parent is not None:
            children.setdefault(node.parent, []).append(turn)
        messages += text.messages
        num_before.append(len(messages))
        messages.append(text.answer or {"role": "assistant", "content": ""})
    status, reward = outcome(record)
    first = stored.nodes[0] if stored.nodes else None
    return Rollout(
        env_id=str(meta.get("env_id", "")),
        plugin_version=str(meta.get("plugin_version", "")),
        task_sha256=str(meta.get("task_sha256", "")),
        split=str(meta.get("split", "")),
        seat=str(meta.get("seat", "agent")),
        policy=first.model if first else "",
        task_id=str(meta.get("task_id") or record.group_id or record.session_id),
        seed=_integer(meta.get("seed")),
        attempt=_integer(meta.get("attempt")) or 0,
        episode_id=record.session_id,
        status=status,
        reward=reward,
        failure_kind=reward.failure_kind,
        reason=reward.reason,
        messages=messages,
        turns=[
            _turn(stored, turn, places, children.get(node.index, ()), num_before[turn])
            for turn, node in enumerate(stored.nodes)
        ],
        tools=next((text.tools for text in stored.texts if text.tools), ()),
        sampling=_sampling(first.sampling if first else {}),
        sampling_seed=_integer(first.sampling.get("seed")) if first else None,
        wall_s=_wall_s(stored),
        env_kwargs=meta["env_kwargs"] if isinstance(meta.get("env_kwargs"), Mapping) else {},
        artifacts={"metadata": dict(meta)} if meta else {},
    )


def conversation(stored: StoredSession, place: int) -> list[Message]:
    """Return the messages that node number `place` of a session answered, then its answer."""
    by_index = {node.index: number for number, node in enumerate(stored.nodes)}
    chain = [place]
    while (parent := stored.nodes[chain[-1]].parent) is not None:
        chain.append(by_index[parent])
    messages: list[Message] = []
    for number in reversed(chain):
        text = stored.texts[number]
        del messages[text.num_shared_messages :]
        messages += text.messages
        messages.append(text.answer or {"role": "assistant", "content": ""})
    return messages


def _turn(
    stored: StoredSession,
    turn: int,
    places: Mapping[int, int],
    children: Sequence[int],
    num_messages: int,
) -> Turn:
    node, began_s = stored.nodes[turn], stored.record.created_s
    next_s = [stored.nodes[child].received_s for child in children]
    return Turn(
        num_messages=num_messages,
        finish_reason=node.finish_reason,
        tokens=node.tokens(parent=None if node.parent is None else places[node.parent]),
        num_prompt_tokens=node.num_shared + len(node.prompt_ids),
        num_completion_tokens=len(node.completion_ids),
        tool_results=list(_tool_results(stored.texts[turn], [stored.texts[c] for c in children])),
        started_s=node.received_s - began_s,
        completed_s=node.answered_s - began_s,
        ended_s=min([s for s in next_s if s >= node.answered_s], default=node.answered_s) - began_s,
    )


def _tool_results(text: NodeText, later: Sequence[NodeText]) -> Iterator[ToolResult]:
    """Yield the results of a turn's calls, as the first later prompt that has them says."""
    for call in text.answer.get("tool_calls", ()) if text.answer else ():
        for message in (m for child in later for m in child.messages):
            if message["role"] == "tool" and message.get("tool_call_id") == call["id"]:
                yield ToolResult(
                    call_id=call["id"],
                    name=call["function"]["name"],
                    content=message["content"],
                )
                break


def _sampling(told: Mapping[str, Any]) -> Sampling:
    """Return the settings of a call that say something; the others are the defaults."""
    numbers = {
        name: value
        for name, value in told.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    default = Sampling()
    top_p, max_tokens = numbers.get("top_p", 1.0), int(numbers.get("max_tokens", 0))
    return Sampling(
        temperature=max(0.0, numbers.get("temperature", default.temperature)),
        top_p=top_p if 0 < top_p <= 1 else default.top_p,
        top_k=max(0, int(numbers.get("top_k", 0))),
        max_tokens=max_tokens if max_tokens >= 1 else default.max_tokens,
    )


def _wall_s(stored: StoredSession) -> float:
    """Return the seconds from a session's beginning to its end, or to its last answer."""
    last_s = max([node.answered_s for node in stored.nodes], default=0.0)
    return max(0.0, (stored.record.ended_s or last_s) - stored.record.created_s)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
