"""A model's chat format: messages to token ids, ids that go on from recorded ones, ids to messages.

Not here: which renderer a model has (`renderer_choice.py`); what a conversation keeps
(`policies/token_policy.py`, `gateway/conversation.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from katgym.environment.messages import Message, arguments_of
from katgym.errors import PolicyError
from katgym.policies.rendering.answer_parsing import parse_answer

if TYPE_CHECKING:
    from renderers.base import Renderer

Tools = list[dict[str, Any]] | None
"""OpenAI function tools; None for none."""
Ids = TypeVar("Ids", list[int], "array[int]")

_LOOK_AT_LAST_TURN = {"ChatMLRenderer", "Qwen3Renderer"}
"""Renderers that look at no more of a recorded prompt than what follows its last closed turn."""
_MAX_TURN = 4096
"""Tokens within which a turn's beginning is looked for."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Renders, goes on and parses; `tokenizer` is what `renderer` was made with."""

    renderer: Renderer
    tokenizer: Any
    name: str
    """Whose format it is, for errors."""

    def render(
        self, messages: Sequence[Message], tools: Tools, *, is_answer_next: bool = True
    ) -> list[int]:
        """Return the prompt of a conversation; `PolicyError` if the format cannot hold it.

        is_answer_next: whether it ends where the model's answer begins.
        """
        try:
            ids = self.renderer.render_ids(
                for_renderer(messages),
                tools=tools,
                add_generation_prompt=is_answer_next,
            )
        except Exception as e:  # chat templates refuse conversations with errors of any type
            raise PolicyError(
                f"the chat format of policy {self.name!r} cannot hold this conversation"
                f" (roles {[m['role'] for m in messages]!r}): {type(e).__name__}: {e}",
                kind="policy_rejected",
            ) from e
        return list(ids)

    def bridge(
        self,
        prompt_ids: Ids,
        completion_ids: Ids,
        new: Sequence[Message],
        tools: Tools,
    ) -> Ids | None:
        """Return a prompt that begins with these ids and goes on with new messages.

        None where the renderer cannot tell that this is what the model would be given.
        """
        turn_ids, answer_ids = self._last_turn(prompt_ids), list(completion_ids)
        bridged = self.renderer.bridge_to_next_turn(
            turn_ids, answer_ids, for_renderer(new), tools=tools
        )
        tail = turn_ids + answer_ids
        if bridged is None or not extends(bridged.token_ids, tail):
            return None
        ids = prompt_ids + completion_ids
        ids.extend(bridged.token_ids[len(tail) :])
        return ids

    def _last_turn(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return as much of a prompt's end as the renderer looks at: a copy of all costs time."""
        if type(self.renderer).__name__ in _LOOK_AT_LAST_TURN:
            stop_ids = set(self.renderer.get_stop_token_ids())
            for start in range(len(prompt_ids) - 1, max(len(prompt_ids) - _MAX_TURN, 0), -1):
                if prompt_ids[start] in stop_ids:
                    return list(prompt_ids[start:])
        return list(prompt_ids)

    def parse(
        self,
        completion_ids: Sequence[int],
        *,
        prompt_ids: Sequence[int],
        tools: Tools,
        id_prefix: str,
    ) -> Message:
        """Return a completion as a message; see `parse_answer`."""
        return parse_answer(
            self.renderer,
            self.tokenizer,
            completion_ids,
            prompt_ids=self._last_turn(prompt_ids),
            tools=tools,
            id_prefix=id_prefix,
        )


def extends(ids: Sequence[int], prefix: Sequence[int]) -> bool:
    """Return whether ids begin with a prefix and go on."""
    return len(ids) > len(prefix) and list(ids[: len(prefix)]) == list(prefix)


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading entries are equal."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low] and a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def for_renderer(messages: Sequence[Message]) -> list[Any]:
    """Return messages as renderers take them: arguments as objects, no keys of ours.

    A call that could not be read has no object to show; its text goes back into the content.
    """
    return [_with_plain_calls(m) if m.get("tool_calls") else dict(m) for m in messages]


def _with_plain_calls(message: Message) -> dict[str, Any]:
    content, calls = message["content"], []
    for call in message["tool_calls"]:
        function = call["function"]
        try:
            arguments = arguments_of(call)
        except ValueError:
            arguments = None
        if "error" in call or not isinstance(arguments, dict):
            content = f"{content}\n{function['arguments']}".strip()
            continue
        shown = {"name": function["name"], "arguments": arguments}
        calls.append({"id": call["id"], "type": "function", "function": shown})
    plain: dict[str, Any] = {**message, "content": content}
    del plain["tool_calls"]
    return {**plain, "tool_calls": calls} if calls else plain
