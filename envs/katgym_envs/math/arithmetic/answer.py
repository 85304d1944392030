r"""Reads the one number a final message commits to.

The places are tried in this order, and the first that occurs in the message decides:

1. `\boxed{42}`
2. `Answer: 42` (also `The answer is 42`), with nothing but the number on its line
3. the message is nothing but the number
4. the message ends in `is 42`, `equals 42` or `= 42` and holds no other number

A number is an integer, a decimal, or a fraction `7/3` or `\frac{7}{3}`, with an optional sign,
`1,000` separators, and `$`, `*` or a full stop around it. A message that names several answers
("41 or 42", a box and an `Answer:` that differ, another number behind the answer) commits to none.

Not here: answers that are not numbers (`katgym_envs.math.verifier`).
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 400
"""A longer numerator or denominator is no answer; results have at most ten digits."""

_NUMBER_TEXT = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
_NUMBER = re.compile(rf"([-+]?)\s{{0,3}}({_NUMBER_TEXT})(?:\s{{0,3}}/\s{{0,3}}([0-9]+))?")
_FRAC = re.compile(r"\\[dt]?frac\s*\{\s*([-+]?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_MARKER = re.compile(r"\banswer\b\W{0,4}(?::|=|\bis\b:?)\s*([^\n]*)", re.IGNORECASE)
_ENDING = re.compile(r"(?:\bis|\bequals|=)\s*([^\n=]*)$", re.IGNORECASE)
MAX_ENDING = 200
"""Characters at the end searched for `is 42`; keeps the search linear in the message."""
_DECORATION = " \t\r\n$*`"


def read_answer(message: str) -> Fraction | None:
    r"""Return the number the message commits to, or None.

    Example:
        >>> read_answer("So we get:\nAnswer: -7/3.")
        Fraction(-7, 3)
        >>> read_answer("41 or 42") is None
        True
    """
    text = message.replace("−", "-").strip()
    boxes = list(_BOXED.finditer(text))
    markers = [match for match in _MARKER.finditer(text) if _has_digit(match[1])]
    if boxes or markers:
        named = [read_number(match[1]) for match in boxes or markers]
        if boxes:  # `the answer is 6 * 7 = \boxed{42}` names one number, in the box
            named += [n for match in markers if (n := read_number(match[1])) is not None]
        behind = text[(boxes or markers)[-1].end() :]
        named += [read_number(match[0]) for match in _NUMBER.finditer(behind)]
        return named[0] if len(set(named)) == 1 else None
    whole = read_number(text)
    if whole is not None:
        return whole
    tail_start = max(0, len(text) - MAX_ENDING)
    ending = _ENDING.search(text, tail_start)
    if ending is None or _has_digit(text[: ending.start()]):
        return None
    return read_number(ending[1])


def read_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number and nothing else, or None."""
    text = _FRAC.sub(r"\1/\2", text.strip(_DECORATION))
    match = _NUMBER.fullmatch(text.removesuffix(".").strip(_DECORATION))
    if match is None or max(len(part or "") for part in match.groups()) > MAX_DIGITS:
        return None
    sign, number, denominator = match.groups()
    if denominator is not None and not int(denominator):
        return None
    value = Fraction(number.replace(",", "")) / int(denominator or 1)
    return -value if sign == "-" else value


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)
