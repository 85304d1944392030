"""Known token sequences: a radix tree tells the longest prefix of a new one.

What finished requests left is kept for the next turn of their sessions. Not here: keys and values
of those that run (`kv_slots.py`), who copies from whom (`prefill_plan.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from katgym.policies.hf.kv_slots import Stored
from katgym.policies.rendering.chat_format import num_common

Source = TypeVar("Source", bound=Hashable)


class PrefixIndex(Generic[Source]):
    """Sequences with a source each; a look-up costs the edges of one path, not all sequences.

    Example:
        index.add([1, 2, 3], "a"); index.longest([1, 2, 9], limit=9) == (2, "a")
    """

    def __init__(self) -> None:
        self._root: _Node[Source] = _Node([])

    def add(self, ids: Sequence[int], source: Source) -> None:
        """Add a sequence; a source has one sequence."""
        node, start = self._root, 0
        while start < len(ids):
            child = node.children.get(ids[start])
            if child is None:
                child = _Node(list(ids[start:]))
            else:
                child = child.cut(_num_shared(child.tokens, ids, start))
            node.children[ids[start]] = child
            child.sources[source] = None
            node, start = child, start + len(child.tokens)

    def remove(self, ids: Sequence[int], source: Source) -> None:
        """Remove what `add` added; `KeyError` if it was not there."""
        node, start = self._root, 0
        while start < len(ids):
            child = node.children[ids[start]]
            del child.sources[source]
            if not child.sources:  # nor has anything below it one
                del node.children[ids[start]]
                return
            node, start = child, start + len(child.tokens)

    def longest(self, ids: Sequence[int], *, limit: int) -> tuple[int, Source | None]:
        """Return how many leading tokens, at most `limit`, are shared with whom; 0 with None."""
        node, start = self._root, 0
        source: Source | None = None
        while start < limit and (child := node.children.get(ids[start])) is not None:
            source = next(iter(child.sources))
            shared = _num_shared(child.tokens, ids, start)
            start += shared
            if shared < len(child.tokens):
                break
            node = child
        return min(start, limit), source


class _Node(Generic[Source]):
    """The tokens of an edge, and every source whose sequence has all of them."""

    __slots__ = ("children", "sources", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.children: dict[int, _Node[Source]] = {}
        self.sources: dict[Source, None] = {}

    def cut(self, length: int) -> _Node[Source]:
        """Return a node of the first `length` tokens, with the rest of this one below it."""
        if length == len(self.tokens):
            return self
        upper: _Node[Source] = _Node(self.tokens[:length])
        upper.sources = dict(self.sources)
        self.tokens = self.tokens[length:]
        upper.children[self.tokens[0]] = self
        return upper


def _num_shared(tokens: list[int], ids: Sequence[int], start: int) -> int:
    return num_common(tokens, ids[start : start + len(tokens)])


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
