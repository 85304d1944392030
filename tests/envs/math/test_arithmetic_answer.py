"""Which answer a message commits to, and which messages hold none."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_envs.math.arithmetic.answer import read_answer


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("42", 42),
        ("$-42$.", -42),
        ("Answer: 42", 42),
        ("**Answer:** 1,234.50", Fraction(2469, 2)),
        ("First 6 * 7.\nThe answer is 42.", 42),
        ("The answer is obtained by adding.\nAnswer: 42", 42),
        ("Answer:\n42", 42),
        ("Answer: 7/3", Fraction(7, 3)),
        (r"Answer: -\frac{7}{3}", Fraction(-7, 3)),
        (r"\boxed{\frac{14}{6}}", Fraction(7, 3)),
        (r"The answer is 6 * 7 = \boxed{42}.", 42),
        (r"\boxed{42}" + "\nAnswer: 42", 42),
        ("It could be 41.\nAnswer: 42", 42),
        ("Answer: −5", -5),
        ("The sum equals 42.", 42),
    ],
)
def test_a_committed_answer_is_read(message, value):
    assert read_answer(message) == value


@pytest.mark.parametrize(
    "message",
    [
        "",
        "41 or 42",
        "41 42",
        "Answer: 41 or 42",
        "Answer: 42 or 41",
        "Answer: 42\nOr maybe 41.",
        "Answer: 41\nAnswer: 42",
        "Answer: 41\n" + r"\boxed{42}",
        r"\boxed{41} \boxed{42}",
        r"\boxed{41 or 42}",
        r"\boxed{42} but possibly 41",
        "The result is not 42",
        "the answer is not 42",
        "x is 41 or is 42",
        "Answer: 42%",
        "Answer: 1e3",
        "Answer: 12,34",
        "Answer: 40 + 2",
        "Answer: 7/0",
        "Answer: ٤٢",
        "Answer: " + "9" * 5_000,
        "Answer: inf",
    ],
)
def test_hedges_and_non_numbers_are_no_answer(message):
    assert read_answer(message) is None


@pytest.mark.parametrize(
    "unit", ["is ", "- ", "= ", "1 / ", r"\boxed{", "{}", "answer:", "9", "1,111", r"\frac{", " \n"]
)
def test_reading_long_repetitive_messages_comes_to_an_end(unit):
    """So long that a search whose steps are the square of the length would take hours."""
    assert read_answer(unit * (2_000_000 // len(unit)) + "x") is None


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_read_back(value):
    assert read_answer(f"Answer: {value}") == value
    assert read_answer(rf"so \boxed{{{value}}}") == value
