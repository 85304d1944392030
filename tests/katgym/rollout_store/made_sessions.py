"""Sessions put together by hand: a linear one with a branch, and one with two answers to a call.

Not here: random ones (`test_store_sessions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katgym import Reward, Turn, assistant, user
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.version_span import VersionSpan, one_span
from katgym.rollout_store import (
    FailedCall,
    RolloutStore,
    SessionRecord,
    SessionStatus,
)

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
FAILED = FailedCall(
    call_id="bad", route="openai/chat", status=400, kind="malformed", reason="no messages",
    received_s=1000.5,
)  # fmt: skip


_TOKEN_FIELDS = ("policy_logprobs", "version_spans", "branch", "routes")


def turn(
    index: int,
    parent: int | None,
    num_shared: int,
    prompt: Sequence[int],
    completion: Sequence[int],
    asked: Sequence[Any] = (),
    answer: Any = None,
    num_shared_messages: int = 0,
    **more: Any,
) -> Turn:
    """Return a turn of version 7; token x was sampled with log-prob -x / 8."""
    num = len(completion)
    tokens = {
        "parent": parent,
        "num_shared": num_shared,
        "prompt_ids": list(prompt),
        "completion_ids": list(completion),
        "policy_logprobs": [-token / 8 for token in completion],
        "version_spans": one_span(7, num) if num else (),
        **{name: more.pop(name) for name in _TOKEN_FIELDS if name in more},
    }
    return Turn(
        **{
            "call_id": f"call-{index}",
            "messages": list(asked),
            "num_shared_messages": num_shared_messages,
            "answer": answer,
            "tools": TOOLS,
            "tokens": TokenRecord(**tokens),
            "num_prompt_tokens": num_shared + len(prompt),
            "num_completion_tokens": num,
            "tool_results": [],
            "model": "tiny",
            "route": "openai/chat",
            "sampling": {"temperature": 0.5, "max_tokens": 16, "seed": 3},
            "upstream": "http://127.0.0.1:1",
            "started_s": 1.0 + index,
            "sent_s": 1.25 + index,
            "completed_s": 1.5 + index,
            "ended_s": 1.5 + index,
            **more,
        }
    )


CALLING = assistant("let me see", [("f", {"x": 1})])
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "2"}
BRANCHED = [
    turn(0, None, 0, [1, 2], [3, 4], [user("how much?")], CALLING),
    turn(
        1, 0, 4, [5], [6, 7], [RESULT], assistant("two"), 2,
        version_spans=(
            VersionSpan(version=7, start=0, end=1), VersionSpan(version=8, start=1, end=2),
        ),
        finish_reason="length",
    ),
    turn(2, 1, 2, [8], [9], [user("so far: 2")], assistant("done"), 1,
         branch=BranchReason.COMPACTION),
]  # fmt: skip
"""Turns 0 and 1 are a path; 2 forks off behind turn 0's prompt."""
TWO_ANSWERS = [
    turn(0, None, 0, [1, 2], [3], [user("pick")], assistant("a"), call_id="c"),
    turn(1, 0, 2, [], [4, 5], [], assistant("b"), 1, call_id="c", choice=1),
]
"""One call with `n=2`: the second answer shares the first one's prompt."""


def add(
    store: RolloutStore,
    session_id: str,
    turns: Sequence[Turn] = BRANCHED,
    *,
    status: SessionStatus = SessionStatus.FINISHED,
    failed: Sequence[FailedCall] = (),
    **more: Any,
) -> SessionRecord:
    """Put a whole session into a store, and return its record."""
    given = {"created_s": 1000.0, "group_id": "g", "metadata": {"env_id": "katgym/Echo-v0"}, **more}
    if isinstance(reward := given.get("reward"), float):
        given["reward"] = Reward(value=reward)
    ended_s = given.pop("ended_s", 1010.0)
    store.create_session(SessionRecord(session_id=session_id, **given))
    store.append(session_id, turns, failed)
    if status is SessionStatus.OPEN:
        return store.session(session_id)
    return store.update_session(session_id, status=status, ended_s=ended_s)
