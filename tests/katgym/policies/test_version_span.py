"""Spans cover a completion, each token once; completions of several servers, part by part."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym import TokenRecord, UsageError
from katgym.policies.partial_completion import PartialCompletion
from katgym.policies.token_policy import Generated
from katgym.policies.version_span import VersionSpan, check_spans, oldest_version, one_span


def spans_of(*told: tuple[int, int, int]) -> list[VersionSpan]:
    return [VersionSpan(version=v, start=start, end=end) for v, start, end in told]


UNCOVERED: list[tuple[list[tuple[int, int, int]], int, str]] = [
    ([(3, 1, 4)], 4, r"leave a gap: .*version=3, start=1, end=4\) has to start at 0"),
    ([(3, 0, 2), (4, 3, 4)], 4, r"leave a gap: .*version=4, start=3, end=4\) has to start at 2"),
    ([(3, 0, 2), (4, 1, 4)], 4, r"overlap: .*version=4, start=1, end=4\) has to start at 2"),
    ([(3, 0, 2), (4, 2, 3)], 4, r"end at 3: .*version=4, start=2, end=3\), has to end at 4"),
    ([(3, 0, 5)], 4, r"end at 5: .*version=3, start=0, end=5\), has to end at 4"),
    ([(3, 0, 0), (4, 0, 4)], 4, r"one without a token: .*version=3, start=0, end=0\); .*after 0$"),
    ([(3, 0, 0), (4, 0, 0)], 0, r"one without a token: .*version=3, start=0, end=0\); .*after 0$"),
]


def test_spans_that_do_not_cover_say_what_to_change(subtests: pytest.Subtests) -> None:
    for told, num_tokens, text in UNCOVERED:
        with subtests.test(told=told), pytest.raises(UsageError, match=f"of a completion.* {text}"):
            TokenRecord(completion_ids=range(num_tokens), version_spans=spans_of(*told))


def test_a_span_is_made_of_ints() -> None:
    for name, wrong in itertools.product(("version", "start", "end"), ("7", 7.0, True, None)):
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


def test_the_oldest_version_need_not_be_the_first_and_is_0_where_none_is_known() -> None:
    assert oldest_version(spans_of((9, 0, 1), (8, 1, 2))) == 8
    assert TokenRecord(completion_ids=[5, 6], version_spans=one_span(4, 2)).policy_version == 4
    assert TokenRecord(completion_ids=[5, 6]).policy_version == 0
    assert TokenRecord(version_spans=one_span(4, 0)).policy_version == 4  # an empty answer


# ---- completions that servers sample one after the other


def part(*ids: int, version: int | None = None) -> Generated:
    spans = () if version is None else one_span(version, len(ids))
    return Generated(token_ids=ids, policy_logprobs=[-float(i) for i in ids], version_spans=spans)


def test_the_first_server_is_asked_as_the_caller_asks() -> None:
    prompt = [1, 2]
    assert PartialCompletion().rest(prompt, 9, 7) == (prompt, 9, 7)


def test_the_next_server_goes_on_behind_what_was_sampled() -> None:
    partial = PartialCompletion()
    partial.add(part(5, 6, version=3))
    partial.add(part(version=4))
    prompt, left, seed = partial.rest([1, 2], 9, 7)
    assert (list(prompt), left) == ([1, 2, 5, 6], 7)
    assert seed not in (None, 7)
    assert partial.rest([1, 2], 9, 7)[2] == seed
    assert partial.rest([1, 2], 9, None)[2] is None


def test_parts_keep_their_figures_and_versions() -> None:
    partial = PartialCompletion()
    for found in (part(5, 6, version=3), part(7, version=3), part(8, 9, version=4)):
        partial.add(found)
    assert partial.token_ids == [5, 6, 7, 8, 9]
    assert partial.policy_logprobs == [-5.0, -6.0, -7.0, -8.0, -9.0]
    assert partial.version_spans == (
        VersionSpan(version=3, start=0, end=3),
        VersionSpan(version=4, start=3, end=5),
    )


def test_versions_are_unknown_where_one_part_tells_none() -> None:
    partial = PartialCompletion()
    partial.add(part(5, version=3))
    partial.add(part(6))
    assert partial.version_spans == ()
