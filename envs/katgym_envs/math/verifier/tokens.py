r"""Cuts a cleaned text into tokens, under a cap on the digits of a number.

Only characters and commands listed here pass; everything else is an `AnswerError`. Nothing is ever
handed to `eval`, `sympify` or `parse_expr`.

Not here: cleaning a text (`spelling.py`), what the tokens mean (`expressions.py`, `answers.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from katgym_envs.math.verifier.numerals import Numerals, read_numeral
from katgym_envs.math.verifier.spelling import BODY, WORDS_OF
from katgym_envs.math.verifier.verdict import AnswerError, CapError
from katgym_envs.math.verifier.vocabulary import (
    ALIASES,
    DECORATIONS,
    FONTS,
    FUNCTIONS,
    GREEK,
    REMARKS,
    SHORT_WORDS,
    STRUCTURE,
    UNIT_WORDS,
)

MAX_DIGITS = 128
"""Digits in one number."""

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+\.\d+|\d+\.(?![\d.])|\d+|\.\d+)"
    r"|\\math(?:bf|it|sf|tt)\s*\{(?P<letter>[A-Za-z])\}"
    r"|\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|hbox|rm|operatorname\*?)\s*"
    rf"\{{(?P<text>{BODY})\}}"
    r"|\\math(?:bb|bf|cal|rm)\s*(?:\{(?P<reals>[RZQNC])\}|(?P<field>[RZQNC])\b)"
    r"|\\begin\s*\{(?P<begin>[pbB]?(?:small)?matrix|array|cases|dcases|aligned)\}"
    r"(?:\s*\{[lcr|@{}\s]*\})?"
    r"|\\end\s*\{(?P<end>[pbB]?(?:small)?matrix|array|cases|dcases|aligned)\}"
    r"|\\(?P<row>\\)(?:\[[\d.a-z]*\])?"
    r"|\\(?P<escaped>[{}%$|#&])"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<char>['@-]|[+*/^_=<>(){}\[\]|,;:!%&])",
    re.ASCII,
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Token:
    r"""One token; `kind` is number, letter, command, char, text, connector, reals, field, begin,
    end or row. A number's value is what `Fraction` reads.

    Example:
        Token("command", "frac")
    """

    kind: str
    value: str

    def is_char(self, *values: str) -> bool:
        return self.kind == "char" and self.value in values

    def is_command(self, *values: str) -> bool:
        return self.kind == "command" and self.value in values


def tokenize(text: str, numerals: Numerals) -> list[Token]:
    """Cut a cleaned text into tokens; `1,234` is a number only outside of brackets."""
    tokens: list[Token] = []
    depth = position = 0
    while position < len(text):
        is_open = numerals.has_thousands and depth == 0
        grouped = _THOUSANDS.match(text, position) if is_open else None
        match = grouped or _TOKEN.match(text, position)
        is_name = bool(tokens) and (tokens[-1].is_char("_", "^") or tokens[-1].kind == "letter")
        number = None if grouped or is_name else read_numeral(text, position, numerals)
        if number:
            position = number[1]
            new = [Token("based" if "#" in number[0] else "number", number[0])]
        elif match is None:
            raise AnswerError(f"unexpected {text[position]!r} at position {position}")
        elif grouped:
            position = match.end()
            new = [Token("number", grouped[0].replace(",", ""))]
        else:
            position = match.end()
            assert match.lastgroup is not None
            new = _read(match.lastgroup, match[match.lastgroup])
        if len(tokens) > 1 and tokens[-1].is_char("/") and tokens[-2].kind == "text":
            new = [Token("text", "".join(token.value for token in new))] if new else []
        for token in new:
            depth += token.is_char("(", "[", r"\{") - token.is_char(")", "]", r"\}")
            if token.kind == "number" and len(token.value) > MAX_DIGITS:
                raise CapError(f"a number has more than {MAX_DIGITS} digits")
        tokens += new
    return tokens


def as_words(text: str) -> str | None:
    r"""Return case-folded words when the text is nothing but words, else None.

    `even`, `\text{Even}` and `\text{not prime}` are words; `xy` and `x` are symbols.
    """
    inner = re.fullmatch(WORDS_OF + r"\s*", text)
    words = plain_words(inner[1] if inner else text)
    if words is None or inner:
        return words
    parts = re.split(r"[ -]", words)
    is_prose = all(len(part) > 3 or part in SHORT_WORDS for part in parts) or (
        len(parts) > 1 and any(len(part) > 3 for part in parts)
    )
    return words if is_prose and not (FUNCTIONS | GREEK) & set(parts) else None


def plain_words(text: str) -> str | None:
    r"""Return letters, hyphens and single spaces, case-folded; None with anything else in it.

    Text commands are opened: `\text{not }\text{prime}` has two words.
    """
    text = re.sub(WORDS_OF, r"\1", text)
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text.strip().rstrip("."))
    if not re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text):
        return None
    words = re.sub(r"^(?:an?|the) (?=[a-z]{3})", "", " ".join(text.casefold().split()))
    return "does not exist" if words == "dne" else words


def open_text(text: str) -> str:
    r"""Return the inside of a text command that is the whole answer, as in `\text{13}`."""
    inner = re.fullmatch(WORDS_OF, text)
    return inner[1].strip() if inner else text


def _read(kind: str, value: str) -> list[Token]:
    if kind == "space":
        return []
    if kind == "word":
        return _read_word(value)
    if kind == "text":
        return _read_text(value)
    if kind in ("reals", "field"):
        return [Token("reals" if value == "R" else "field", value)]
    if kind == "escaped":
        return [Token("char", "%" if value == "%" else "|" if value == "|" else "\\" + value)]
    if kind == "command":
        name = ALIASES.get(value, value)
        if name in ("and", "or"):
            return [Token("connector", name)]
        if name in ("<", ">", "*", "|", "=", ":", "[", "]", r"\{", r"\}"):
            return [Token("char", name)]
        if name in FONTS:
            return []
        if name in FUNCTIONS | STRUCTURE | GREEK | DECORATIONS:
            return [Token("command", name)]
        raise AnswerError(f"the command \\{name} is not supported")
    return [Token(kind, value.removesuffix("."))]


def _read_text(value: str) -> list[Token]:
    word = value.strip()
    name = ALIASES.get(word, word)
    if word in (",", r"\%", r"\$"):
        return [Token("char", word.removeprefix("\\") if word != r"\$" else word)]
    if word in ("or", "and"):
        return [Token("connector", word)]
    if name in FUNCTIONS and name not in ("sec", "min"):
        return [Token("command", name)]
    if word in ("e", "i"):
        return [Token("letter", word)]
    if re.fullmatch(r"\d+(?:\.\d+)?", word, re.ASCII):
        return [Token("number", word)]
    if match := re.fullmatch(r"(or|and)\s+(.*)|(.*)\s+(or|and)", word):
        connector = Token("connector", match[1] or match[4])
        rest = _read_text(match[2] or match[3])
        return [connector, *rest] if match[1] else [*rest, connector]
    if word.endswith((",", ";")):
        return [*_read_text(word[:-1]), Token("char", word[-1])]
    return [Token("text", word)] if word else []


def _read_word(word: str) -> list[Token]:
    if word in ("or", "and"):
        return [Token("connector", word)]
    name = ALIASES.get(word, word)
    if name in FUNCTIONS or name in GREEK or name in ("pi", "infty"):
        return [Token("command", name)]
    if len(word) > 3 or word.lower() in UNIT_WORDS | REMARKS:
        return [Token("text", word)]
    return [Token("letter", letter) for letter in word]
