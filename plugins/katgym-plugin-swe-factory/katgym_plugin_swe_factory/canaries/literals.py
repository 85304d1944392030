"""Wrong values for the literals of a test: numbers, text, booleans, None.

A changed literal keeps the form of the old one (quotes, prefix, base, line breaks). Each function
returns (kind, edits) pairs. Not here: containers (`containers.py`), what is no literal
(`assertions.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from katgym_envs.swe.canaries.canary import Edit, pick
from katgym_envs.swe.canaries.module_text import ModuleText
from katgym_envs.swe.parse_source import parsing

Change = tuple[str, tuple[Edit, ...]]
ESCAPE = re.compile(
    rb"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{1,3}|\r\n|.)",
    re.DOTALL,
)
_OPENING = re.compile(rb"([A-Za-z]*)(\"\"\"|'''|\"|')")
_BASES = {"0x": 16, "0o": 8, "0b": 2}
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
NUM_TEXT_CHANGES = 3


def change_literal(text: ModuleText, node: ast.Constant, *, is_expected: bool) -> Iterator[Change]:
    """Yield wrong values for one literal."""
    start, end = text.span(node)
    value = node.value
    if value is True or value is False:
        yield "boolean", (Edit(start, end, (str(not value),)),)
    elif value is None:
        for other in ("0", "False", "''"):
            yield "none", (Edit(start, end, (other,)),)
    elif isinstance(value, (int, float, complex)):
        for number in dict.fromkeys(_other_numbers(text.source[start:end], start)):
            yield "number", (Edit(start, end, (number,)),)
    elif isinstance(value, (str, bytes)):
        yield from _text_changes(text, start, end)
    if is_expected and value is not None and b"\n" not in text.source[start:end]:
        yield "to_none", (Edit(start, end, ("None",)),)


def _other_numbers(old: bytes, seed: int) -> Iterator[str]:
    """Yield numbers near the old one: its neighbours, and one digit mistyped."""
    text = old.decode()
    base = _BASES.get(text[:2].lower(), 10)
    if text.isdigit():
        number = int(text)
        yield str(number + 1)
        yield str(number - 1 if number > 0 else 2)
        if number >= 10:
            yield _mistype(text, pick(old, seed) % len(text), base)
        return
    if base == 10:
        mantissa = [i for i, _ in enumerate(re.split("[eEjJ]", text)[0]) if text[i].isdigit()]
        first = next((i for i in mantissa if text[i] != "0"), mantissa[0])
        places = (first, mantissa[-1])
    else:
        places = (len(text) - 1, len(text) - 1)
    for place in places:
        other = _mistype(text, place, base)
        # The last digit of a long float may change nothing.
        with parsing:
            is_other = ast.literal_eval(other) != ast.literal_eval(text)
        if is_other:
            yield other


def _mistype(text: str, index: int, base: int) -> str:
    """Return a number with another digit at one place; the first one does not become 0."""
    digit = int(text[index], base)
    if base != 10:
        other = f"{(digit + 1) % base:x}"
    else:
        other = "0" if digit == 1 and index > 0 else str(digit % 9 + 1)
    return text[:index] + other + text[index + 1 :]


def _text_changes(text: ModuleText, start: int, end: int) -> Iterator[Change]:
    tokens = text.string_tokens(start, end)
    bodies = [body for body in (string_body(text.source, *token) for token in tokens) if body]
    if not bodies:
        return
    if all(first == last for first, last, _ in bodies):
        first = bodies[0][0]
        yield "text_fill", (Edit(first, first, ("a",)),)
        return
    # Letters and digits first: a space or a bracket may mean nothing.
    places = [p for body in bodies for p in _places(text.source, *body)]
    words = [p for p in places if chr(text.source[p]).isalnum()] or places
    if not words:
        return
    seed = (start, end)
    made = 0
    for turn in range(8):
        place = words[pick(*seed, turn) % len(words)]
        change = _TEXT_CHANGES[(pick(*seed) + turn) % len(_TEXT_CHANGES)](text.source, place)
        if change is not None:
            yield change
            made += 1
        if made == NUM_TEXT_CHANGES:
            return


def string_body(source: bytes, start: int, end: int) -> tuple[int, int, bool] | None:
    """Return the span between the quotes and whether it is raw; None for a formatted string."""
    opening = _OPENING.match(source, start, end)
    if opening is None or b"f" in opening[1].lower():
        return None
    return opening.end(), end - len(opening[2]), b"r" in opening[1].lower()


def _places(source: bytes, start: int, end: int, is_raw: bool) -> list[int]:
    """Return the offsets of printable ASCII characters that are not part of an escape."""
    places = []
    position = start
    while position < end:
        if source[position : position + 1] == b"\\":
            escape = ESCAPE.match(source, position)
            length = len(escape[0]) if escape and not is_raw else 2
            position += length
            continue
        if 0x20 < source[position] < 0x7F and source[position] not in b"'\"{}":
            places.append(position)
        position += 1
    return places


def _other_letter(source: bytes, place: int) -> Change | None:
    old = source[place : place + 1]
    if old.isdigit():
        new = str(int(old) % 9 + 1)
    elif old.isalpha():
        new = chr(_LETTERS[(_LETTERS.index(old.lower()) + 1 + place % 5) % 26])
        new = new.upper() if old.isupper() else new
    else:
        new = "-" if old != b"-" else "_"
    return "text_letter", (Edit(place, place + 1, (new,)),)


def _other_case(source: bytes, place: int) -> Change | None:
    old = chr(source[place])
    if not old.isalpha():
        return None
    return "text_case", (Edit(place, place + 1, (old.swapcase(),)),)


def _transpose(source: bytes, place: int) -> Change | None:
    pair = source[place : place + 2]
    if not pair.isalnum() or len(pair) < 2 or pair[0] == pair[1] or not pair.isascii():
        return None
    return "text_transpose", (Edit(place, place + 2, (pair[::-1].decode(),)),)


_TEXT_CHANGES: tuple[Callable[[bytes, int], Change | None], ...] = (
    _other_letter,
    lambda source, place: ("text_drop", (Edit(place, place + 1, ("",)),)),
    _transpose,
    lambda source, place: ("text_double", (Edit(place, place, (chr(source[place]),)),)),
    _other_case,
)
