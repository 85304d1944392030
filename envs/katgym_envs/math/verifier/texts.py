r"""Reads a text: words, a time, a formula, one set written twice, or formulas among words.

Not here: what formulas stand for (`answers.py`).
"""

from __future__ import annotations

import contextlib
import re

from katgym_envs.math.verifier.answers import WHOLE_LINE, count_signs, expressions, read_tokens
from katgym_envs.math.verifier.comparison import is_same
from katgym_envs.math.verifier.exact import NotRational, RationalScalars, rational_value
from katgym_envs.math.verifier.numerals import Numerals, read_clock
from katgym_envs.math.verifier.spelling import MAX_CHARS, clean
from katgym_envs.math.verifier.splitting import turn_brackets
from katgym_envs.math.verifier.syntax import Answer, Collection, Infinite, Phrase, Text
from katgym_envs.math.verifier.tables import mark_cases
from katgym_envs.math.verifier.tokens import as_words, open_text, tokenize
from katgym_envs.math.verifier.verdict import AnswerError, CapError
from katgym_envs.math.verifier.vocabulary import PHRASES

MAX_WORDS = 8
"""Words of an answer in words; more is a sentence, which no comparison of words can judge."""
_MEANINGS: dict[str, Answer] = {
    "reals": WHOLE_LINE,
    "none": Collection(()),
    "infinity": Infinite(1),
    "-infinity": Infinite(-1),
}
_TITLE = re.compile(r"[A-Z][a-z]{2,}\.? (?:\d{1,4}(?:, \d{4})?|[IVX]+|[A-Z])")


def read_answer(text: str, numerals: Numerals = Numerals()) -> Answer:  # noqa: B008 frozen
    """Return the answer a text stands for; raises `AnswerError` or `CapError`.

    Checks the caps of every expression as well, so what is returned is safe to evaluate.

    Example:
        read_answer("x = 2 or x = 3") == Named("x", Collection((Scalar(two), Scalar(three)), True))
    """
    try:
        answer = _read_text(clean(text), numerals)
    except RecursionError as e:
        raise CapError("the answer is nested too deeply") from e
    except CapError:
        raise
    except AnswerError as e:
        phrase = None
        with contextlib.suppress(AnswerError):
            phrase = _read_twice(text, numerals) or _read_phrase(text, numerals)
        if phrase is None:
            raise e
        answer = phrase
    for expr in expressions(answer):
        if count_signs(expr):
            raise AnswerError("a plus-minus sign that cannot be read as two values")
        rational_value(expr)  # evaluates what is rational, which raises over a cap
    return answer


def _read_text(text: str, numerals: Numerals) -> Answer:
    words = as_words(text)
    text = clean(open_text(text))
    if not text:
        raise AnswerError("the answer is empty")
    if words:
        if len(words.split()) > MAX_WORDS:
            raise AnswerError(f"a sentence of more than {MAX_WORDS} words")
        return _MEANINGS[PHRASES[words]] if words in PHRASES else Text(words)
    if _TITLE.fullmatch(text):
        return Text(text.casefold())
    if clock := read_clock(text):
        return clock
    return read_tokens(turn_brackets(mark_cases(tokenize(text, numerals))))


def _read_twice(text: str, numerals: Numerals) -> Answer | None:
    r"""Read `x > 3: (3, \infty)`, one set written in two ways that agree; else None."""
    sides = text.split(":")
    if len(sides) != 2:
        return None
    with contextlib.suppress(AnswerError, NotRational):
        first, second = (_read_text(clean(side.replace("$", " ")), numerals) for side in sides)
        if is_same(first, second, RationalScalars()):
            return second
    return None


def _read_phrase(text: str, numerals: Numerals) -> Answer | None:
    """Read formulas in `$` and numbers among a few words; None where that is not what it is."""
    pieces = re.split(r"(?<!\\)\$+", re.sub(r"^\s*\\boxed\{(.*)\}\s*$", r"\1", text))
    if len(text) > MAX_CHARS or len(pieces) % 2 == 0:
        return None
    parts: list[Answer] = []
    num_words = 0
    for position, piece in enumerate(pieces):
        for part in (
            [piece] if position % 2 else re.split(r"(-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+))", piece)
        ):
            words = re.sub(r"[\s.,;:()]+", " ", part).strip().casefold()
            if position % 2 or re.fullmatch(r"-?\.?\d.*", part.strip()):
                parts.append(_read_text(clean(part.strip(" ,;")), numerals))
            elif re.fullmatch(r"[a-z][a-z' -]*", words):
                num_words += len(words.split())
                parts.append(Text(words))
            elif words:
                return None
    has_word = any(isinstance(p, Text) and re.search("[a-z]{3}", p.text) for p in parts)
    is_phrase = has_word and num_words <= MAX_WORDS and {type(p) for p in parts} != {Text}
    return Phrase(tuple(parts)) if is_phrase else None
