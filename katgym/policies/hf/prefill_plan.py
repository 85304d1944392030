"""Plans of a prefill: the requests computed together, and what each copies from whom.

A request copies the longest prefix that is known. Where another request of the same plan shares
more, it is put into a later wave, and copies from that one once it is computed: siblings of a group
compute their prompt once.

Not here: the forward passes (`row_batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.known_prefixes import CachedPrefix, PrefixIndex

MIN_SHARED = 8
"""Tokens a request has to save to wait for another one's wave, which is a forward more."""
FREE_PADDING = 32
"""Tokens of padding that cost less than another forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a plan."""

    request: Request
    source: Request | CachedPrefix | None
    """Who has the first `num_known` tokens; None for 0."""
    num_known: int
    wave: int

    @property
    def num_new(self) -> int:
        """Tokens to compute."""
        return len(self.request.ids) - self.num_known


class PrefillPlan:
    """Requests added one by one, then read as the forwards that compute them."""

    def __init__(self, known: PrefixIndex[Request | CachedPrefix]) -> None:
        self.entries: list[PlannedRequest] = []
        self.max_length = 0
        """Tokens that the longest request may have in the end."""
        self._known = known
        self._planned: PrefixIndex[PlannedRequest] = PrefixIndex()

    def add(self, request: Request) -> PlannedRequest:
        """Plan a request; the last of its tokens is always computed, as its logits are needed."""
        limit = len(request.ids) - 1
        num_known, source = self._known.longest(request.ids, limit=limit)
        num_planned, sibling = self._planned.longest(request.ids, limit=limit)
        wave = 0
        if sibling is not None and num_planned >= num_known + MIN_SHARED:
            num_known, source, wave = num_planned, sibling.request, sibling.wave + 1
        entry = PlannedRequest(request=request, source=source, num_known=num_known, wave=wave)
        self.entries.append(entry)
        self.max_length = max(self.max_length, request.max_length)
        self._planned.add(request.ids, entry)
        return entry

    def forwards(self, max_tokens: int) -> Iterator[list[PlannedRequest]]:
        """Yield what is computed together, waves in order, longest first.

        max_tokens: of one forward, padding included; a single longer request is one all the same.
        """
        forward: list[PlannedRequest] = []
        num_new = 0
        for entry in sorted(self.entries, key=lambda entry: (entry.wave, -entry.num_new)):
            num_new += entry.num_new
            if forward:
                num_padded = forward[0].num_new * (len(forward) + 1)
                is_wasteful = num_padded - num_new > FREE_PADDING + num_new // 4
                if entry.wave != forward[0].wave or num_padded > max_tokens or is_wasteful:
                    yield forward
                    forward, num_new = [], entry.num_new
            forward.append(entry)
        if forward:
            yield forward
