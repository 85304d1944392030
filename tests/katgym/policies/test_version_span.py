"""Spans cover a completion: each token once, and what is wrong with any others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym import TokenRecord, UsageError
from katgym.policies.version_span import VersionSpan, check_spans, oldest_version, one_span


def spans_of(*told: tuple[int, int, int]) -> list[VersionSpan]:
    return [VersionSpan(version=v, start=start, end=end) for v, start, end in told]


@pytest.mark.parametrize(
    ("told", "num_tokens", "text"),
    [
        (
            [(3, 1, 4)],
            4,
            "version spans of a completion leave a gap: VersionSpan(version=3, start=1, end=4) has"
            " to start at 0, where those before it end",
        ),
        (
            [(3, 0, 2), (4, 3, 4)],
            4,
            "version spans of a completion leave a gap: VersionSpan(version=4, start=3, end=4) has"
            " to start at 2, where those before it end",
        ),
        (
            [(3, 0, 2), (4, 1, 4)],
            4,
            "version spans of a completion overlap: VersionSpan(version=4, start=1, end=4) has to"
            " start at 2, where those before it end",
        ),
        (
            [(3, 0, 2), (4, 2, 3)],
            4,
            "version spans of a completion end at 3: the last one, VersionSpan(version=4, start=2,"
            " end=3), has to end at 4, the number of sampled tokens",
        ),
        (
            [(3, 0, 5)],
            4,
            "version spans of a completion end at 5: the last one, VersionSpan(version=3, start=0,"
            " end=5), has to end at 4, the number of sampled tokens",
        ),
        (
            [(3, 0, 0), (4, 0, 4)],
            4,
            "version spans of a completion have one without a token: VersionSpan(version=3,"
            " start=0, end=0); leave it out, or end it after 0",
        ),
        (
            [(3, 0, 0), (4, 0, 0)],
            0,
            "version spans of a completion have one without a token: VersionSpan(version=3,"
            " start=0, end=0); leave it out, or end it after 0",
        ),
    ],
)
def test_spans_that_do_not_cover_say_what_to_change(
    told: list[tuple[int, int, int]], num_tokens: int, text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        TokenRecord(completion_ids=range(num_tokens), version_spans=spans_of(*told))
    assert str(caught.value) == text


@pytest.mark.parametrize("wrong", ["7", 7.0, True, None])
def test_a_span_is_made_of_ints(wrong: object) -> None:
    for name in ("version", "start", "end"):
        with pytest.raises(UsageError, match=f"^{name} of a version span is an int, got {wrong!r}"):
            VersionSpan(**{"version": 1, "start": 0, "end": 2, name: wrong})  # type: ignore[arg-type]  # what is tested


@given(cuts=st.sets(st.integers(1, 63)), version=st.integers(0, 9))
def test_any_cover_fits_and_none_does_for_another_number_of_tokens(
    cuts: set[int], version: int
) -> None:
    edges = [0, *sorted(cuts), 64]
    spans = spans_of(*((version + i, edges[i], edges[i + 1]) for i in range(len(edges) - 1)))
    check_spans(spans, 64)
    assert oldest_version(spans) == version
    assert [i for span in spans for i in range(span.start, span.end)] == list(range(64))
    for num_tokens in (0, 63, 65):
        with pytest.raises(UsageError):
            check_spans(spans, num_tokens)


def test_the_oldest_version_need_not_be_the_first() -> None:
    assert oldest_version(spans_of((9, 0, 1), (8, 1, 2))) == 8
    assert TokenRecord(completion_ids=[5, 6], version_spans=one_span(4, 2)).policy_version == 4


def test_versions_that_are_not_known_are_0() -> None:
    assert TokenRecord(completion_ids=[5, 6]).policy_version == 0
    assert TokenRecord(version_spans=one_span(4, 0)).policy_version == 4  # an empty answer
