"""Which part of a message is its answer."""

import pytest

from katgym_envs.math.verifier import Extraction, extract_final_answer


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (r"Thus \boxed{7}.", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed{\left\{1, 2\right\}}$", r"\left\{1, 2\right\}"),
        (r"\boxed{\{x : x > 2\}}", r"\{x : x > 2\}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{7} and again \boxed{7}", "7"),
        (r"\boxed{0.5}, that is \boxed{\frac12}", r"\frac12"),
        (r"Answer: 8 but \boxed{7}", "7"),
        ("Answer: 7", "7"),
        ("**Final answer:** 7", "7"),
        ("The answer is: $7$", "$7$"),
        ("work\n#### 1,234\n", "1,234"),
        (r"\boxed{\boxed{7}}", r"\boxed{7}"),
    ],
)
def test_answer_is_found(message: str, answer: str) -> None:
    assert extract_final_answer(message) == Extraction(answer, is_hedged=False)


@pytest.mark.parametrize(
    "message",
    ["", "7", r"\boxed{}", r"\boxed{7", r"\boxed 7", "the answers vary: 7", "Answer:", "answer 7"],
)
def test_message_without_answer_gives_none(message: str) -> None:
    assert extract_final_answer(message) == Extraction(None, is_hedged=False)


@pytest.mark.parametrize(
    "message",
    [
        r"\boxed{7} or \boxed{8}",
        r"\boxed{8}\boxed{7}\boxed{7}",
        "Answer: 7\nAnswer: 8",
        "#### 7\nAnswer: 8",
        r"\boxed{0.33} = \boxed{1/3}",
    ],
)
def test_different_answers_are_a_hedge(message: str) -> None:
    assert extract_final_answer(message).is_hedged


def test_extraction_is_linear_in_a_long_message() -> None:
    message = r"\boxed{" * 20_000 + "7" + "answer is " * 20_000

    assert extract_final_answer(message).answer is None
