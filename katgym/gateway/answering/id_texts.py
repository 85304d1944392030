"""Prompts' ids as JSON, of which a session's next prompt encodes what is new.

Not here: what is asked with them (`streamed_completions.py`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

MIN_IDS = 4096
"""Prompts below are encoded whole: that costs less than to remember them."""
MAX_BYTES = 64 << 20
"""Of all that is remembered."""


class IdTexts:
    """Remembers the latest long prompt of each session; the sessions used longest ago go first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()

    def encode(self, session_id: str, ids: Sequence[int]) -> bytes:
        """Return ids as a JSON list."""
        if len(ids) < MIN_IDS:
            return msgspec.json.encode(list(ids))
        packed = ids if isinstance(ids, array) else array("i", ids)
        known, text = self._known.pop(session_id, (array("i"), b""))
        self._num_bytes -= _size(known, text)
        if known != packed[: len(known)]:
            known, text = array("i"), b""
        new = msgspec.json.encode(packed[len(known) :].tolist())[1:-1]
        text = b",".join(part for part in (text, new) if part)
        self._known[session_id] = packed, text
        self._num_bytes += _size(packed, text)
        while self._num_bytes > self._max_bytes:
            _, oldest = self._known.popitem(last=False)
            self._num_bytes -= _size(*oldest)
        return b"[" + text + b"]"


def _size(ids: array[int], text: bytes) -> int:
    return len(text) + ids.itemsize * len(ids)
