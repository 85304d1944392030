"""What the store holds of an answer, in the words of a client that got it.

Not here: getting answers (`test_openai_sdk.py`, `test_anthropic_sdk.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .served_gateway import Running


@dataclass(frozen=True)
class Kept:
    """One answer as it was written down."""

    call_id: str
    text: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    """Id, name and arguments of each tool call."""
    num_prompt_tokens: int
    num_completion_tokens: int
    parent: int | None
    branch: str | None


def kept(gateway: Running, index: int = -1) -> Kept:
    """Return answer number `index` of the session."""
    turn = gateway.turns()[index]
    answer: Any = turn.answer
    assert turn.tokens is not None
    return Kept(
        call_id=turn.call_id,
        text=answer["content"],
        reasoning=answer.get("reasoning_content", ""),
        calls=[
            (c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in answer.get("tool_calls", ())
        ],
        num_prompt_tokens=turn.tokens.num_shared + len(turn.tokens.prompt_ids),
        num_completion_tokens=len(turn.tokens.completion_ids),
        parent=turn.tokens.parent,
        branch=turn.tokens.branch,
    )
