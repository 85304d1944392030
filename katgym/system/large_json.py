"""JSON of large values in small steps: no step keeps the other threads of a process waiting long.

An encoder of one call holds Python's lock until it is done, which for 30 MiB is a fifth of a
second. Not here: values of common size, for which `msgspec.json` is quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

STEP = 1 << 18
"""Characters, or numbers, encoded at a time."""


def encode_in_steps(value: Any) -> bytes:
    """Return a value as JSON; called in a thread, it lets others run."""
    return b"".join(_pieces(value))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > STEP:
        yield b'"'
        for start in range(0, len(value), STEP):
            yield msgspec.json.encode(value[start : start + STEP])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        yield b"{"
        for i, (name, entry) in enumerate(value.items()):
            yield (b"," if i else b"") + msgspec.json.encode(name) + b":"
            yield from _pieces(entry)
        yield b"}"
    elif isinstance(value, list | tuple) and value and type(value[0]) is int:
        yield b"["
        for start in range(0, len(value), STEP):
            part = msgspec.json.encode(value[start : start + STEP])[1:-1]
            yield (b"," if start else b"") + part
        yield b"]"
    elif isinstance(value, list | tuple):
        yield b"["
        for i, entry in enumerate(value):
            yield b"," if i else b""
            yield from _pieces(entry)
        yield b"]"
    else:
        yield msgspec.json.encode(value)
