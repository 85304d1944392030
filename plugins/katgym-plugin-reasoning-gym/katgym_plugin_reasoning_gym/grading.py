"""Grading of an answer: paid if the upstream scorer says so in full, and was not talked into it.

Upstream scorers pay parts, floors for trying, and answers hidden in other text; some evaluate the
answer as Python. Here an answer is right or wrong, and it is right only if

1. the response holds one final answer, and it is not much longer than the gold;
2. it has the dataset's form, where `ANSWER_FORMS` has one;
3. the upstream scorer pays at least 1.0;
4. without a form: it equals the gold, or noise around it costs the pay. A scorer that pays the
   answer with noise has not read all of it, so only the gold itself is believed.

This does not protect against a wrong answer that a scorer takes for right as it stands.
"""

from __future__ import annotations

from collections.abc import Callable

from katgym.environment.answer import tagged_answers
from katgym_plugin_reasoning_gym.datasets import ANSWER_FORMS

NOISE = (
    "{} ? zzzz",
    "zzzz ? {}",
    "{} zzzz",
    "{}\nzzzz",
    "I am not sure. {} or maybe 7 or 8",
)
ANSWER_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What upstream scorers raise for text they cannot read; the answer is then wrong. Anything else
is a fault of the scorer and makes the reward invalid."""


def is_right(response: str, *, dataset: str, gold: str, score: Callable[[str], float]) -> bool:
    """Return whether a response answers rightly; `score` is the upstream scorer."""
    answer = final_answer(response)
    form = ANSWER_FORMS.get(dataset)
    if not answer or len(answer) > max(200, 4 * len(gold)):
        return False
    if form is not None and not form.fullmatch(answer):
        return False
    if not _is_paid(score, answer):
        return False
    if form is not None or _normalize(answer) == _normalize(gold):
        return True
    return not any(_is_paid(score, noise.format(answer)) for noise in NOISE)


def final_answer(response: str) -> str:
    """Return what stands between the answer tags, "" if they hold different answers.

    A response without tags is an answer as a whole.
    """
    found = {_strip(answer) for answer in tagged_answers(response)} or {_strip(response)}
    return found.pop() if len(found) == 1 else ""


def _strip(answer: str) -> str:
    """Drop blank space around the answer, but not the indentation of its first line."""
    return answer.strip("\n").rstrip() if "\n" in answer.strip() else answer.strip()


def _normalize(answer: str) -> str:
    return " ".join(answer.split()).casefold().rstrip(".")


def _is_paid(score: Callable[[str], float], answer: str) -> bool:
    try:
        return score(answer) >= 1.0
    except ANSWER_ERRORS:
        return False
