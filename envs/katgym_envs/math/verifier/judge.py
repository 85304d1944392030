"""Runs the two stages of a comparison: the exact one anywhere, the symbolic one in a worker.

Not here: the processes (`workers.py`), the public face (`verifier.py`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from katgym_envs.math.verifier.answers import read_answer
from katgym_envs.math.verifier.comparison import is_same
from katgym_envs.math.verifier.exact import NotRational, RationalScalars
from katgym_envs.math.verifier.real_lines import Scalars
from katgym_envs.math.verifier.syntax import Answer, Text
from katgym_envs.math.verifier.tokens import clean, plain_words
from katgym_envs.math.verifier.verdict import AnswerError, AnswerVerdict, CapError, Method

_INTEGER = re.compile(r"-?[0-9]{1,100}")
_GROUPED = re.compile(r"\s*-?\d{1,3}(?:,\d{3})+(?:\s*,\s*-?\d+)*\s*", re.ASCII)


def judge_exactly(answer: str, gold: str) -> AnswerVerdict | None:
    """Return a verdict that needs no computer algebra, or None when a worker has to decide."""
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        is_same_integer = int(answer) == int(gold)
        reason = "equal to gold" if is_same_integer else "not equal to gold"
        return AnswerVerdict(is_same_integer, Method.EXACT, reason)
    try:
        text = clean(answer)
    except CapError as e:
        return AnswerVerdict(False, Method.REJECTED, str(e))
    try:
        gold_text = clean(gold)
        golds = _gold_readings(gold_text)
    except AnswerError as e:
        if _squeeze(text) in (_squeeze(gold), _squeeze(_clean_or_raw(gold))):
            return AnswerVerdict(True, Method.EXACT, "the same text as gold")
        return AnswerVerdict(False, Method.UNSUPPORTED_GOLD, f"cannot read gold {gold!r}: {e}")
    if isinstance(golds[0], Text):
        return _judge_words(text, gold_text)
    try:
        answers = list(_readings(text))
    except CapError as e:
        return AnswerVerdict(False, Method.REJECTED, str(e))
    except AnswerError as e:
        return AnswerVerdict(False, Method.UNPARSABLE, str(e))
    if isinstance(answers[0], Text):
        return _judge_words(text, gold_text)
    try:
        return _judge(answers, golds, RationalScalars(), Method.EXACT)
    except NotRational:
        return None


def judge_symbolically(job: Mapping[str, str]) -> dict[str, object]:
    """Answer one job of a worker: `{"answer": ..., "gold": ...}` that passed the first stage."""
    from katgym_envs.math.verifier.symbolic import SymbolicScalars  # heavy: workers only

    readings = [list(_readings(clean(job[key]))) for key in ("answer", "gold")]
    verdict = _judge(readings[0], readings[1], SymbolicScalars(), Method.SYMBOLIC)
    return {"is_correct": verdict.is_correct, "reason": verdict.reason, "method": verdict.method}


def load() -> None:
    """Import what workers need and run one comparison, so that the first job is a fast one."""
    from katgym_envs.math.verifier.symbolic import warm_up  # heavy: workers only

    warm_up()


def _judge(
    answers: Sequence[Answer], golds: Sequence[Answer], scalars: Scalars, method: Method
) -> AnswerVerdict:
    try:
        for gold in golds:
            for answer in answers:
                if is_same(answer, gold, scalars):
                    return AnswerVerdict(True, method, "equal to gold")
    except AnswerError as e:
        return AnswerVerdict(False, Method.UNPARSABLE, str(e))
    kinds = type(answers[0]).__name__, type(golds[0]).__name__
    kind = "" if kinds[0] == kinds[1] else f": a {kinds[0]} where gold is a {kinds[1]}"
    return AnswerVerdict(False, method, f"not equal to gold{kind}")


def _readings(text: str) -> Iterator[Answer]:
    """Yield the answer, and a second reading where `1,234` may be a number or a list."""
    yield read_answer(text)
    if _GROUPED.fullmatch(text):
        with contextlib.suppress(AnswerError):
            yield read_answer(text, has_thousands=False)


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _clean_or_raw(text: str) -> str:
    try:
        return clean(text)
    except CapError:
        return text


@functools.lru_cache(maxsize=1024)
def _gold_readings(text: str) -> tuple[Answer, ...]:
    return tuple(_readings(text))


def _judge_words(text: str, gold: str) -> AnswerVerdict:
    pattern = r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}"
    found, wanted = (plain_words(re.sub(pattern, r"\1", part)) for part in (text, gold))
    if found is not None and found == wanted:
        return AnswerVerdict(True, Method.EXACT, "the same words as gold")
    return AnswerVerdict(False, Method.EXACT, "not the words of gold")
