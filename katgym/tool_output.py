"""Text of untrusted programs made fit for a prompt and a terminal: shortened, nothing hidden.

Not here: running the programs (`katgym.sandbox`).
"""

from __future__ import annotations

import re

_ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def readable_text(text: str) -> str:
    r"""Make control characters visible: no program can move the cursor or hide text with them.

    Newline and tab stay, "\r\n" becomes a newline; any other control character, and those that
    change the direction of text, become their escape (`\x1b`, `\u202e`).
    """

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _ESCAPES.sub(escape, text.replace("\r\n", "\n"))


def shorten(text: str, max_chars: int) -> str:
    """Keep the first and the last half of `max_chars`; what is left out is counted in its place."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars // 2, max_chars - max_chars // 2
    return f"{text[:head]}\n[{len(text) - max_chars} characters left out]\n{text[-tail:]}"
