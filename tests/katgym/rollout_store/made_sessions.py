"""Sessions put together by hand: a linear one with a branch, and one with two answers to a call.

Not here: random ones (`test_store_round_trip.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katgym import assistant, user
from katgym.policies.base import BranchReason
from katgym.rollout_store import (
    FailedCall,
    Node,
    NodeText,
    RolloutStore,
    SessionRecord,
    SessionStatus,
)
from katgym.version_span import VersionSpan, one_span

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
FAILED = FailedCall(
    call_id="bad", route="openai/chat", status=400, kind="malformed", reason="no messages",
    received_s=1000.5,
)  # fmt: skip


def node(
    index: int,
    parent: int | None,
    num_shared: int,
    prompt: Sequence[int],
    completion: Sequence[int],
    **more: Any,
) -> Node:
    """Return a node of version 7; token x was sampled with log-prob -x / 8."""
    num = len(completion)
    return Node(
        **{
            "index": index,
            "call_id": f"call-{index}",
            "parent": parent,
            "num_shared": num_shared,
            "prompt_ids": list(prompt),
            "completion_ids": list(completion),
            "policy_logprobs": [-token / 8 for token in completion],
            "versions": list(one_span(7, num)) if num else [],
            "model": "tiny",
            "route": "openai/chat",
            "sampling": {"temperature": 0.5, "max_tokens": 16, "seed": 3},
            "upstream": "http://127.0.0.1:1",
            "received_s": 1001.0 + index,
            "sent_s": 1001.25 + index,
            "answered_s": 1001.5 + index,
            **more,
        }
    )


def text(asked: Sequence[Any], answer: Any, num_shared: int = 0) -> NodeText:
    return NodeText(
        num_shared_messages=num_shared, messages=list(asked), answer=answer, tools=TOOLS
    )


CALLING = assistant("let me see", [("f", {"x": 1})])
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "2"}
BRANCHED = [
    (node(0, None, 0, [1, 2], [3, 4]), text([user("how much?")], CALLING)),
    (
        node(
            1, 0, 4, [5], [6, 7],
            versions=[
                VersionSpan(version=7, start=0, end=1), VersionSpan(version=8, start=1, end=2),
            ],
            finish_reason="length",
        ),
        text([RESULT], assistant("two"), 2),
    ),
    (
        node(2, 1, 2, [8], [9], branch=BranchReason.COMPACTION),
        text([user("so far: 2")], assistant("done"), 1),
    ),
]  # fmt: skip
"""Nodes 0 and 1 are a path; 2 forks off behind node 0's prompt."""
TWO_ANSWERS = [
    (node(0, None, 0, [1, 2], [3], call_id="c"), text([user("pick")], assistant("a"))),
    (node(1, 0, 2, [], [4, 5], call_id="c", choice=1), text([], assistant("b"), 1)),
]
"""One call with `n=2`: the second answer shares the first one's prompt."""


def add(
    store: RolloutStore,
    session_id: str,
    nodes: Sequence[tuple[Node, NodeText]] = BRANCHED,
    *,
    status: SessionStatus = SessionStatus.FINISHED,
    failed: Sequence[FailedCall] = (),
    **more: Any,
) -> SessionRecord:
    """Put a whole session into a store, and return its record."""
    given = {"created_s": 1000.0, "group_id": "g", "metadata": {"env_id": "katgym/Echo-v0"}, **more}
    ended_s = given.pop("ended_s", 1010.0)
    store.create_session(SessionRecord(session_id=session_id, **given))
    store.append(session_id, nodes, failed)
    if status is SessionStatus.OPEN:
        return store.session(session_id)
    return store.update_session(session_id, status=status, ended_s=ended_s)
