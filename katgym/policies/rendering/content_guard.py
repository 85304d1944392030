r"""Keeps content from becoming control tokens, in whatever renderer writes it.

Renderers write control tokens by id, and also as text among the content (`<think>\n{thinking}`).
So each control token that content spells is broken by a mark before it is rendered, and the
tokenizer that the renderer has encodes what stands on either side of a mark by itself:

    guard = ContentGuard(tokenizer)
    guarded(renderer_of(guard.tokenizer), guard)     # its `render` breaks messages and tools

Text without control tokens is encoded as ever. What a model sampled is kept as ids and never comes
here. The one exception is an assistant's message that begins with `<think>...</think>`: those two
are tokens, as the chat templates write them.

Not here: text that a renderer forms of its markup and a name: `<` + key + `>` (Nemotron 3 writes
unknown keys of a tool's schema so).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from katgym.environment.thinking import leading_thinking
from katgym.policies.rendering.cached_tokenizer import CachedTokenizer

if TYPE_CHECKING:
    from renderers.base import RenderedTokens, Renderer

_MARK, _KEPT = "\ufdd0", "\ufdd1"
"""Characters that Unicode reserves for a program's own use. A mark that content holds is written
`_MARK + _KEPT`; alone it breaks."""
_BREAK = re.compile(f"{_MARK}(?!{_KEPT})")
_ESCAPED = "\\ufdd0"
"""The mark as `json.dumps` writes it in ASCII."""
_GUIDE = "\n"
"""Stands before a text that goes on, so that tokenizers take it for no beginning."""


_ENCODES_BY_ITSELF = {"GptOssRenderer"}
"""Renderers that give no content to the tokenizer: OpenAI's harmony takes it as ordinary text."""


class GuardedText(str):
    """Text that a guard has been through."""


class ContentGuard:
    """Breaks the control tokens that content spells.

    tokenizer: of transformers. Control tokens are its added ones, apart from runs of blanks: what
        it was trained to read as text has no added token.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = (str(token) for token in tokenizer.added_tokens_decoder.values())
        names = sorted({name for name in added if name.strip()})
        self._breaks = {name: _place(tokenizer, name) for name in names}
        self._pattern = re.compile(_any_of(names)) if names else None
        self.tokenizer = GuardedTokenizer(tokenizer, self._breaks)
        self._normalize = _normalizer(tokenizer)

    def text(self, text: str) -> str:
        """Return a text with marks in what would be control tokens.

        Raises `ValueError` for a control token of one character, which cannot be broken.
        """
        if isinstance(text, GuardedText) or self._pattern is None:
            return text
        safe = text.replace(_MARK, _MARK + _KEPT) if _MARK in text else text
        while self._pattern.search(safe):  # again: what is broken can hold a shorter one
            safe = self._pattern.sub(self._broken, safe)
        if self._normalize is not None and self._pattern.search(self._normalize(safe)):
            # Letters that the tokenizer reads as others, full-width ones say: break everywhere.
            safe = re.sub(f"(?<=.)(?=.)(?!{_KEPT})", _MARK, safe, flags=re.DOTALL)
        return GuardedText(safe)

    def value(self, value: Any) -> Any:
        """Return a JSON value with all of its strings guarded, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(entry) for entry in value]
        return value

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with all of their strings guarded."""
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        guarded: dict[str, Any] = self.value(message)
        content = message.get("content")
        is_told_apart = message.get("role") != "assistant" or message.get("reasoning_content")
        if is_told_apart or not isinstance(content, str) or isinstance(content, GuardedText):
            return guarded
        if found := leading_thinking(content):
            opening, thinking, closing, answer = found
            parts = opening, self.text(thinking), closing, self.text(answer)
            guarded["content"] = GuardedText("".join(parts))
        return guarded

    def _broken(self, found: re.Match[str]) -> str:
        name = found[0]
        if len(name) == 1:
            raise ValueError(
                f"the content holds {name!r}, which is a control token of this model and, being one"
                " character, cannot be written as text. Leave it out"
            )
        place = self._breaks[name]
        return f"{name[:place]}{_MARK}{name[place:]}"


class GuardedTokenizer(CachedTokenizer):
    """A tokenizer that encodes what stands on either side of a guard's mark by itself.

    breaks: control token -> where a guard breaks it.
    """

    def __init__(self, tokenizer: Any, breaks: Mapping[str, int]) -> None:
        super().__init__(tokenizer)
        self._breaks = breaks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tokenizer, self._breaks)

    def encode(self, text: Any, *more: Any, **options: Any) -> list[int]:
        """Return what the tokenizer's `encode` does: a new list each time."""
        first, *rest = self._parts(text)
        ids = super().encode(first, *more, **options)
        guide = super().encode(_GUIDE, *more, **options) if rest else []
        for part in rest:
            if not part:
                continue
            found = super().encode(_GUIDE + part, *more, **options)
            is_apart = found[: len(guide)] == guide
            ids += found[len(guide) :] if is_apart else super().encode(part, *more, **options)
        return ids

    def __call__(self, text: Any, *more: Any, **options: Any) -> Any:
        """Return what the tokenizer does when it is called: new lists each time.

        Offsets count a mark, as it is in the text.
        """
        parts = self._parts(text)
        if len(parts) == 1:
            return super().__call__(parts[0], *more, **options)
        encoded = super().__call__(parts[0], *more, **options)
        begin = len(parts[0]) + 1
        guide = super().__call__(_GUIDE, *more, **options)
        skipped = len(guide["input_ids"])
        for part in parts[1:]:
            if part:
                found, shift = super().__call__(_GUIDE + part, *more, **options), begin - 1
                num = skipped
                if found["input_ids"][:skipped] != guide["input_ids"]:
                    found, shift, num = super().__call__(part, *more, **options), begin, 0
                for name, values in found.items():
                    kept = values[num:]
                    if name == "offset_mapping":
                        kept = [(max(a + shift, begin), b + shift) for a, b in kept]
                    encoded[name] += kept
            begin += len(part) + 1
        return encoded

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool = True, **options: Any
    ) -> Any:
        """Return what the tokenizer's does; of ids, what `encode` makes of the template's text."""
        apply = self._tokenizer.apply_chat_template
        if not tokenize or options.get("return_dict", True):
            return apply(conversation, tokenize=tokenize, **options)
        del options["return_dict"]
        return self.encode(apply(conversation, tokenize=False, **options), add_special_tokens=False)

    def _parts(self, text: Any) -> list[Any]:
        if not isinstance(text, str):
            return [text]
        if _ESCAPED in text:
            for name, place in self._breaks.items():
                left, right = name[:place], name[place:]
                text = text.replace(left + _ESCAPED + right, left + _MARK + right)
        if _MARK not in text:
            return [text]
        return [part.replace(_MARK + _KEPT, _MARK) for part in _BREAK.split(text)]


class _GuardedRenderer:
    """The methods of a renderer that take content."""

    _guard: ContentGuard

    def render(self, messages: Sequence[Any], *, tools: Any = None, **more: Any) -> RenderedTokens:
        """Return what the renderer does of guarded messages and tools."""
        guard = self._guard
        return super().render(guard.messages(messages), tools=guard.value(tools), **more)  # type: ignore[misc]  # of the class it is mixed into

    def render_ids(self, messages: Sequence[Any], *, tools: Any = None, **more: Any) -> list[int]:
        """Return what the renderer does of guarded messages and tools."""
        guard = self._guard
        return super().render_ids(guard.messages(messages), tools=guard.value(tools), **more)  # type: ignore[misc,no-any-return]  # of the class it is mixed into

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[Any],
        *,
        tools: Any = None,
        **more: Any,
    ) -> RenderedTokens | None:
        """Return what the renderer does of guarded messages and tools."""
        guard = self._guard
        return super().bridge_to_next_turn(  # type: ignore[misc]  # of the class it is mixed into
            previous_prompt_ids,
            previous_completion_ids,
            guard.messages(new_messages),
            tools=guard.value(tools),
            **more,
        )


def guarded(renderer: Renderer, guard: ContentGuard) -> Renderer:
    """Return a renderer whose tokenizer is the guard's, with its content guarded.

    It keeps its class's name and remains an instance of it.
    """
    kind = type(renderer)
    if kind.__name__ in _ENCODES_BY_ITSELF:
        return renderer
    renderer.__class__ = type(kind.__name__, (_GuardedRenderer, kind), {"_guard": guard})
    return renderer


def _place(tokenizer: Any, name: str) -> int:
    """Return where to break a control token: where the tokenizer would, so that halves are usual.

    `<|im_end|>` is read `<|`, `im`, `_end`, `|>`: encoded as two, `<|im_end` and `|>` are the same.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    splitter = getattr(backend, "pre_tokenizer", None)
    pieces = splitter.pre_tokenize_str(name) if splitter is not None else []
    starts = [start for _, (start, _) in pieces if 0 < start < len(name)]
    return starts[-1] if starts else len(name) - 1


def _normalizer(tokenizer: Any) -> Any:
    """Return what rewrites text before control tokens are looked for; None for nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    added = tokenizer.added_tokens_decoder.values()
    is_late = any(getattr(token, "normalized", False) for token in added)
    return normalizer.normalize_str if normalizer is not None and is_late else None


def _any_of(names: Sequence[str]) -> str:
    """Return a pattern of the longest of some names, with common beginnings said once."""
    ends, rest = "" in names, [name for name in names if name]
    by_first: dict[str, list[str]] = {}
    for name in rest:
        by_first.setdefault(name[0], []).append(name[1:])
    branches = [re.escape(first) + _any_of(tails) for first, tails in by_first.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if ends else ''}"
