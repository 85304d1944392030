"""Renders plain ChatML with Hermes-style tool calls, for models without a renderer of their own.

    <|im_start|>ROLE\nCONTENT<|im_end|>\n

Tool schemas stand in the system message, calls in `<tool_call>` blocks of the answer's text, each
holding one JSON object or a list of them; a result is a turn of role `tool`. Message contents
never become control tokens (`content_guard.py`): a tool result that spells `<|im_end|>` stays text.
Rendering a longer conversation never changes the tokens of its beginning, so bridging is exact.

Not here: thinking (`reasoning_content` is not rendered, and not split off the answer); where calls
stand in an answer (`call_blocks.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from renderers.base import (
    ParsedResponse,
    RenderedTokens,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)

from katgym.errors import UsageError
from katgym.policies.rendering.call_blocks import find_openings, read_calls
from katgym.policies.rendering.content_guard import ContentGuard

_TOOLS = """\
You can call these tools. Each line is one tool with the JSON Schema of its arguments:
<tools>
{tools}
</tools>
To call a tool, write a JSON object with its name and arguments between <tool_call> tags:
<tool_call>
{{"name": "tool-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>
To call several tools at once, write several such blocks. The results come in the next messages, \
in the same order. When you need no tool, answer in plain text."""


class ChatMLRenderer:
    """Messages to ChatML token ids and back; has the protocol of the `renderers` library.

    default_system: the system message of a conversation that starts with none; "" adds none.
    """

    def __init__(self, tokenizer: Any, *, default_system: str = "") -> None:
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._im_start = self._token_id("<|im_start|>")
        self._im_end = self._token_id("<|im_end|>")
        self._guard = ContentGuard(tokenizer)
        self._tokenizer = self._guard.tokenizer
        self._newline_ids = self._encode("\n")

    @property
    def is_prefix_stable(self) -> bool:
        """Whether full renders preserve the tokens of earlier turns."""
        return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Return the conversation's tokens, each with the index of its message (-1 for none)."""
        rendered = RenderedTokens(
            message_roles=[m["role"] for m in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )
        messages, tools = self._guard.messages(messages), self._guard.value(tools)
        has_system = bool(messages) and messages[0]["role"] == "system"
        text = str(messages[0]["content"]) if has_system else self._default_system
        if tools:
            lines = (json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
            described = _TOOLS.format(tools="\n".join(lines))
            text = f"{text}\n\n{described}".strip()
        if text or has_system:
            self._add_turn(rendered, "system", text, 0 if has_system else -1)
        for index, message in enumerate(messages):
            if index or not has_system:
                self._add_turn(rendered, message["role"], _body(message), index)
        if add_generation_prompt:
            self._add(rendered, [self._im_start, *self._encode("assistant\n")], -1)
        return rendered

    def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the conversation's tokens."""
        rendered = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return list(rendered.token_ids)

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ParsedResponse:
        """Return content and tool calls of an answer; content is the text outside the blocks."""
        stop_ids = set(self.get_stop_token_ids())
        end = next((i for i, t in enumerate(token_ids) if t in stop_ids), len(token_ids))
        text = self._tokenizer.decode(list(token_ids[:end]), skip_special_tokens=False)
        content, calls = read_calls(text, find_openings(text))
        return ParsedResponse(content=content, tool_calls=calls)

    def get_stop_token_ids(self) -> list[int]:
        """Return the tokens that end an answer."""
        eos = self._tokenizer.eos_token_id
        return sorted({self._im_end} | ({eos} if isinstance(eos, int) else set()))

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """Return the next prompt: the previous tokens as they are, then the new messages.

        An answer that was cut off is closed first. None when a new message is the model's own or
        a system message, which belongs in front.
        """
        if not previous_prompt_ids or not new_messages:
            return None
        if reject_assistant_in_extension(new_messages):
            return None
        ids = trim_to_turn_close(
            previous_prompt_ids,
            previous_completion_ids,
            set(self.get_stop_token_ids()),
            synthesize_close=self._im_end,
        )
        if ids is None:
            return None
        rendered = RenderedTokens(
            message_roles=[m["role"] for m in new_messages],
            message_tool_names=extract_message_tool_names(new_messages),
        )
        self._add(rendered, [*ids, *self._newline_ids], -1)
        for index, message in enumerate(self._guard.messages(new_messages)):
            self._add_turn(rendered, message["role"], _body(message), index)
        self._add(rendered, [self._im_start, *self._encode("assistant\n")], -1)
        return rendered

    def _add_turn(self, rendered: RenderedTokens, role: str, body: str, index: int) -> None:
        is_sampled = role == "assistant"
        header_ids = self._encode(f"{role}\n")
        # What the model writes begins behind the header's tokens, also where a line break that it
        # begins with would merge with the header's.
        ids = self._encode(f"{role}\n{body}")
        num_header = len(header_ids)
        if ids[:num_header] != header_ids:
            ids = [*header_ids, *self._encode(body)] if is_sampled else ids
            num_header = num_header if is_sampled else 0
        self._add(rendered, [self._im_start, *ids[:num_header]], index)
        self._add(rendered, ids[num_header:], index, is_content=True, is_sampled=is_sampled)
        self._add(rendered, [self._im_end], index, is_content=is_sampled, is_sampled=is_sampled)
        self._add(rendered, self._newline_ids, index)

    @staticmethod
    def _add(
        rendered: RenderedTokens,
        ids: Sequence[int],
        index: int,
        *,
        is_content: bool = False,
        is_sampled: bool = False,
    ) -> None:
        rendered.token_ids += ids
        rendered.message_indices += [index] * len(ids)
        rendered.is_content += [is_content] * len(ids)
        rendered.sampled_mask += [is_sampled] * len(ids)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _token_id(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        if not isinstance(token_id, int) or self._tokenizer.decode([token_id]) != token:
            raise UsageError(f"the tokenizer has no token {token!r}: its chats are not ChatML")
        return token_id


def _body(message: Mapping[str, Any]) -> str:
    """Return what stands between a turn's header and its end."""
    content = str(message.get("content") or "")
    blocks = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(function["name"], ensure_ascii=False)
        blocks.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    return "\n".join([content, *blocks] if content else blocks)
