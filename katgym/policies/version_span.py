"""Spans of a completion's tokens, one for each policy version that sampled some.

One span is the rule. Where weights change while a completion is sampled, each version has the run
of tokens that it sampled.

Not here: what carries spans (`TokenRecord` in `policies/base.py`, `Node` in `rollout_store/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from katgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Sampled tokens `start` (inclusive) to `end` (exclusive) came from weights `version`.

    Example:
        VersionSpan(version=7, start=0, end=31)
    """

    version: int
    """Optimizer step that the weights came from."""
    start: int
    """Counted from the completion's first token."""
    end: int

    def __post_init__(self) -> None:
        for name in ("version", "start", "end"):
            if type(value := getattr(self, name)) is not int:
                raise UsageError(f"{name} of a version span is an int, got {value!r}")


def one_span(version: int, num_tokens: int) -> tuple[VersionSpan]:
    """Return the spans of a completion that one version sampled."""
    return (VersionSpan(version=version, start=0, end=num_tokens),)


def oldest_version(spans: Sequence[VersionSpan]) -> int:
    """Return the oldest version of a completion's spans; 0 where none is known."""
    return min((span.version for span in spans), default=0)


def check_spans(spans: Sequence[VersionSpan], num_tokens: int, *, of: str = "a completion") -> None:
    """Raise `UsageError` unless the spans cover a completion's tokens in order, each token once.

    No spans at all are right for any completion: its versions are not known. One without tokens may
    have an empty span. of: whose spans they are, for the message.
    """
    place = 0
    for span in spans:
        if span.start != place:
            what = "leave a gap" if span.start > place else "overlap"
            raise UsageError(
                f"version spans of {of} {what}: {span!r} has to start at {place}, where those"
                " before it end"
            )
        if span.end <= span.start and (num_tokens or len(spans) > 1):
            raise UsageError(
                f"version spans of {of} have one without a token: {span!r}; leave it out, or end it"
                f" after {span.start}"
            )
        place = span.end
    if spans and place != num_tokens:
        raise UsageError(
            f"version spans of {of} end at {place}: the last one, {spans[-1]!r}, has to end at"
            f" {num_tokens}, the number of sampled tokens"
        )
