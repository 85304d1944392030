"""Text of tools and untrusted programs made fit for a prompt: shortened, nothing hidden.

Not here: running tools (`scheduler.py`) and programs (`katgym.sandbox`).
"""

from __future__ import annotations

import math
import re
from typing import Any

_ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def readable_text(text: str) -> str:
    r"""Make control characters visible: no program can move the cursor or hide text with them.

    Newline and tab stay, "\r\n" becomes a newline; any other control character, other line breaks,
    and what changes the direction of text become their escape (`\x1b`, `\u2028`, `\u202e`).
    """
    return _ESCAPES.sub(_escape, text.replace("\r\n", "\n"))


def readable_line(text: str) -> str:
    r"""Return a name or another single line like `readable_text`; `\n` is escaped as well."""
    return _ESCAPES.sub(_escape, text).replace("\n", "\\n")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def tell_non_finite(value: Any) -> Any:
    """Return JSON data with texts ("NaN", "Infinity", "-Infinity") for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: tell_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tell_non_finite(item) for item in value]
    return value


def shorten(text: str, max_chars: int) -> str:
    """Keep the first and the last half of `max_chars`; what is left out is counted in its place."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars // 2, max_chars - max_chars // 2
    return f"{text[:head]}\n[{len(text) - max_chars} characters left out]\n{text[-tail:]}"


def truncate_output(text: str, max_bytes: int) -> tuple[str, int]:
    """Keep head and tail of `text` within `max_bytes` of UTF-8, return it and the bytes left out.

    The note between the two halves is not counted; no character is cut in half.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode("utf-8"), 0
    head = data[: max_bytes - max_bytes // 2].decode("utf-8", "ignore")
    tail = data[len(data) - max_bytes // 2 :].decode("utf-8", "ignore")
    omitted = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {omitted} bytes left out ...]\n{tail}", omitted
