r"""Numbers as people write them: E notation, repeating decimals, digits in a base, times.

    3.2e-4    0.1\overline{6}    0.\dot{1}4285\dot{7}    0.(3)    0.333...    2112_6    3F_{16}

Each becomes an exact rational; a time such as `4:30 p.m.` stays one. Not here: plain numbers
(`tokens.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from katgym_envs.math.verifier.syntax import Clock
from katgym_envs.math.verifier.verdict import AnswerError, CapError

MAX_EXPONENT = 400
"""Decimal exponent of a number in E notation."""

_BASES = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_BASE = {word: base for base, word in enumerate(_BASES.split(), 2)}
_BASE |= {"binary": 2, "octal": 8, "hexadecimal": 16, "hex": 16}
_SUBSCRIPT = (
    r"_\s*(?:(?P<short>\d)(?!\d)"
    r"|\{\s*(?:\\(?:text|mathrm)\s*\{)?\s*\(?(?:base\s*)?(?P<long>\d{1,2}|" + "|".join(_BASE) + r")"
    r"\s*\)?\s*\}?\s*\})"
)
_PREFIXED = re.compile(
    r"0(?:[xX](?P<hex>[0-9A-Fa-f]+)|[bB](?P<binary>[01]+)|[oO](?P<octal>[0-7]+))(?![\w.])", re.ASCII
)
_PREFIXES = {"hex": 16, "binary": 2, "octal": 8}
_E_NOTATION = re.compile(
    r"(?P<digits>\d+(?:\.\d*)?|\.\d+)(?:e|E|\\(?:mathrm|text)\{[eE]\})(?P<exponent>[-+]?\d+|\{[-+]?\d+\})"
    r"(?![\w.^(])",
    re.ASCII,
)
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<start>\d*)(?:"
    r"\\(?:overline|bar)\s*(?:\{(?P<bar>\d+)\}|(?P<digit>\d))"
    r"|\\dot\s*\{?(?P<first>\d)\}?(?:(?P<middle>\d*)\\dot\s*\{?(?P<last>\d)\}?)?"
    r"|\((?P<brackets>\d+)\)"
    r"|(?<=\d)\s?(?P<dots>\.\.\.|…|\\[lc]?dots))(?![\d.])",
    re.ASCII,
)
_IN_BASE = re.compile(
    r"(?P<open>\()?\s*(?:\\(?:text|mathrm)\s*\{)?(?P<digits>(?:\d[0-9A-Z]*|[0-9A-Z]{2,})(?:\.[0-9A-Z]+)?)\}?\s*"
    rf"(?(open)\))\s*(?:{_SUBSCRIPT}|(?:\\text\s*\{{)?\s*\(?(?:in )?base\s*\}}?\s*"
    rf"(?P<spelled>\d+|{'|'.join(_BASE)})\s*\)?\}}?)",
    re.ASCII,
)


_CLOCK = re.compile(
    r"(\d{1,2})(?:\s*:\s*(\d\d)(?:\s*:\s*(\d\d))?)?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Numerals:
    """Which of two common readings a text is given.

    `1,234` is a number or a list, `2e-3` a number or a formula with Euler's e, `0.1(6)` a repeating
    decimal or a product.
    """

    has_thousands: bool = True
    has_exponents: bool = True
    has_periods: bool = True


def read_numeral(text: str, position: int, numerals: Numerals) -> tuple[str, int] | None:
    """Return a rational as `Fraction` reads it, and where it ends; None where none of these is.

    Behind one in another base than ten stand a `#` and the base.
    """
    if (match := _PREFIXED.match(text, position)) and match.lastgroup:
        base = _PREFIXES[match.lastgroup]
        return f"{_in_base(match[match.lastgroup].upper(), base)}#{base}", match.end()
    if match := _IN_BASE.match(text, position):
        name = match["short"] or match["long"] or match["spelled"]
        base = _BASE.get(name) or int(name)
        if (value := _in_base(match["digits"], base)) is not None:
            return f"{value}#{base}" if base != 10 else str(value), match.end()
    if match := _E_NOTATION.match(text, position):
        exponent = match["exponent"].strip("{}")
        if abs(int(exponent[:6])) > MAX_EXPONENT:
            raise CapError(f"a number has an exponent over {MAX_EXPONENT}")
        if numerals.has_exponents:
            return f"{match['digits']}e{exponent}", match.end()
    match = _REPEATING.match(text, position)
    if match is None or (match["brackets"] and not numerals.has_periods):
        return None
    start = match["start"]
    period = match["bar"] or match["digit"] or match["brackets"]
    if match["first"]:
        period = match["first"] + (match["middle"] or "") + (match["last"] or "")
    if match["dots"]:
        start, period = _find_period(start)
    value = Fraction(int((match["whole"] or "0") + start))
    value += Fraction(int(period), 10 ** len(period) - 1)
    return str(value / 10 ** len(start)), match.end()


def read_clock(text: str) -> Clock | None:
    """Read `4:30 p.m.`, `9 a.m.` and `12:30`; a ratio such as `3:2` is none."""
    match = _CLOCK.fullmatch(re.sub(r"\\(?:text|mathrm|textrm)\s*\{([^{}]*)\}", r"\1", text))
    if match is None or not (match[2] or match[4]):
        return None
    parts = tuple(int(part or 0) for part in (match[1], match[2], match[3] or None) if part)
    if any(part > 59 for part in parts[1:]):
        return None
    parts = parts if len(parts) > 1 else (*parts, 0)
    return Clock(parts, f"{match[4].lower()}m" if match[4] else "")


def _find_period(digits: str) -> tuple[str, str]:
    """Split `1666` into `1` and `6`: the shortest block that the digits end with at least twice."""
    for size in range(1, len(digits) // 2 + 1):
        period = digits[-size:]
        rest = digits
        while rest.endswith(period):
            rest = rest.removesuffix(period)
        if len(digits) - len(rest) >= 2 * size:
            return rest, period
    raise AnswerError("the digits before the dots do not repeat")


def _in_base(digits: str, base: int) -> Fraction | None:
    whole, _, rest = digits.partition(".")
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in whole + rest):
        return None
    if len(digits) > 128:
        raise CapError("a number has more than 128 digits")
    return Fraction(int(whole + rest, base), base ** len(rest))
