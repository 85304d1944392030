"""A tokenizer that remembers what short texts are encoded to.

A group's rollouts render the same system message, tools and task, and most turns begin alike.

    tokenizer = CachedTokenizer(tokenizer)
    tokenizer.encode("user\\nHello")     # the second time from memory

Not here: what is rendered (`chatml_renderer.py`, the `renderers` library).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MAX_TEXTS = 1024
MAX_CHARS = 1024
"""Longer texts are encoded each time: they seldom come twice, and would fill the memory."""


class CachedTokenizer:
    """Stands for a tokenizer of transformers, which must not change; attributes are its own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._encoded = lru_cache(maxsize=MAX_TEXTS)(
            lambda text, options: tuple(tokenizer.encode(text, **dict(options)))
        )
        self._called = lru_cache(maxsize=MAX_TEXTS)(self._call)

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":  # not set yet: it is being copied or unpickled
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tokenizer,)

    def encode(self, text: Any, *more: Any, **options: Any) -> list[int]:
        """Return what the tokenizer's `encode` does: a new list each time."""
        if more or not _is_kept(text, options):
            return list(self._tokenizer.encode(text, *more, **options))
        return list(self._encoded(text, tuple(sorted(options.items()))))

    def __call__(self, text: Any, *more: Any, **options: Any) -> Any:
        """Return what the tokenizer does when it is called: new lists each time."""
        if more or not _is_kept(text, options) or "return_tensors" in options:
            return self._tokenizer(text, *more, **options)
        kind, items = self._called(text, tuple(sorted(options.items())))
        return kind({name: list(values) for name, values in items})

    def _call(
        self, text: str, options: tuple[tuple[str, Any], ...]
    ) -> tuple[type, tuple[tuple[str, Any], ...]]:
        found = self._tokenizer(text, **dict(options))
        return type(found), tuple((name, tuple(values)) for name, values in found.items())


def _is_kept(text: Any, options: Mapping[str, Any]) -> bool:
    plain = all(isinstance(value, (bool, int, str)) or value is None for value in options.values())
    return isinstance(text, str) and len(text) <= MAX_CHARS and plain
