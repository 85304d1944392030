"""A session that was recorded from the agent loop, as the rollout it was.

Not here: sessions of a gateway (`rollouts.py`); writing them (`recording.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from katgym.errors import UsageError
from katgym.failure import FailureKind
from katgym.messages import Message
from katgym.reward import Component, Reward
from katgym.rollout import Rollout, Turn
from katgym.rollout_store.recorded_details import KeptTurn, RecordedDetails, content_of, replies
from katgym.rollout_store.records import Node, SessionRecord, StoredSession
from katgym.rollout_store.session_outcome import has_valid_reward, outcome
from katgym.scheduler import ToolResult


def recorded_rollout(stored: StoredSession, details: RecordedDetails) -> Rollout:
    """Return the rollout that was recorded, with the reward that its session has today.

    Raises `UsageError` for a session to which calls were added.
    """
    record = stored.record
    if len(details.turns) != len(stored.nodes):
        raise UsageError(
            f"session {record.session_id!r} has {len(stored.nodes)} calls and was recorded with"
            f" {len(details.turns)}; nothing can be added to a recorded rollout"
        )
    messages, seen = _messages(stored, details)
    return Rollout(
        **_general(record),
        policy=details.policy,
        episode_id=details.episode_id,
        **_outcome(record, details),
        messages=messages,
        turns=[
            _turn(node, kept, num_messages, reply)
            for node, kept, num_messages, reply in zip(
                stored.nodes, details.turns, seen, replies(messages, seen), strict=True
            )
        ],
        tools=next((text.tools for text in stored.texts if text.tools), ()),
        sampling=details.sampling,
        sampling_seed=details.sampling_seed,
        wall_s=details.wall_s,
        num_retries=details.num_retries,
        artifacts=details.artifacts,
    )


def _messages(stored: StoredSession, details: RecordedDetails) -> tuple[list[Message], list[int]]:
    """Return all messages, and how many of them each turn saw."""
    messages: list[Message] = []
    seen = []
    for text in stored.texts:
        del messages[text.num_shared_messages :]
        messages += text.messages
        seen.append(len(messages))
        messages += [] if text.answer is None else [text.answer]
    return messages + cast(list[Message], details.messages), seen


def _general(record: SessionRecord) -> dict[str, Any]:
    meta = record.metadata
    return {
        "env_id": str(meta.get("env_id", "")),
        "env_kwargs": meta.get("env_kwargs", {}),
        "plugin_version": str(meta.get("plugin_version", "")),
        "task_id": str(meta.get("task_id", "")),
        "task_sha256": str(meta.get("task_sha256", "")),
        "split": str(meta.get("split", "")),
        "seed": meta.get("seed"),
        "attempt": meta.get("attempt", 0),
        "seat": str(meta.get("seat", "player")),
    }


def _outcome(record: SessionRecord, details: RecordedDetails) -> dict[str, Any]:
    """Return status, reward and failure: those recorded, unless the session was told others."""
    kept = details.reward
    if has_valid_reward(record) != kept.is_valid:
        status, reward = outcome(record)
        return {
            "status": status,
            "reward": reward,
            "failure_kind": reward.failure_kind,
            "reason": reward.reason,
        }
    components = {}
    for name, score in record.reward_components.items():
        how = kept.components.get(name)
        # One that was told later is kept as a measurement.
        components[name] = Component(
            score=score, weight=how.weight if how else 0.0, is_gate=how is not None and how.is_gate
        )
    kind = record.metadata.get("failure_kind")
    return {
        "status": details.status,
        "reward": Reward(
            value=record.reward if kept.is_valid else None,
            components=components,
            is_valid=kept.is_valid,
            failure_kind=kept.failure_kind,
            reason=kept.reason,
        ),
        "failure_kind": None if kind is None else FailureKind(kind),
        "reason": record.metadata.get("reason", ""),
    }


def _turn(node: Node, kept: KeptTurn, num_messages: int, reply: Sequence[Message]) -> Turn:
    return Turn(
        num_messages=num_messages,
        finish_reason=node.finish_reason,
        tokens=node.tokens(parent=node.parent) if kept.has_tokens else None,
        num_prompt_tokens=kept.num_prompt_tokens,
        num_completion_tokens=kept.num_completion_tokens,
        tool_results=[
            ToolResult(
                **{
                    **asdict(result),
                    "content": _content(result.call_id, result.content, reply),
                }
            )
            for result in kept.tool_results
        ],
        started_s=kept.started_s,
        completed_s=kept.completed_s,
        ended_s=kept.ended_s,
    )


def _content(call_id: str, kept: str | None, reply: Sequence[Message]) -> str:
    """Return a result's text: the one that was kept, or that of its message."""
    return kept if kept is not None else content_of(call_id, reply) or ""
