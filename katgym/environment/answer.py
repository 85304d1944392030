"""Answers that a response gives between tags. Not here: whether one is right (each env)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def tagged_answers(response: str) -> Iterator[str]:
    """Yield what stands between `<answer>` and `</answer>`, in time linear in the response.

    A tag that is opened twice is open from the first.

    Example:
        >>> list(tagged_answers("It is <answer>7</answer>."))
        ['7']
    """
    start: int | None = None
    for tag in _TAG.finditer(response):
        if not tag[1]:
            start = tag.end() if start is None else start
        elif start is not None:
            yield response[start : tag.start()]
            start = None
