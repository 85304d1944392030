"""Runs the two stages of a comparison: the exact one anywhere, the symbolic one in a worker.

Not here: the processes (`workers.py`), the public face (`verifier.py`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from katgym_envs.math.verifier.comparison import is_same
from katgym_envs.math.verifier.exact import NotRational, RationalScalars
from katgym_envs.math.verifier.numerals import Numerals
from katgym_envs.math.verifier.real_lines import Scalars
from katgym_envs.math.verifier.rounding import PrintedScalars
from katgym_envs.math.verifier.spelling import clean, read_label
from katgym_envs.math.verifier.syntax import Answer, Named, Scalar, Text, Unit
from katgym_envs.math.verifier.texts import read_answer
from katgym_envs.math.verifier.tokens import open_text, plain_words
from katgym_envs.math.verifier.units import guess_unit
from katgym_envs.math.verifier.verdict import AnswerError, AnswerVerdict, CapError, Method

_INTEGER = re.compile(r"-?[0-9]{1,100}")
_GROUPED = re.compile(r"\s*-?\d{1,3}(?:,[1-9]\d{2})+\s*", re.ASCII)
_COMMA = re.compile(r"-?(?:\d{1,3}(?:\.\d{3}){2,}|(?:\d{1,3}(?:\.\d{3})+|\d+),\d+)", re.ASCII)
_PRINTED_I = re.compile(r"(?<=[\d)}*])\s*I(?![A-Za-z_])")
_SIGNED_EXPONENT = re.compile(r"\d\.?(?:e|E|\\mathrm\{e\})[-+]\d", re.ASCII)
_PERIOD = re.compile(r"\.\d*\(\d+\)", re.ASCII)
_PLAIN_LABELS = {"answer", "solution", "result", "value", "total"}
_SMALL_HEX = re.compile(r"[0-9a-f]{2,}\s*_\s*(?:16|\{\s*16\s*\})", re.ASCII)
_CHOICE = re.compile(
    r"(?=\S*[).:])(?:\\text\w*\{)?\(?([A-J])[).:]*\}?[).:]*\s+"
    r"(?!(?:\\text\s*\{\s*)?(?:or|and|not)(?![a-z])|\\lor|\\land|[,;/&])"
    r"(?!.*(?<![A-Za-z])[A-J](?:[).:]|\s*$))\S.*",
    re.DOTALL,
)
"""`(C) 12` for C; nothing where another letter or `or` follows."""


def judge_exactly(answer: str, gold: str) -> AnswerVerdict | None:
    """Return a verdict that needs no computer algebra, or None when a worker has to decide."""
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        is_same_integer = int(answer) == int(gold)
        reason = "equal to gold" if is_same_integer else "not equal to gold"
        return AnswerVerdict(is_same_integer, Method.EXACT, reason)
    is_same_text = _squeeze(answer) == _squeeze(gold) != ""
    try:
        golds = _gold_readings(gold)
    except AnswerError as e:
        if is_same_text:
            return AnswerVerdict(True, Method.EXACT, "the same text as gold")
        return AnswerVerdict(False, Method.UNSUPPORTED_GOLD, f"cannot read gold {gold!r}: {e}")
    if is_same_text:
        return AnswerVerdict(True, Method.EXACT, "the same text as gold")
    labels = {label.casefold() for side in (answer, gold) if (label := read_label(side.strip()))}
    if len(labels - _PLAIN_LABELS) > 1:
        return AnswerVerdict(False, Method.EXACT, f"not the label of gold: {sorted(labels)}")
    try:
        text = clean(answer)
        if words := _compare_words(text, clean(gold), golds[0]):
            return words
        answers = list(_readings(answer, is_answer=True))
    except CapError as e:
        return AnswerVerdict(False, Method.REJECTED, str(e))
    except AnswerError as e:
        return AnswerVerdict(False, Method.UNPARSABLE, str(e))
    try:
        return _judge(answers, golds, RationalScalars(), Method.EXACT)
    except NotRational:
        return None


def judge_symbolically(job: Mapping[str, str]) -> dict[str, object]:
    """Answer one job of a worker: `{"answer": ..., "gold": ...}` that passed the first stage.

    A gold that is not equal to itself cannot be compared with anything.
    """
    from katgym_envs.math.verifier.symbolic import SymbolicScalars  # heavy: workers only

    scalars, gold = SymbolicScalars(), job["gold"]
    golds = _gold_readings(gold)
    answers = list(_readings(job["answer"], is_answer=True))
    verdict = _judge(answers, golds, scalars, Method.SYMBOLIC)
    if not verdict.is_correct and gold not in _sound_golds:
        itself = _judge(golds[:1], golds[:1], scalars, Method.SYMBOLIC)
        if not itself.is_correct:
            reason = f"gold {gold!r} is not equal to itself: {itself.reason}"
            verdict = AnswerVerdict(False, Method.UNSUPPORTED_GOLD, reason)
        elif len(_sound_golds) < MAX_SOUND_GOLDS:
            _sound_golds.add(gold)
    return {"is_correct": verdict.is_correct, "reason": verdict.reason, "method": verdict.method}


def is_sound(gold: str) -> bool | None:
    """Tell whether a gold is equal to itself by what it means; None when it cannot be read."""
    from katgym_envs.math.verifier.symbolic import SymbolicScalars  # heavy: workers only

    try:
        golds = _gold_readings(gold)[:1]
    except AnswerError:
        return None
    return _judge(golds, golds, SymbolicScalars(), Method.SYMBOLIC).is_correct


def load() -> None:
    """Import what workers need and run one comparison, so that the first job is a fast one."""
    from katgym_envs.math.verifier.symbolic import warm_up  # heavy: workers only

    warm_up()


MAX_SOUND_GOLDS = 10_000
_sound_golds: set[str] = set()
"""Golds of this process that are equal to themselves."""


def _judge(
    answers: Sequence[Answer], golds: Sequence[Answer], scalars: Scalars, method: Method
) -> AnswerVerdict:
    printed = PrintedScalars(scalars)
    try:
        for gold in golds:
            for answer in answers:
                if is_same(answer, gold, printed):
                    return AnswerVerdict(True, method, "equal to gold")
    except AnswerError as e:
        if isinstance(scalars, RationalScalars):
            raise NotRational from e  # a worker finds out whether it is the gold's fault
        return AnswerVerdict(False, Method.UNPARSABLE, str(e))
    kinds = type(answers[0]).__name__, type(golds[0]).__name__
    kind = "" if kinds[0] == kinds[1] else f": a {kinds[0]} where gold is a {kinds[1]}"
    return AnswerVerdict(False, method, f"not equal to gold{kind}")


def _readings(text: str, *, is_answer: bool) -> Iterator[Answer]:
    """Yield the answer, and its other readings where numbers have two.

    A gold is one number: only an answer may mean a list by `1,234`, and a decimal by `1,5`.
    """
    plain = clean(text)
    others = [(text, Numerals())]
    if is_answer and _GROUPED.fullmatch(plain):
        others.append((text, Numerals(has_thousands=False)))
    elif is_answer and _COMMA.fullmatch(plain):
        others.append((plain.replace(".", "").replace(",", "."), Numerals()))
    if is_answer and _PRINTED_I.search(plain):
        others.append((_PRINTED_I.sub("i", plain), Numerals()))
    if _SIGNED_EXPONENT.search(plain):
        others.append((text, Numerals(has_exponents=False)))
    if _PERIOD.search(plain):
        others.append((text, Numerals(has_periods=False)))
    if _SMALL_HEX.fullmatch(plain):
        others.append((plain.upper(), Numerals()))
    errors = []
    for other, numerals in others:
        try:
            yield read_answer(other, numerals)
        except CapError:
            raise
        except AnswerError as e:
            errors.append(e)
    if guess := guess_unit(plain):
        with contextlib.suppress(AnswerError):
            yield _mark_guess(read_answer(guess))
            return
    if len(errors) == len(others):
        raise errors[0]


def _mark_guess(answer: Answer) -> Answer:
    match answer:
        case Scalar(expr, Unit() as unit):
            return Scalar(expr, replace(unit, is_guessed=True))
    return answer


def _squeeze(text: str) -> str:
    """Drop spaces, but for those between two digits."""
    return re.sub(r"\s+", " ", re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)).strip(" $")


@functools.lru_cache(maxsize=1024)
def _gold_readings(gold: str) -> tuple[Answer, ...]:
    try:
        return tuple(_readings(gold, is_answer=False))
    except CapError:
        raise
    except AnswerError:
        # `A B = C` where no more than C can be read: what stands before it is its name.
        name, _, value = gold.rpartition("=")
        outside, inside = "", name
        while outside != inside:
            outside, inside = inside, re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", inside)
        if not name or re.search(r"[,;]|(?<![\\A-Za-z])[A-Za-z]{4,}", outside):
            raise
        return (Named("label " + _squeeze(name), read_answer(value.strip(" $\n."))),)


def _compare_words(text: str, gold: str, reading: Answer) -> AnswerVerdict | None:
    """Judge by the words where gold or the answer is nothing else; None where neither is.

    A bare word of three letters or more with a vowel (`cat`) is no product of letters when the
    other side is such a word as well.
    """
    found, wanted = plain_words(text), plain_words(gold)
    is_letter = re.fullmatch("[A-J]", gold) and _CHOICE.fullmatch(text)
    if isinstance(reading, Text) or is_letter:
        wanted = reading.text if isinstance(reading, Text) else gold.casefold()
        if len(wanted) == 1 and (choice := _CHOICE.fullmatch(text)):
            found = choice[1].casefold()
        elif found is None:
            found = " ".join(open_text(text).casefold().split())
    elif found is not None and found == wanted and open_text(text) != text:
        pass  # `\text{B}` for `B`
    else:
        is_bare = found is not None and wanted is not None and "\\" not in text + gold
        pattern = r"(?=.*[aeiou])[a-z]{3,}"
        if not is_bare or not (
            re.fullmatch(pattern, found or "") and len(text) == len(found or "")
        ):
            return None
        if not re.fullmatch(pattern, wanted or ""):
            return None
        found, wanted = text, gold
    if found == wanted:
        return AnswerVerdict(True, Method.EXACT, "the same words as gold")
    return AnswerVerdict(False, Method.EXACT, "not the words of gold")
