"""A completion that servers sample one after the other, each from where the last one stopped.

A server may end, hang or go to sleep in the middle of a completion. Another goes on from the prompt
and what was sampled, so that no sampled token is lost; ids, log-probabilities and versions of the
weights stay those of the server that sampled each token.

Not here: who is asked next (`gateway/upstreams/pool.py`, the trainer's `load_balancing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from katgym.play.seeding import derive_seed
from katgym.policies.version_span import VersionSpan


class SampledPart(Protocol):
    """What one server sampled of a completion."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def policy_logprobs(self) -> Sequence[float]: ...
    @property
    def version_spans(self) -> Sequence[VersionSpan]:
        """Of these tokens; empty: not known."""


@dataclass(slots=True)
class PartialCompletion:
    """What has been sampled so far.

    Example:
        partial.add(generated)                             # its server went to sleep
        prompt, left, seed = partial.rest(prompt, 64, 7)   # what the next one is asked for
    """

    token_ids: list[int] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    _spans: list[VersionSpan] = field(default_factory=list)
    _is_known: bool = True

    @property
    def version_spans(self) -> tuple[VersionSpan, ...]:
        """Which weights sampled which tokens; empty where a part does not tell."""
        return tuple(self._spans) if self._is_known else ()

    def add(self, part: SampledPart) -> None:
        """Take up what another server sampled; a part without tokens changes nothing."""
        start = len(self.token_ids)
        if not part.token_ids:
            return
        self.token_ids += part.token_ids
        self.policy_logprobs += part.policy_logprobs
        self._is_known = self._is_known and bool(part.version_spans)
        for span in part.version_spans:
            moved = replace(span, start=span.start + start, end=span.end + start)
            if self._spans and self._spans[-1].version == moved.version:
                moved = replace(self._spans.pop(), end=moved.end)
            self._spans.append(moved)

    def rest(
        self, prompt_ids: Sequence[int], max_tokens: int, seed: int | None
    ) -> tuple[Sequence[int], int, int | None]:
        """Return prompt, limit and seed with which another server goes on.

        The seed is another one: the same would draw the numbers of the first tokens again.
        """
        num = len(self.token_ids)
        if not num:
            return prompt_ids, max_tokens, seed
        seed = None if seed is None else derive_seed(seed, "after", num)
        return [*prompt_ids, *self.token_ids], max_tokens - num, seed
