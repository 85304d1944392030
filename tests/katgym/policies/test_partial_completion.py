"""A completion that servers sample one after the other."""

from __future__ import annotations

from katgym.policies.partial_completion import PartialCompletion
from katgym.policies.token_policy import Generated
from katgym.policies.version_span import VersionSpan, one_span


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
