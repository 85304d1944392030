"""Server-sent events: how they are written, and how text is cut into them.

Not here: which events an API sends (one module each).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

MAX_PIECE = 256
"""Characters of one event's text."""


def event(data: Any, *, name: str = "") -> bytes:
    """Return one event; data: a JSON value, or a string that stands as it is."""
    content = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + content + b"\n\n"


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces; nothing for none."""
    for start in range(0, len(text), MAX_PIECE):
        yield text[start : start + MAX_PIECE]
