"""Answers between tags: several, nested, unclosed, in capitals."""

from __future__ import annotations

import pytest

from katgym.environment.answer import tagged_answers


@pytest.mark.parametrize(
    ("response", "answers"),
    [
        ("It is <answer>7</answer>.", ["7"]),
        ("<answer>1</answer><ANSWER> 2\n</Answer>", ["1", " 2\n"]),
        ("<answer>a<answer>b</answer>c</answer>", ["a<answer>b"]),
        ("</answer><answer>7", []),
        ("7", []),
    ],
)
def test_answers_stand_between_tags(response: str, answers: list[str]) -> None:
    assert list(tagged_answers(response)) == answers
