r"""Units behind a value: `12\text{ cm}^2`, `5 \mathrm{ft}/\mathrm{sec}`, `18\text{ integers}`.

A unit is a run of words that no remark (`or`, `about`, `not`, ...) belongs to; a word that is not
listed is what is counted. Units are compared by name: nothing is converted.

Not here: cutting the text into words (`tokens.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError
from katgym_envs.math.verifier.vocabulary import MAGNITUDES, REMARKS

MAX_WORDS = 4
_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "dm": "decimeter decimetre",
    "m": "meter metre", "km": "kilometer kilometre", "in": "inch inches", "ft": "foot feet",
    "yd": "yard", "mi": "mile", "g": "gram gm", "kg": "kilogram", "mg": "milligram", "lb": "pound",
    "oz": "ounce", "s": "sec second", "min": "minute", "h": "hr hour", "L": "l liter litre",
    "mL": "ml milliliter millilitre", "$": "dollar usd", "cent": "", "euro": "eur", "yen": "",
    "unit": "", "N": "newton", "J": "joule", "W": "watt", "Hz": "hertz", "degree": "deg",
    "radian": "rad", "mi/h": "mph", "km/h": "kph kmh kmph", "°C": "celsius", "°F": "fahrenheit",
}  # fmt: skip
_KNOWN = {word: unit for unit, words in _NAMES.items() for word in [unit, *words.split()]}
_CURRENCIES = {"$", "euro", "yen", "lb"}
_PART = re.compile(r"(°?[A-Za-z]+\.?|\$)\s*(?:\^\s*\{?\s*(-?\d+)\s*\}?)?|(/)|[\s()·*-]+")


def split_unit(tokens: list[Token]) -> tuple[list[Token], str | None, int]:
    r"""Take a currency from the front, or the words and their powers from the end.

    The last value is the power of ten of a `million` or `percent` among them.
    """
    for start in (0, 1):
        sign = tokens[start] if start + 1 < len(tokens) else Token("char", "")
        name = "$" if sign.is_char(r"\$") else _KNOWN.get(_singular(sign.value))
        if name in _CURRENCIES and (start == 0 or tokens[0].is_char("-", "+")):
            rest, unit, power = split_unit(tokens[:start] + tokens[start + 1 :])
            if unit not in (None, f"{name}^1"):
                raise AnswerError("an amount of money with another unit")
            return rest, f"{name}^1", power
    if not tokens:
        raise AnswerError("a unit without a value")
    if tokens[-1].is_char(r"\$"):
        return tokens[:-1], "$^1", 0
    start = len(tokens)
    while start and _belongs(tokens, start - 1):
        start -= 1
    while start < len(tokens) and tokens[start].kind != "text":
        start += 1
    if start == len(tokens):
        return tokens, None, 0
    text = " ".join("·" if token.kind == "command" else token.value for token in tokens[start:])
    text = text.replace("{ - ", "{-")
    if tokens[max(0, start - 2) : start] == [Token("char", "^"), Token("command", "circ")]:
        start, text = start - 2, "°" + text
    power = MAGNITUDES.get(text.split()[0].lower(), 0)
    text = text.partition(" ")[2] if power else text
    return tokens[:start], read_unit(text) if text else None, power


def read_unit(text: str) -> str:
    """Return the one spelling of a unit; raises `AnswerError` for what is no unit."""
    text = text.replace(r"\cdot", "·")
    words = re.findall(r"[A-Za-z]+", text)
    is_odd = not words or len(words) > MAX_WORDS or _PART.sub("", text).strip(".")
    if is_odd or any(_singular(word).lower() in REMARKS for word in words):
        raise AnswerError(f"{text!r} is not a unit")
    text = re.sub(r"\bsq(?:uare)?\.? ([A-Za-z]+)|([A-Za-z]+) squared", r"\1\2^2", text)
    text = re.sub(r"\bcu(?:bic)?\.? ([A-Za-z]+)", r"\1^3", text).replace(" per ", " / ")
    parts: dict[str, int] = {}
    nouns: list[str] = []
    sign = 1
    for match in _PART.finditer(text):
        if match[3]:
            sign = -1
        elif match[1]:
            name = _singular(match[1].rstrip("."))
            known = _KNOWN.get(name)
            if known is None and sign > 0:
                nouns.append(name)
                continue
            for part in (known or name).split("/"):
                parts[part] = parts.get(part, 0) + sign * int(match[2] or 1)
                sign = -1 if "/" in (known or "") else sign
    return " ".join(f"{u}^{n}" for u, n in sorted(parts.items())) or "counted " + nouns[-1]


def _singular(word: str) -> str:
    if word in _KNOWN:
        return word
    word = word.lower()
    is_plural = word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural and (len(word) > 3 or word[:-1] in _KNOWN) else word


def _belongs(tokens: Sequence[Token], position: int) -> bool:
    """Tell whether a token may be a part of a unit, looking at its neighbours."""
    token = tokens[position]
    if token.kind == "text":
        return True
    before = tokens[position - 1] if position else None
    after = tokens[position + 1] if position + 1 < len(tokens) else None
    is_power = before is not None and before.is_char("{")
    if (token.is_char("/", "-", "*") and not is_power) or token.is_command("cdot"):
        has_before = before is not None and (before.kind == "text" or before.is_char("}"))
        if before is not None and before.kind == "number" and position > 1:
            has_before = tokens[position - 2].is_char("^")
        return has_before and after is not None and after.kind == "text"
    if token.is_char("^"):
        return before is not None and before.kind == "text"
    if token.kind == "number" or token.is_char("{", "-", "}"):
        for start in range(position, max(-1, position - 5), -1):
            if tokens[start].is_char("^"):
                return start > 0 and tokens[start - 1].kind == "text"
            if not (tokens[start].kind == "number" or tokens[start].is_char("{", "-", "}")):
                return False
    return False
