r"""Units behind a value: `12\text{ cm}^2`, `5 \mathrm{ft}/\mathrm{sec}`, `18\text{ integers}`.

A unit is a run of words that no remark (`or`, `about`, `not`, ...) belongs to; a word that is not
listed is what is counted, or says more of it. Units are compared by name: nothing is converted.

Not here: cutting the text into words (`tokens.py`); the words (`vocabulary.py`, `measures.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from katgym_envs.math.verifier.measures import (
    ABBREVIATIONS,
    ALIKE,
    CHAINS,
    COMPASS,
    CURRENCIES,
    FILLERS,
    GAINS,
    LOSSES,
    SENSES,
    UNITS,
)
from katgym_envs.math.verifier.syntax import Unit
from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError
from katgym_envs.math.verifier.vocabulary import MAGNITUDES, REMARKS

MAX_WORDS = 5
_PART = re.compile(
    r"(°?[A-Za-z]+(?:_\d+[A-Za-z]*)*\.?|\$|%)\s*(?:\^\s*\{?\s*(-?\d+)\s*\}?)?|(/)|[\s()·*,-]+"
)
_COMPASS = "|".join(COMPASS.values())
_POWER = r"(?:\s*\^\s*(?:-?\d|\{\s*-?\d\s*\}))?"
_NAMED = {unit for chain in CHAINS for unit in chain} & ABBREVIATIONS
_ATOM = rf"(?:{'|'.join(sorted(ABBREVIATIONS, key=len, reverse=True))}){_POWER}"
_GUESS = re.compile(
    r"(?P<value>[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+|\\d?frac\s*\{\d+\}\s*\{\d+\}"
    r"|\d+\\d?frac\s*\{\d+\}\s*\{\d+\})(?:\s*(?:\\times|\\cdot)\s*10\s*\^\s*(?:\d|\{-?\d+\}))?)"
    rf"\s*(?P<unit>{_ATOM}(?:(?:\s*(?:/|\\cdot(?![A-Za-z])|\*)\s*|\s+){_ATOM}){{0,3}})",
    re.ASCII,
)

_MEASURE = re.compile(
    rf"(\d+(?:\.\d+)?)\s*({'|'.join(sorted(_NAMED, key=len, reverse=True))})(?![A-Za-z])", re.ASCII
)
_MEASURES = re.compile(rf"(?:{_MEASURE.pattern}(?:\s*,?\s*(?:and\s+)?(?=\d)|$)){{2,4}}", re.ASCII)

_METRES = [(("m", 2),), (("m", 3),), (("m", 1), ("s", -1)), (("m", 1), ("s", -2))]
"""Units of single letters that are no product of symbols beside a gold without a unit."""


def split_unit(tokens: list[Token]) -> tuple[list[Token], Unit | None, int]:
    r"""Take a currency from the front, or the words and their powers from the end.

    The last value is the power of ten of a `million` or `percent` among them.
    """
    for start in (0, 1):
        sign = tokens[start] if start + 1 < len(tokens) else Token("char", "")
        name = "$" if sign.is_char(r"\$") else UNITS.get(_singular(sign.value))
        if name in CURRENCIES and (start == 0 or tokens[0].is_char("-", "+")):
            rest, unit, power = split_unit(tokens[:start] + tokens[start + 1 :])
            return rest, _add_currency(name, unit), power
    if not tokens:
        raise AnswerError("a unit without a value")
    if tokens[-1].is_char(r"\$"):
        return tokens[:-1], Unit((("$", 1),)), 0
    start = len(tokens)
    while start and _belongs(tokens, start - 1):
        start -= 1
    while start < len(tokens) and tokens[start].kind != "text":
        start += 1
    if start == len(tokens):
        return tokens, None, 0
    text = " ".join("·" if token.kind == "command" else token.value for token in tokens[start:])
    text = re.sub(r"\s*_\s*\{?\s*(\d+)\s*\}?", r"_\1", text.replace("{ - ", "{-"))
    text = re.sub(r"(_\d) (?=[A-Z])", r"\1", text)  # `H_2 O` is one word
    if tokens[max(0, start - 2) : start] == [Token("char", "^"), Token("command", "circ")]:
        start, text = start - 2, "°" + text
    text = re.sub(r"^percent(?:age)? points?\b", "percentagepoint", text)
    power = MAGNITUDES.get(text.split()[0].lower(), 0)
    text = text.partition(" ")[2] if power else text
    return tokens[:start], read_unit(text) if text else None, power


def read_unit(text: str) -> Unit | None:
    """Return a unit in its one spelling, None of fillers; raises `AnswerError` for no unit."""
    text = re.sub(r"\bin (?=total\b)", "", text.replace(r"\cdot", "·"))
    text = re.sub(rf"\b(?:to|towards?|from|on) the (?=left|right|{_COMPASS})", "", text)
    text = re.sub(
        r"\b([NSEW]) of ([NSEW])\b", lambda m: f"{COMPASS[m[1]]} of {COMPASS[m[2]]}", text
    )
    text = re.sub(rf"\b({_COMPASS}) of ({_COMPASS})\b", r"\1of\2", text)
    text = re.sub(r"\b(?:counter|anti)-?clockwise", "counterclockwise", text)
    text = re.sub(r"^°\s*([NSEW])$", lambda match: "° " + COMPASS[match[1]], text)
    text = re.sub(r"^(?:°|degrees?) ?(?=(?:[CFK]|[Cc]elsius|[Ff]ahrenheit)\b)", "°", text)
    text = re.sub(r"^° ?(?![CFKcf](?:\b|elsius|ahrenheit))", "degree ", text)
    text = re.sub(r"\bsq(?:uare)?\.? ([A-Za-z]+)|([A-Za-z]+) squared\b", r"\1\2^2", text)
    text = re.sub(r"\bcu(?:bic)?\.? ([A-Za-z]+)|([A-Za-z]+) cubed\b", r"\1\2^3", text)
    text = re.sub(r"(?:^| )per ", " / ", text)
    words = [word for word in re.findall(r"[A-Za-z]+", text) if word.lower() not in FILLERS]
    is_odd = bool(_PART.sub("", text).strip(".")) or len(words) > MAX_WORDS
    if is_odd or any({word.lower(), _singular(word)} & (REMARKS - SENSES) for word in words):
        raise AnswerError(f"{text!r} is not a unit")
    parts: dict[str, int] = {}
    others: set[str] = set()
    sign = 1
    for match in _PART.finditer(text):
        if match[3]:
            sign = -1
        elif match[1] and match[1].lower() not in FILLERS:
            name = _singular(match[1].rstrip("."))
            known = UNITS.get(name)
            if known is None and sign > 0:
                others.add(name)
                continue
            for part in (known or name).split("/"):
                parts[part] = parts.get(part, 0) + sign * int(match[2] or 1)
                sign = -1 if "/" in (known or "") else sign
    found = Unit(tuple(sorted(parts.items())), frozenset(others))
    return None if found == Unit() else found


def guess_unit(text: str) -> str | None:
    r"""Return `25 m^2` with its unit in a text command, `5 ft 6 in` with both; None for others."""
    text = re.sub(r"\\text\{\s*([a-z]+)\s*\}", r"\1", text)
    if _MEASURES.fullmatch(text):
        return _MEASURE.sub(r"\1\\text{ \2}", text)
    match = _GUESS.fullmatch(text)
    if match is None:
        return None
    return rf"{match['value']}\text{{ {match['unit'].replace('*', '·')}}}"


def is_same_unit(answer: Unit | None, gold: Unit | None) -> bool:
    """Tell whether what stands beside two equal values lets them be the same.

    A unit may be left out, but for one that is guessed. Other words may be left out on either side,
    not be different: `3 marbles` is `3 red marbles`, `3 blue marbles` is not. A word with an
    opposite (`north`, `loss`) has to stand on both sides; only beside a gold that has no such word
    may a gain be said of a number, and anything but a loss of one that stands alone.
    """
    senses = [unit.words & SENSES if unit else frozenset() for unit in (answer, gold)]
    if senses[0] != senses[1]:
        may_add = not senses[1] and not senses[0] & LOSSES
        if not may_add or (gold is not None and not senses[0] <= GAINS):
            return False
    if gold is None and answer is not None and not answer.words <= SENSES:
        is_money = any(name in CURRENCIES for name, _ in answer.parts)
        if is_money:  # `\$5\text{ apples}`
            return False
    if answer is None or gold is None:
        if gold is not None or answer is None or not answer.is_guessed:
            return gold is None or not gold.is_guessed
        return any(len(name) > 1 for name, _ in answer.parts) or answer.parts in _METRES
    names = [dict(unit.parts) for unit in (answer, gold)]
    for name, others in ALIKE.items():
        for here, there in (names, names[::-1]):
            other = next((one for one in others if one in there and one not in here), None)
            if name in here and other:
                here[other] = here.pop(name)
    if names[0] != names[1]:
        return False
    a, g = answer.words - SENSES, gold.words - SENSES
    return a <= g or g <= a


def split_measures(tokens: Sequence[Token]) -> list[list[Token]]:
    r"""Return the pieces of `2\text{ hours and }30\text{ minutes}`; nothing for anything else.

    Each piece is a number and a unit smaller than the one before.
    """
    pieces: list[list[Token]] = []
    names: list[str] = []
    position = 0
    while position < len(tokens):
        if pieces:
            position += tokens[position].is_char(",")
            position += tokens[position : position + 1] == [Token("connector", "and")]
        piece = list(tokens[position : position + 2])
        if [token.kind for token in piece] != ["number", "text"]:
            return []
        pieces.append(piece)
        names.append(UNITS.get(_singular(piece[1].value.strip().rstrip(".")), ""))
        position += 2
    for chain in CHAINS:
        places = [chain.index(name) for name in names if name in chain]
        if 1 < len(places) == len(names) and places == sorted(set(places)):
            return pieces
    return []


def _add_currency(name: str, unit: Unit | None) -> Unit:
    if unit is None:
        return Unit(((name, 1),))
    amounts = [part for part, power in unit.parts if part in CURRENCIES or power > 0]
    if not amounts:
        return Unit(tuple(sorted((*unit.parts, (name, 1)))), unit.words)
    if amounts != [name] and amounts[0] not in ALIKE.get(name, ()):
        raise AnswerError("an amount of money with another unit")
    return unit


def _singular(word: str) -> str:
    """Return a known spelling of a unit as it is, any other word in lower case and singular."""
    if word in UNITS:
        return word
    word = word.lower()
    if re.fullmatch("(?:up|down|left|right|north|south|east|west)wards?", word):
        return word.partition("ward")[0]
    if word in UNITS or not word.endswith("s") or word.endswith("ss"):
        return word
    if len(word) <= 3 and word[:-1] not in UNITS:
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if re.search("(?:x|ch|sh|ss|zz)es$", word) else word[:-1]


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
            has_before = tokens[position - 2].is_char("^", "_")
        return has_before and after is not None and after.kind == "text"
    if token.is_char("^", "_"):
        return before is not None and before.kind == "text"
    if token.kind == "number" or token.is_char("{", "-", "}"):
        for start in range(position, max(-1, position - 5), -1):
            if tokens[start].is_char("^", "_"):
                return start > 0 and tokens[start - 1].kind == "text"
            if not (tokens[start].kind == "number" or tokens[start].is_char("{", "-", "}")):
                return False
    return False
