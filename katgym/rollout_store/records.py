"""What the data plane keeps: sessions, and their model calls as nodes of a token tree.

A node holds what its parent does not have, so a session's size grows with its number of tokens.
Not here: where they are kept (`database.py`, `shards.py`); the same for one episode of the agent
loop (`katgym.rollout`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from katgym.messages import Message
from katgym.policies.base import BranchReason, TokenRecord
from katgym.version_span import VersionSpan


class SessionStatus(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    """It may make calls."""
    FINISHED = "finished"
    """Its owner said that it is over."""
    FAILED = "failed"
    """Its owner said that it is over and worth nothing: out of every loss and mean."""
    EXPIRED = "expired"
    """Its deadline passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One sampled answer, as a delta to an earlier answer of the same session.

    The prompt is the first `num_shared` tokens of node `parent` (its prompt followed by its
    answer), followed by `prompt_ids`; `parent` is None for a root, `num_shared` then 0. The loss
    mask is False on `prompt_ids` and True on `completion_ids`.

    Example:
        Node(index=1, parent=0, num_shared=57, prompt_ids=[2, 198], completion_ids=[504, 2],
             policy_logprobs=[-0.3, -0.01], versions=[VersionSpan(version=3, start=0, end=2)],
             call_id="c0ffee", finish_reason="stop")
    """

    index: int
    """Place in the session, from 0; a parent comes before its children."""
    call_id: str
    """Unique among model calls; the answers of one call (`n` > 1) share it."""
    choice: int = 0
    """Which of the call's answers."""
    parent: int | None = None
    num_shared: int = 0
    prompt_ids: Sequence[int] = ()
    completion_ids: Sequence[int] = ()
    policy_logprobs: Sequence[float] = ()
    """One natural-log probability per entry of `completion_ids`, kept bit for bit."""
    versions: Sequence[VersionSpan] = ()
    """They cover `completion_ids` without a gap; empty: not known."""
    branch: BranchReason | None = None
    """Why the prompt does not extend its parent; None where it does, and for a root."""
    finish_reason: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    model: str = ""
    route: str = ""
    """API it came through, as in `openai/chat`."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """What it was sampled with: `temperature`, `top_p`, `max_tokens`, `seed`, ..."""
    upstream: str = ""
    received_s: float = 0.0
    """Unix time at which the request was there."""
    sent_s: float = 0.0
    """Unix time at which it went to the model server."""
    answered_s: float = 0.0
    """Unix time at which the model server had answered."""

    def tokens(self, *, parent: int | None) -> TokenRecord:
        """Return the node as a rollout's turn has it; parent: the turn that it continues."""
        return TokenRecord(
            parent=parent,
            num_shared=self.num_shared,
            prompt_ids=self.prompt_ids,
            completion_ids=self.completion_ids,
            policy_logprobs=self.policy_logprobs,
            version_spans=tuple(self.versions),
            branch=self.branch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeText:
    """The readable side of a node; nothing is trained on it.

    The messages of the prompt are the first `num_shared_messages` of the parent's messages (its
    prompt's followed by its answer), followed by `messages`.
    """

    num_shared_messages: int = 0
    messages: Sequence[Message] = ()
    answer: Message | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI function tools that were offered; kept once however often they are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A model call that was answered with an error.

    Example:
        FailedCall(call_id="c0ffee", route="openai/chat", status=400, kind="malformed",
                   reason="messages is a list", received_s=1.7e9)
    """

    call_id: str
    route: str
    status: int
    """HTTP status of the answer; 499 if the client had gone."""
    kind: str
    """`malformed`, `unknown_model`, `context_length`, `upstream`, `no_token_ids`, `budget`, ..."""
    reason: str
    received_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One agent's episode.

    Example:
        SessionRecord(session_id="s1", group_id="task-7", metadata={"env_id": "katgym/Swe-v0"},
                      created_s=1.7e9, status=SessionStatus.FINISHED, reward=1.0,
                      reward_components={"tests": 1.0})
    """

    session_id: str
    group_id: str = ""
    """Siblings of one task share it; advantages are relative to them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever its owner wants to find again: env id, task id, seed, harness. Key `katgym` is kept
    for what `record_rollout` writes."""
    created_s: float = 0.0
    """Unix time."""
    ended_s: float | None = None
    status: SessionStatus = SessionStatus.OPEN
    reward: float | None = None
    """None: not told, or not valid."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    key_sha256: str = ""
    """Hash of the key that its agent uses; the key itself is kept nowhere."""
    max_calls: int | None = None
    max_tokens: int | None = None
    """Sampled tokens that all its calls together may have."""
    deadline_s: float | None = None
    """Unix time after which it is expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session with everything that is kept of it; `nodes` and `texts` line up."""

    record: SessionRecord
    nodes: Sequence[Node] = ()
    texts: Sequence[NodeText] = ()
    failed_calls: Sequence[FailedCall] = ()


ENDED = (SessionStatus.FINISHED, SessionStatus.FAILED, SessionStatus.EXPIRED)
"""Statuses in which a session makes no calls any more."""
