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


def kept(gateway: Running, index: int = -1, session: str = "s") -> Kept:
    """Return answer number `index` of a session."""
    node, text = gateway.store.nodes(session)[index], gateway.store.texts(session)[index]
    answer: Any = text.answer
    return Kept(
        call_id=node.call_id,
        text=answer["content"],
        reasoning=answer.get("reasoning_content", ""),
        calls=[
            (c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in answer.get("tool_calls", ())
        ],
        num_prompt_tokens=node.num_shared + len(node.prompt_ids),
        num_completion_tokens=len(node.completion_ids),
        parent=node.parent,
        branch=node.branch,
    )
