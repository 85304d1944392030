r"""Spellings: what a text is rewritten to, so that the tokens are those of one notation.

Signs of other scripts, money signs, wrappers such as `\boxed{}` and `$`, spacing, and other ways to
write what `tokens.py` knows.

Not here: tokens (`tokens.py`), which words are units (`units.py`).
"""

from __future__ import annotations

import re
import unicodedata

from katgym_envs.math.verifier.measures import GAINS, LOSSES, SENSES
from katgym_envs.math.verifier.verdict import CapError
from katgym_envs.math.verifier.vocabulary import CJK, CURRENCIES, REMARKS, UNICODE

MAX_CHARS = 512
MAX_DEPTH = 24
"""Brackets inside brackets, of any kind."""

BODY = r"(?:[^{}\\$]|\\[%$]|\\cdot(?![A-Za-z])|\{[^{}\\$]*\})*"
"""What a text command may hold."""
WORDS_OF = rf"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mbox|hbox)\s*\{{({BODY})\}}"
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
_LABEL = re.compile(r"([A-Za-z]{3,}(?: [a-z]{3,}){0,2})\s*:\s+(?=\S)")
"""Words before the value, as in `vertex: (1, 2)`."""
_LEAD = (
    r"\**(?:(?:the |my )?(?:(?:final|general|correct) )?(?:answer|solution)s?"
    r"(?: (?:is|are)(?: ?:)?| ?:|(?= *[-(\d\\]))(?![A-Za-z])"
    r"|[所以因此故最终的]*答案(?:应?[是为為]:?|:|(?=\s*[-(\d\\]))|答え(?:は|:))\**"
)
_CHANGE = rf"(?:an?\s+|the\s+)?({'|'.join(sorted(GAINS | LOSSES))})\s+of"
_MONEY_NAMES = "|".join(sorted(map(re.escape, CURRENCIES), key=len, reverse=True))
_AMOUNT = r"\s*\}?\s*(?:\\text\s*\{\s*)?-?\.?\d"
_EXCEPT = r"(?:all )?real(?: number)?s except(?: for)?(?![A-Za-z])"
_LETTER = r"[(\[]?([A-J])[)\].:]"
_UNIT_IN_FRACTION = r"\\(?:text|mathrm)\s*\{([^{}]*)\}\s*((?:\^\s*(?:\d|\{\s*-?\d\s*\}))?)"
_REWRITES = [
    (
        re.compile(
            rf"\\[dt]?frac\s*\{{\s*{_UNIT_IN_FRACTION}\s*\}}\s*\{{\s*{_UNIT_IN_FRACTION}\s*\}}$"
        ),
        r"\\text{\1}\2/\\text{\3}\4",
    ),
    (re.compile(rf"^(?:\\text\w*\s*\{{\s*)?{_LETTER}\s*\}}?$"), r"\1"),
    (re.compile(r"(?<=\d)\\(?:text|mathrm)\s*\{\s*([A-F]+)\s*\}(?=\s*_)"), r"\1"),
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
    (re.compile(r"(?<=\d)\s*(min|sec|in)(?=\s*(?:$|[/,]|and\b))"), r" \\text{\1}"),
    (
        re.compile(rf"^(?:\\text\w*\s*\{{\s*)?{_CHANGE}\s*\}}?(?=[^{{}}]*\d)(.+)$"),
        r"\2\\text{ \1}",
    ),
    (re.compile(r"\\textdollar(?![A-Za-z])\s*"), r"\\$"),
    (re.compile(r"(?<=[\])])\s*U\s*(?=[\[(][^()\[\]]*,)"), r"\\cup "),
    (re.compile(r"(?<=[RZQNC}\])])\s*-\s*(?=\\\{)"), r"\\setminus "),
    (
        re.compile(r"\\mathbb\s*\{?R\}?\s*(?:\^\s*\{?\+\}?|_\s*\{?\s*(?:>\s*0|\+)\s*\}?)"),
        r"(0,\\infty)",
    ),
    (re.compile(r"\\(?:top|intercal)(?![A-Za-z])"), "T"),
    (re.compile(r"\b(?:Matrix|array)\(([\[(].*[\])])\)$"), r"\1"),
    (re.compile(r"(?<!\\text)\{\s*([:,])\s*\}"), r"\1"),
    (re.compile(r"(?<=[\d.}])\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\\not\s*(?:=|\\in\b)"), r"\\ne "),
    (re.compile(r"(?:/=|(?<=[A-Za-z\s])!=|<>)"), r"\\ne "),
    (re.compile(r"=<|<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
]
"""Other spellings of what the tokens know."""
_WRAPPERS = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*[^$\\])\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|`(?P<f>[^`]*)`",
    re.DOTALL,
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_DEGREES = {"C": "celsius", "F": "fahrenheit"}
_MONEY = re.compile(r"[-+]?\$(?=\s*[\d.])|(?<=\d)\$$", re.ASCII)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_NO_WIDTH = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_CJK = re.compile("|".join(sorted(CJK, key=len, reverse=True)))


def clean(text: str) -> str:
    r"""Strip what carries no meaning: `$...$`, `\boxed{}`, spacing commands, a final full stop."""
    if len(text) > MAX_CHARS:
        raise CapError(f"the answer has {len(text)} characters; at most {MAX_CHARS} are read")
    text = _to_ascii(text)
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
        text = re.sub(r"^[Aa]nswer\s*(?=\$\$|\\\[)", "", text)
        if match := _WRAPPERS.fullmatch(text):
            text = next(group for group in match.groups() if group is not None).strip()
        if _BOX.match(text) and _closing(text) == len(text) - 1:
            text = text[text.index("{") + 1 : -1].strip()
    text = re.sub(r"^\\boxed\s*(?=-?[\dA-Za-z.]+$)", "", text)
    text = _spell_money(_THIN_SPACE_GROUPS.sub("", _open_dollars(text)).strip())
    if _SPACED_NUMBER.fullmatch(text):
        text = text.replace(" ", "")
    if label := read_label(text):
        text = text[len(label) :].lstrip().removeprefix(":").lstrip()
    for pattern, spelling in _REWRITES:
        text = pattern.sub(spelling, text)
    return _spell_choices(_LAYOUT.sub(" ", text).strip())


def read_label(text: str) -> str | None:
    """Return `vertex` of `vertex: (1, 2)`; None without one, or where the word is no mere name."""
    label = _LABEL.match(text)
    if label is None or text.count(":") != 1:
        return None
    if set(label[1].lower().split()) & (REMARKS | SENSES):
        return None
    return label[1]


def _to_ascii(text: str) -> str:
    """Write digits, letters and signs of other widths and scripts as those of ASCII."""
    if text.isascii():
        return text
    text = _NO_WIDTH.sub(
        "", re.sub("[\uff01-\uff5e\u3371-\u33df\U0001d400-\U0001d7ff]", _narrow, text)
    )
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = re.sub(r"°\s*([CF])(?![A-Za-z])", lambda m: _DEGREES[m[1]], text)
    return _CJK.sub(lambda match: CJK[match[0]], text)


def _narrow(match: re.Match[str]) -> str:
    narrow = unicodedata.normalize("NFKC", match[0])
    if "\u3371" <= match[0] <= "\u33df":  # `㎠` is `cm2` there
        return " " + re.sub(r"(\d)$", r"^\1", narrow)
    return rf"\{narrow}" if narrow in "$%" else narrow


def _spell_money(text: str) -> str:
    r"""Write `US\$5`, `5 EUR` and `Rs. 5` with the words that units know, beside a number."""

    def spell(match: re.Match[str]) -> str:
        return f" {CURRENCIES[match['code']]} "

    before = rf"(?<![A-Za-z\\])(?P<code>{_MONEY_NAMES})\.?(?={_AMOUNT})"
    behind = rf"(?<=[\d{{ }}])(?P<code>{_MONEY_NAMES})(?![A-Za-z])"
    text = re.sub(before, spell, text)
    return re.sub(behind, spell, text) if re.search(r"\d", text) else text


def _spell_choices(text: str) -> str:
    r"""Write `(A) and (C)` and `\text{A, C}` as `A,C`; anything else as it is."""
    inner = re.fullmatch(WORDS_OF, text)
    text_of = re.sub(r"^[Bb]oth\s|\sonly$", "", inner[1].strip() if inner else text)
    parts = re.split(r"\s*(?:[,;]|\\?&|\band\b|\\text\s*\{\s*and\s*\})\s*", text_of)
    parts = [part.strip() for part in parts if part.strip()]
    found = [
        re.fullmatch(r"(?:\\(?:text|math)\w*\s*\{)?\s*\(?([A-J])\)?\s*\}?", part) for part in parts
    ]
    if len(parts) < 2 or None in found:
        return text
    return ",".join(match[1] for match in found if match)


def _spell_fraction(match: re.Match[str]) -> str:
    top, bottom = unicodedata.normalize("NFKC", match[0]).split("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


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


def _closing(text: str) -> int:
    """Return the position of the brace that closes the text's first one, -1 without."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text):
        depth += (match[0] == "{") - (match[0] == "}")
        if match[0] == "}" and depth == 0:
            return match.start()
    return -1
