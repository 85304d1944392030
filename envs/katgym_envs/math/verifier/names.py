r"""Names of values: `x`, `f(x)`, `\angle ABC`, `P(A)`, `\text{Area}`, `\frac{dy}{dx}`.

A symbol is an unknown: `x = 5` is an equation as well. A label only names the value behind it.
Not here: values (`answers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from katgym_envs.math.verifier.tokens import Token

_SYMBOL = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:\w|\{[^{}]*\}))?"
_UNKNOWN = re.compile(
    rf"{_SYMBOL}(?:\((?:[a-z]|\\[a-z]+)(?:,[a-z])?\))?|\({_SYMBOL}(?:,{_SYMBOL})+\)"
)
_FUNCTION = r"(?:[fghpqCFGHPEVTS]|\\[A-Z][a-z]+)"
_MARKED = r"\\(?:bar|hat|vec|tilde|dot|ddot|overline|overrightarrow)"
_POINTS = r"[A-Z](?:_?\d)?'*(?:[A-Z](?:_?\d)?'*)*"
_SHAPE = rf"(?:\\angle|\\triangle|{_MARKED})?(?:{_POINTS}|\{{{_POINTS}\}})"
_LABEL = re.compile(
    rf"{_FUNCTION}(?:_(?:\w|\{{[^{{}}]*\}}))?(?:'|\^(?:\\prime|\{{(?:\\prime)+\}}|\{{-1\}}))*"
    r"\([^()]*(?:\([^()]*\)[^()]*)?\)"
    rf"|[A-Za-z](?:'+|\^\\prime|\^\{{(?:\\prime)+\}}|\^\{{-1\}}|\^\{{?[T]\}}?)"
    rf"|{_MARKED}(?:\w|\{{\w+\}})(?:_(?:\w|\{{\w+\}}))?"
    r"|\\frac\{d\w?\}\{d\w\}|d\w/d\w|\\(?:sigma|chi)\^(?:2|\{2\})"
    rf"|\|{_POINTS}\||(?:\\angle|\\triangle|{_MARKED})(?:{_POINTS}|\{{{_POINTS}\}})"
    r"|[A-Z]{2,4}(?:_(?:\w|\{[^{}]*\}))?"
    rf"|\\frac\{{{_SHAPE}\}}\{{{_SHAPE}\}}|{_SHAPE}(?:/{_SHAPE})"
    rf"|{_SYMBOL}(?::{_SYMBOL})+|{_SHAPE}(?::{_SHAPE})+"
)


def read_name(tokens: Sequence[Token]) -> str | None:
    r"""Return the name when the tokens are nothing else; a label begins with `label `."""
    inside = [token for token in tokens if not token.is_char("(", "[", "]", ")")]
    if inside and inside[0].kind == "begin":  # a column of unknowns
        is_column = all(token.kind in ("begin", "letter", "row", "end") for token in inside)
        return "label column" if is_column else None
    text = "".join("\\" + t.value if t.kind == "command" else t.value for t in tokens)
    if text in ("e", "i", r"\pi", r"\infty") or not text:
        return None
    if _UNKNOWN.fullmatch(text) and all(t.kind != "text" or len(t.value) == 1 for t in tokens):
        return re.sub(r"[{}]", "", text)
    has_words = tokens[0].kind == "text" and re.fullmatch(r"[A-Za-z ]{3,40}", tokens[0].value)
    if _LABEL.fullmatch(text) or (has_words and (len(tokens) == 1 or tokens[1].is_char("_", "("))):
        return "label " + re.sub(r"[{}]", "", text)
    return None
