r"""Cleans an answer's text and cuts it into tokens, under caps on its size.

Only characters and commands listed here pass; everything else is an `AnswerError`. Nothing is ever
handed to `eval`, `sympify` or `parse_expr`.

Not here: what the tokens mean (`expressions.py`, `answers.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from katgym_envs.math.verifier.verdict import AnswerError, CapError
from katgym_envs.math.verifier.vocabulary import (
    ALIASES,
    FUNCTIONS,
    GREEK,
    SHORT_WORDS,
    STRUCTURE,
    UNICODE,
    UNITS,
)

MAX_CHARS = 512
MAX_DEPTH = 24
"""Brackets inside brackets, of any kind."""
MAX_DIGITS = 128
"""Digits in one number."""

_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])"
    r"|(?<!\\)\\[,;:! ]|(?<!\\)~"
)
_THIN_SPACE_GROUPS = re.compile(r"(?<=\d)(?:\\,|\{,\}|\\!,|,\\!)(?=\d{3}(?!\d))", re.ASCII)
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{(?P<text>[^{}\\$]*)\}"
    r"|\\math(?:bb|bf|cal)\s*\{?(?P<reals>R)(?:\}|\b)"
    r"|\\begin\s*\{(?P<begin>[pb]matrix)\}"
    r"|\\end\s*\{(?P<end>[pb]matrix)\}"
    r"|\\(?P<row>\\)"
    r"|\\(?P<escaped>[{}%$|])"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<char><=|>=|[-+*/^_=<>(){}\[\]|,;:!%&])",
    re.ASCII,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?", re.ASCII)
_WRAPPERS = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*[^$\\])\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    r"""One token; `kind` is number, letter, command, char, text, connector, reals, begin, end, row.

    Example:
        Token("command", "frac")
    """

    kind: str
    value: str

    def is_char(self, *values: str) -> bool:
        return self.kind == "char" and self.value in values

    def is_command(self, *values: str) -> bool:
        return self.kind == "command" and self.value in values


def clean(text: str) -> str:
    r"""Strip what carries no meaning: `$...$`, `\boxed{}`, spacing commands, a final full stop."""
    if len(text) > MAX_CHARS:
        raise CapError(f"the answer has {len(text)} characters; at most {MAX_CHARS} are read")
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_DEPTH:
            raise CapError(f"brackets are nested more than {MAX_DEPTH} deep")
    text = "".join(UNICODE.get(c, c) for c in text).strip()
    previous = None
    while previous != text:
        previous = text
        text = text.removesuffix(".").strip() if not text.endswith(r"\right.") else text
        if match := _WRAPPERS.fullmatch(text):
            text = next(group for group in match.groups() if group is not None).strip()
        if text.startswith((r"\boxed{", r"\fbox{")) and _closing(text) == len(text) - 1:
            text = text[text.index("{") + 1 : -1].strip()
    text = _THIN_SPACE_GROUPS.sub("", text)
    return _LAYOUT.sub(" ", text).strip()


def tokenize(text: str, *, has_thousands: bool = True) -> list[Token]:
    """Cut a cleaned text into tokens.

    has_thousands: read `1,234` outside brackets as one number, otherwise as two.
    """
    tokens: list[Token] = []
    depth = position = 0
    while position < len(text):
        grouped = _THOUSANDS.match(text, position) if has_thousands and depth == 0 else None
        match = grouped or _TOKEN.match(text, position)
        if match is None:
            raise AnswerError(f"unexpected {text[position]!r} at position {position}")
        position = match.end()
        if grouped:
            new = [Token("number", grouped[0].replace(",", ""))]
        else:
            assert match.lastgroup is not None
            new = _read(match.lastgroup, match[match.lastgroup])
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
    inner = re.fullmatch(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}\\$]*)\}\s*", text)
    words = plain_words(inner[1] if inner else text)
    if words is None or inner:
        return words
    parts = re.split(r"[ -]", words)
    is_prose = all(len(part) > 3 or part in SHORT_WORDS for part in parts)
    return words if is_prose and not FUNCTIONS & set(parts) else None


def plain_words(text: str) -> str | None:
    """Return letters, hyphens and single spaces, case-folded; None with anything else in it."""
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text.strip().rstrip("."))
    if not re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text):
        return None
    return " ".join(text.casefold().split())


def _read(kind: str, value: str) -> list[Token]:
    if kind == "space":
        return []
    if kind == "word":
        return _read_word(value)
    if kind == "text":
        word = value.strip()
        if word in ("or", "and", ","):
            return [Token("char", ",") if word == "," else Token("connector", word)]
        name = ALIASES.get(word, word)
        if name in FUNCTIONS:
            return [Token("command", name)]
        if word in ("e", "i"):
            return [Token("letter", word)]
        return [Token("text", word)] if word else []
    if kind == "escaped":
        return [Token("char", "%" if value == "%" else "|" if value == "|" else "\\" + value)]
    if kind == "command":
        name = ALIASES.get(value, value)
        if name in ("and", "or"):
            return [Token("connector", name)]
        if name in ("<", ">", "*", "|", r"\{", r"\}"):
            return [Token("char", name)]
        if name in FUNCTIONS or name in STRUCTURE or name in GREEK:
            return [Token("command", name)]
        raise AnswerError(f"the command \\{name} is not supported")
    if kind == "char" and value in ("<=", ">="):
        return [Token("command", "le" if value == "<=" else "ge")]
    return [Token(kind, value)]


def _read_word(word: str) -> list[Token]:
    if word in ("or", "and"):
        return [Token("connector", word)]
    name = ALIASES.get(word, word)
    if name in FUNCTIONS or name in ("pi", "infty"):
        return [Token("command", name)]
    if word in UNITS and (len(word) > 2 or word in ("cm", "mm", "km", "ft")):
        return [Token("text", word)]
    if len(word) > 3:
        raise AnswerError(f"{word!r} is a word, not mathematics")
    return [Token("letter", letter) for letter in word]


def _closing(text: str) -> int:
    """Return the position of the brace that closes the text's first one, -1 without."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "}" and depth == 0:
            return position
    return -1
