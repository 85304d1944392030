r"""Tells thinking that stands in an answer's text from the answer: the one place for every env.

    split_thinking("<think>3? No.</think>\nIt is 4.") == ("3? No.", "\nIt is 4.")

The rule:

- `<think>...</think>` is thinking, wherever it stands and however often, in any case, and so are
  the markers that other families write as text (`[THINK]`, `<|channel|>analysis<|message|>`, ...).
- A closing tag without an opening one ends thinking that the prompt began: all before it is
  thinking. So is what stands before another closing tag, unless nothing stands behind that.
- Thinking that never ends is no answer, and there is none beside it.
- A tag that is spoken of is text: one in quotes or backticks, one within code of the answer, and
  an opening one within a sentence that goes on behind it, and that no closing one follows.

Not here: thinking that a server or a renderer tells apart (`reasoning_content`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from katgym.environment.messages import Message

_OPENING = (
    r"<[ \t]*(?:seed:|longcat_)?(?:think(?:ing)?|thought)(?::\w{1,32})?[ \t]*>",  # most families
    r"\[think\]",  # Mistral
    r"◁think▷",  # Kimi-VL
    r"<\|start_thinking\|>",  # Cohere
    r"<\|begin_of_thought\|>",  # OpenThinker, Sky-T1
    r"<\|channel>thought\b",  # Gemma 4
    r"<\|channel\|>(?:analysis|commentary)[ \t]*<\|message\|>",  # gpt-oss
)
_CLOSING = (
    r"<[ \t]*/[ \t]*(?:seed:|longcat_)?(?:think(?:ing)?|thought)(?::\w{1,32})?[ \t]*>",
    r"\[/think\]",
    r"◁/think▷",
    r"<\|end_thinking\|>",
    r"<\|end_of_thought\|>",
    r"<channel\|>",
    r"(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final[ \t]*<\|message\|>",
)
_TAG = re.compile(rf"(?P<opening>{'|'.join(_OPENING)})|{'|'.join(_CLOSING)}", re.IGNORECASE)
_QUOTES = frozenset("`\"'“”‘’«»")
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")
_SENTENCE_END = re.compile(r"(?:\A|\n|[.!?…。！？][)\"'*_]*)[ \t>*_]*\Z")
_GOES_ON = re.compile(r"[)\]\"'*_]*(?:[.,;:!?]|[ \t]+[a-z\d]|\s*\Z)")
_MAX_BEFORE = 100
"""Characters before an opening tag that tell whether a sentence has ended there."""
_LEADING = re.compile(r"(\s*<think>)(.*?)(</think>)", re.DOTALL)


def split_thinking(text: str) -> tuple[str | None, str]:
    """Return an answer's thinking (None for none) and the answer without it, in linear time.

    Example:
        >>> split_thinking("So 4.")
        (None, 'So 4.')
        >>> split_thinking("<think>So 4")
        ('So 4', '')
    """
    visible = answer_spans(text)
    if visible == [(0, len(text))]:
        return None, text
    hidden, last = [], 0
    for start, end in [*visible, (len(text), len(text))]:
        hidden.append(_TAG.sub("", text[last:start]))
        last = end
    return "".join(hidden).strip(), "".join(text[start:end] for start, end in visible)


def without_thinking(message: Message) -> Message:
    """Return a message whose content is the answer alone; the message itself if it is that."""
    thinking, answer = split_thinking(message["content"])
    if thinking is None:
        return message
    known = message.get("reasoning_content", "")
    told = "\n".join(part for part in (known, thinking) if part)
    told_message: Message = {**message, "content": answer}
    if told:
        told_message["reasoning_content"] = told
    return told_message


def leading_thinking(text: str) -> tuple[str, str, str, str] | None:
    """Return `<think>`, the thinking, `</think>` and the answer of a text that begins so."""
    found = _LEADING.match(text)
    return None if found is None else (found[1], found[2], found[3], text[found.end() :])


def answer_spans(text: str) -> list[tuple[int, int]]:
    """Return where the answer stands in a text: the spans that are no thinking."""
    tags = list(_TAG.finditer(text))
    if not tags:
        return [(0, len(text))]
    fences = [found.span() for found in _FENCE.finditer(text)]
    code = fences + [found.span() for found in _SPAN.finditer(text)]
    in_fence, in_code = _within(tags, fences), _within(tags, code)
    closings = [i for i, tag in enumerate(tags) if not tag["opening"]]
    last_closing = closings[-1] if closings else -1
    spans: list[tuple[int, int]] = []
    begun: int | None = None  # where the thinking began that the text is in
    seen = 0  # up to where all is told apart
    num_inner = 0  # openings within thinking that no closing has answered yet
    has_closed = False
    shown: str | None = None  # what stands before the last opening tag that is text
    end = len(text.rstrip())
    for i, tag in enumerate(tags):
        if tag["opening"]:
            if begun is not None:
                num_inner += 1
            elif (
                in_code[i]
                or _before(text, tag) in _QUOTES
                or (i >= last_closing and _is_in_sentence(text, tag))
            ):
                shown = _before(text, tag)
            else:
                spans.append((seen, tag.start()))
                begun, num_inner = tag.start(), 0
            continue
        behind = text[tag.end() : tag.end() + 1]
        is_quoted = _before(text, tag) in _QUOTES and behind in _QUOTES and behind != ""
        if begun is not None:
            if is_quoted:
                continue
            begun, seen, has_closed = None, tag.end(), True
            continue
        is_shown = shown is not None and (in_code[i] or (shown in _QUOTES and behind == shown))
        if is_quoted or is_shown or (in_code[i] and (has_closed or not in_fence[i])):
            shown = None
            continue
        if has_closed and not num_inner and tag.end() >= end:
            spans.append((seen, tag.start()))
        else:
            spans.clear()
        num_inner = max(num_inner - 1, 0)
        seen, has_closed = tag.end(), True
    if begun is not None:
        return []
    return [span for span in [*spans, (seen, len(text))] if span[0] < span[1]]


def _is_in_sentence(text: str, tag: re.Match[str]) -> bool:
    before = text[max(tag.start() - _MAX_BEFORE, 0) : tag.start()]
    return not _SENTENCE_END.search(before) and bool(_GOES_ON.match(text, tag.end()))


def _before(text: str, tag: re.Match[str]) -> str:
    return text[max(tag.start() - 1, 0) : tag.start()]


def _within(tags: list[re.Match[str]], spans: list[tuple[int, int]]) -> list[bool]:
    """Return of each tag whether it stands in one of the spans, in one pass over both."""
    places = sorted(spans)
    found, reach, i = [], 0, 0
    for tag in tags:
        while i < len(places) and places[i][0] <= tag.start():
            reach = max(reach, places[i][1])
            i += 1
        found.append(tag.end() <= reach)
    return found
