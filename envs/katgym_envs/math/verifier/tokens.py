r"""Cleans an answer's text and cuts it into tokens, under caps on its size.

Only characters and commands listed here pass; everything else is an `AnswerError`. Nothing is ever
handed to `eval`, `sympify` or `parse_expr`.

Not here: what the tokens mean (`expressions.py`, `answers.py`).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from katgym_envs.math.verifier.numerals import Numerals, read_numeral
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
    UNICODE,
    UNIT_WORDS,
)

MAX_CHARS = 512
MAX_DEPTH = 24
"""Brackets inside brackets, of any kind."""
MAX_DIGITS = 128
"""Digits in one number."""

_LAYOUT = re.compile(
    r"\\(?:left|right)\s*\.(?!\d)"
    r"|\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|qquad|quad|strut)"
    r"(?![A-Za-z])"
    r"|\\[hv]?(?:space|phantom)\*?\s*\{[^{}]*\}|\\(?:text)?color\s*\{[^{}]*\}"
    r"|(?<!\\)\\[,;:!> ]|(?<!\\)~"
)
_THIN_SPACE_GROUPS = re.compile(
    r"(?<=\d)(?:\\,|\{,\}|\\!,|,\s?\\!|\\ |')\s?(?=\d{3}(?!\d))",
    re.ASCII,
)
_SPACED_NUMBER = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?", re.ASCII)
_LABEL = re.compile(r"([A-Za-z]{3,})\s*:\s+(?=\S)")
"""A word before the value, as in `vertex: (1, 2)`."""
_LEAD = (
    r"\**(?:the |my )?(?:(?:final|general|correct) )?(?:answer|solution)s?"
    r"(?: (?:is|are)(?: ?:)?| ?:)(?![A-Za-z])\**"
)
_EXCEPT = r"(?:all )?real(?: number)?s except(?: for)?(?![A-Za-z])"
_REWRITES = [
    (re.compile(r"\^\s*\{\s*\\circ\s*\}"), r"^\\circ "),
    (re.compile(r"\{\s*\}\s*(?=\^)"), ""),
    (re.compile(rf"^(?:\\text\s*\{{\s*{_LEAD}\s*\}}|{_LEAD})\s*", re.IGNORECASE), ""),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\b(?:np|numpy|math|sympy)\.(?=[a-z])"), ""),
    (re.compile(r"^~\s*"), r"\\approx "),
    (re.compile(r"\^\s*\\circ\s*([CF])\b"), r"^\\circ \\text{\1}"),
    (
        re.compile(
            r"[,;]?\s*(?:(?:where|for)\s+)?(?:(?:any|all|every|each)\s+)?(?:"
            r"(?:integers?|real numbers?)\s+[a-z]|[a-z]\s+is\s+any?\s+(?:integer|real number))$"
        ),
        "",
    ),
    (re.compile(r"^(?:option|choice)\s+(?=\(?[A-J]\)?$)", re.IGNORECASE), ""),
    (re.compile(rf"^(?:\\text\s*\{{)?\s*{_EXCEPT}\s*\}}?\s*(?:x\s*=)?", re.IGNORECASE), r"x \\ne "),
    (re.compile(r"^=(?!<)\s*|^(?:the )?point\s+(?=\()", re.IGNORECASE), ""),
    (re.compile(r"(?<=per) (?=cent\b)"), ""),
    (re.compile(r"\\(mathrm|text)\s+([A-Za-z])(?![A-Za-z])"), r"\\\1{\2}"),
    (re.compile(r"^<([^<>]*,[^<>]*)>$"), r"\\langle \1\\rangle "),
    (
        re.compile(
            r"^\\\$\s*([\d.,]+)\s*(?:\\text\s*\{)?\s*(?:per|/)\s*(?:\\text\s*\{\s*)?(\w+)\s*\}?$"
        ),
        r"\1\\text{ dollar per \2}",
    ),
    (re.compile(r"^(\d[\d.]*)\s*(?:to|\\text\s*\{\s*to\s*\})\s*(\d[\d.]*)$"), r"\1:\2"),
    (re.compile(r"(?<=\d)\s*(min|sec|in)(?=\s*(?:$|/))"), r" \\text{\1}"),
    (re.compile(r"(?<=[\])])\s*U\s*(?=[\[(][^()\[\]]*,)"), r"\\cup "),
    (re.compile(r"(?<=[RZQNC}\])])\s*-\s*(?=\\\{)"), r"\\setminus "),
    (
        re.compile(r"\\mathbb\s*\{?R\}?\s*(?:\^\s*\{?\+\}?|_\s*\{?\s*(?:>\s*0|\+)\s*\}?)"),
        r"(0,\\infty)",
    ),
    (re.compile(r"\\(?:top|intercal)(?![A-Za-z])"), "T"),
    (re.compile(r"\b(?:Matrix|array)\(([\[(].*[\])])\)$"), r"\1"),
    (re.compile(r"\{\s*([:,])\s*\}"), r"\1"),
    (re.compile(r"(?<=[\d.}])\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\\not\s*(?:=|\\in\b)"), r"\\ne "),
    (re.compile(r"(?:/=|(?<=[A-Za-z\s])!=|<>)"), r"\\ne "),
    (re.compile(r"=<|<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
]
"""Other spellings of what the tokens below know."""
_BODY = r"(?:[^{}\\$]|\\[%$]|\\cdot(?![A-Za-z])|\{[^{}\\$]*\})*"
"""What a text command may hold."""
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+\.\d+|\d+\.(?![\d.])|\d+|\.\d+)"
    r"|\\math(?:bf|it|sf|tt)\s*\{(?P<letter>[A-Za-z])\}"
    r"|\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|hbox|rm|operatorname\*?)\s*"
    rf"\{{(?P<text>{_BODY})\}}"
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
_WRAPPERS = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*[^$\\])\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|`(?P<f>[^`]*)`",
    re.DOTALL,
)
_MONEY = re.compile(r"[-+]?\$(?=\s*[\d.])|(?<=\d)\$$", re.ASCII)
_WORDS_OF = rf"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|hbox)\s*\{{({_BODY})\}}"
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


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


def clean(text: str) -> str:
    r"""Strip what carries no meaning: `$...$`, `\boxed{}`, spacing commands, a final full stop."""
    if len(text) > MAX_CHARS:
        raise CapError(f"the answer has {len(text)} characters; at most {MAX_CHARS} are read")
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_DEPTH:
            raise CapError(f"brackets are nested more than {MAX_DEPTH} deep")
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    text = re.sub("[₀-₉]+", lambda run: f"_{{{run[0].translate(_LOWERED)}}}", text)
    text = re.sub(r"(\d)[\u0304\u0305]", r"\\overline{\1}", text)
    text = re.sub("[¼-¾⅐-⅞]", _spell_fraction, text)
    text = "".join(UNICODE.get(c, c) for c in text).strip()
    slashes = re.findall(r"\\+(?=[A-Za-z]?)", text)
    if slashes and all(len(run) % 2 == 0 for run in slashes) and re.search(r"\\[A-Za-z]", text):
        text = text.replace("\\\\", "\\")  # escaped once too often, as in JSON
    elif r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    previous = None
    while previous != text:
        previous = text
        if not text.endswith((r"\right.", "..")):
            text = text.removesuffix(".").rstrip("\\").strip()
        if match := _WRAPPERS.fullmatch(text):
            text = next(group for group in match.groups() if group is not None).strip()
        if text.startswith((r"\boxed{", r"\fbox{")) and _closing(text) == len(text) - 1:
            text = text[text.index("{") + 1 : -1].strip()
    text = _THIN_SPACE_GROUPS.sub("", _open_dollars(text)).strip()
    if _SPACED_NUMBER.fullmatch(text):
        text = text.replace(" ", "")
    label = _LABEL.match(text)
    if label and text.count(":") == 1 and label[1].lower() not in REMARKS:
        text = text[label.end() :]
    for pattern, spelling in _REWRITES:
        text = pattern.sub(spelling, text)
    return _LAYOUT.sub(" ", text).strip()


def _spell_fraction(match: re.Match[str]) -> str:
    top, bottom = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


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
    inner = re.fullmatch(_WORDS_OF + r"\s*", text)
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
    text = re.sub(_WORDS_OF, r"\1", text)
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text.strip().rstrip("."))
    if not re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text):
        return None
    words = re.sub(r"^(?:an?|the) (?=[a-z]{3})", "", " ".join(text.casefold().split()))
    return "does not exist" if words == "dne" else words


def open_text(text: str) -> str:
    r"""Return the inside of a text command that is the whole answer, as in `\text{13}`."""
    inner = re.fullmatch(_WORDS_OF, text)
    return inner[1].strip() if inner else text


def _open_dollars(text: str) -> str:
    r"""Drop the `$` around formulas inside a text; a lone one beside a number is money."""
    text = re.sub(r"\\[()](?![A-Za-z])|\\\[(?![\d.]+[a-z]+\])|(?<!\\)\\\]", " ", text)
    pieces = re.split(r"(?<!\\)\$+", text)
    marks = re.findall(r"(?<!\\)\$", text)
    if len(marks) % 2 == 0 and len(pieces) % 2:
        for i in range(2, len(pieces) - 1, 2):
            before = pieces[i - 1].strip()
            is_whole = "=" in before and before.count("(") == before.count(")")
            if is_whole and not pieces[i].strip() and not before.endswith(("+", "-", "=")):
                pieces[i] = ", "
        return " ".join(pieces) if marks else text
    if len(marks) == 1 and (match := _MONEY.search(text)):
        return text[: match.start()] + match[0].replace("$", r"\$") + text[match.end() :]
    return text


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


def _closing(text: str) -> int:
    """Return the position of the brace that closes the text's first one, -1 without."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text):
        depth += (match[0] == "{") - (match[0] == "}")
        if match[0] == "}" and depth == 0:
            return match.start()
    return -1
