"""Keys and values that finished requests left, for the next turn of their sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from katgym.policies.hf.kv_slots import Stored


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """The tokens of one finished request that were computed, with their keys and values."""

    session_id: str
    ids: list[int]
    stored: Stored


class PrefixCache:
    """At most one entry a session and `max_tokens` tokens in all; the oldest go first."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._kept: OrderedDict[str, CachedPrefix] = OrderedDict()
        self._num_tokens = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def has_room(self, num_tokens: int) -> bool:
        """Whether an entry of this size can be kept at all."""
        return num_tokens <= self.max_tokens

    def add(self, kept: CachedPrefix) -> list[CachedPrefix]:
        """Keep an entry in place of its session's last; return those that had to go."""
        gone = self.remove(kept.session_id)
        self._kept[kept.session_id] = kept
        self._num_tokens += len(kept.ids)
        while self._num_tokens > self.max_tokens:
            gone += self.remove(next(iter(self._kept)))
        return gone

    def remove(self, session_id: str) -> list[CachedPrefix]:
        """Forget a session; return its entry if there was one."""
        kept = self._kept.pop(session_id, None)
        if kept is None:
            return []
        self._num_tokens -= len(kept.ids)
        return [kept]
