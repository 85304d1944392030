"""The letters of a string literal, each with the bytes of the source that stand for it.

Not here: changing them (`literals.py`, `rewrite.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.parse_source import parse_source
from katgym_plugin_swe_factory.canaries.literals import ESCAPE, string_body


@dataclass(frozen=True, slots=True)
class Unit:
    """One letter of a string's value.

    Example:
        Unit(start=17, end=19, char="\\n", token=0, is_raw=False)
    """

    start: int
    end: int
    """Bytes of the source."""
    char: str
    token: int
    """Which of the literals that stand side by side."""
    is_raw: bool


def text_units(text: ModuleText, start: int, end: int) -> list[Unit] | None:
    """Return the letters of the string between two offsets; None for bytes and formatted strings.

    An empty string has no letters: [].
    """
    units: list[Unit] = []
    for number, token in enumerate(text.string_tokens(start, end)):
        body = string_body(text.source, *token)
        prefix = text.source[token[0] : token[1]].partition(b"'")[0].partition(b'"')[0]
        if body is None or b"b" in prefix.lower():
            return None
        for first, last, char in _letters(text.source, *body):
            units.append(Unit(first, last, char, number, body[2]))
    return units


def _letters(source: bytes, start: int, end: int, is_raw: bool) -> Iterator[tuple[int, int, str]]:
    position = start
    while position < end:
        length, char = _letter(source, position, end, is_raw)
        if char:
            yield position, position + length, char
        position += length


def _letter(source: bytes, position: int, end: int, is_raw: bool) -> tuple[int, str]:
    """Return how many bytes the next letter takes, and the letter; "" for a line that goes on."""
    if source[position : position + 2] == b"\r\n":
        return 2, "\n"
    escape = None if is_raw else ESCAPE.match(source, position, end)
    if escape is not None:
        written = escape[0].decode()
        return len(escape[0]), ast.literal_eval(parse_source(f'"""{written}"""', mode="eval"))
    head = source[position]
    length = 1 if head < 0x80 else 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    return length, source[position : position + length].decode()
