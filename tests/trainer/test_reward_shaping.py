"""The overlong penalty, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer.advantages.reward_shaping import overlong_penalty


@pytest.mark.parametrize(
    ("num_tokens", "wanted"),
    [
        (0, 0.0),
        (16_384, 0.0),  # 20,480 - 4,096: the paper's numbers
        (16_385, -1 / 4096),
        (18_432, -0.5),
        (20_479, -4095 / 4096),
        (20_480, -1.0),
        (10**9, -1.0),
    ],
)
def test_the_penalty_grows_over_the_buffer(num_tokens: int, wanted: float) -> None:
    assert overlong_penalty(num_tokens, max_tokens=20_480, buffer_tokens=4096) == wanted
    halved = overlong_penalty(num_tokens, max_tokens=20_480, buffer_tokens=4096, factor=0.5)
    assert halved == wanted / 2


def test_a_buffer_of_everything_or_of_one_token() -> None:
    assert [overlong_penalty(t, max_tokens=4, buffer_tokens=4) for t in range(6)] == [
        0.0, -0.25, -0.5, -0.75, -1.0, -1.0
    ]  # fmt: skip
    assert [overlong_penalty(t, max_tokens=4, buffer_tokens=1) for t in (3, 4, 5)] == [0, -1, -1]


@given(
    max_tokens=st.integers(1, 1000),
    share=st.floats(0, 1),
    num_tokens=st.integers(0, 2000),
    factor=st.floats(0, 10),
)
def test_it_is_the_paper_s_three_cases(
    max_tokens: int, share: float, num_tokens: int, factor: float
) -> None:
    buffer_tokens = max(1, round(share * max_tokens))
    if num_tokens <= max_tokens - buffer_tokens:
        wanted = 0.0
    elif num_tokens <= max_tokens:
        wanted = ((max_tokens - buffer_tokens) - num_tokens) / buffer_tokens
    else:
        wanted = -1.0
    found = overlong_penalty(
        num_tokens, max_tokens=max_tokens, buffer_tokens=buffer_tokens, factor=factor
    )
    assert found == pytest.approx(factor * wanted, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_tokens": -1}, "num_tokens is an int >= 0, got -1"),
        ({"num_tokens": 1.5}, r"num_tokens is an int >= 0, got 1\.5"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"buffer_tokens": 0}, "buffer_tokens is an int >= 1, got 0"),
        ({"buffer_tokens": 11}, "buffer_tokens is 11, at most max_tokens=10"),
        ({"factor": -1.0}, r"factor is a number >= 0, got -1\.0"),
        ({"factor": float("nan")}, "factor is a number >= 0, got nan"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words) -> None:
    arguments = {"num_tokens": 5, "max_tokens": 10, "buffer_tokens": 2, **changes}
    with pytest.raises(ValueError, match=words):
        overlong_penalty(arguments.pop("num_tokens"), **arguments)
