"""The forest's mask as rectangles without a mask of their own, and as calls of flash attention.

A segment [s, e) of a path, whose descendants end at E, is seen by two blocks of queries:

    its own tokens, causally:    [s, e) x [s, e)
    all its descendants, fully:  [e, E) x [s, e)

In depth-first order both are contiguous, and together they tile the mask exactly. The squares of
all segments are disjoint, and so are the rectangles of segments at one level: each such group may
be one call of an operation that takes many sequences. Not here: what is computed (`cascade.py`),
which of a group the CPU takes together (`cpu_batches.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from katgym_kernels.tree_plan import TreePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Queries [q0, q1) that see keys [k0, k1): all of them, or causally if both are the same.

    Example:
        Rectangle(q0=4, q1=9, k0=0, k1=4, is_causal=False)
    """

    q0: int
    q1: int
    k0: int
    k1: int
    is_causal: bool

    @property
    def num_pairs(self) -> int:
        """Visible pairs."""
        num_q, num_k = self.q1 - self.q0, self.k1 - self.k0
        return num_k * (num_k + 1) // 2 if self.is_causal else num_q * num_k


@dataclass(frozen=True, kw_only=True)
class FlashCall:
    """Rectangles of one kind, none of which shares a query or a key with another."""

    queries: slice | Tensor
    """Of all of them, in packed order; a tensor of indices where they have gaps."""
    keys: slice | Tensor
    is_causal: bool
    num: int
    """Rectangles."""
    query_offsets: Tensor
    """int32 [num + 1] on the plan's device: where each one's queries begin in `queries`."""
    key_offsets: Tensor
    max_queries: int
    """Of one of them."""
    max_keys: int

    @cached_property
    def padded_queries(self) -> Padded:
        """The queries as one batch."""
        return Padded.of(self.queries, self.query_offsets, self.max_queries)

    @cached_property
    def padded_keys(self) -> Padded:
        """The keys as one batch."""
        return Padded.of(self.keys, self.key_offsets, self.max_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Runs of tokens as a batch, each padded to the longest with its own first token."""

    tokens: slice | Tensor
    """Packed places, run by run; of num * longest tokens."""
    real: Tensor | None
    """int64: which of them are no padding; None: all."""
    padding: Tensor | None
    """int64: the others; None: none is."""

    @classmethod
    def of(cls, places: slice | Tensor, offsets: Tensor, longest: int) -> Padded:
        """Pad the runs of `places` that begin at `offsets`."""
        starts, lengths = offsets[:-1, None].long(), offsets.diff()[:, None]
        steps = torch.arange(longest, device=offsets.device)
        is_real = steps < lengths
        if bool(is_real.all()):
            return cls(tokens=places, real=None, padding=None)
        chosen = (starts + steps * is_real).flatten()
        return cls(
            tokens=chosen + places.start if isinstance(places, slice) else places[chosen],
            real=torch.nonzero(is_real.flatten())[:, 0],
            padding=torch.nonzero(~is_real.flatten())[:, 0],
        )


def rectangles(plan: TreePlan) -> Iterator[Rectangle]:
    """Yield the rectangles of a plan without a window, in packed order.

    Tokens that are keys alone have no squares, and no queries in the others' rectangles.
    """
    above = plan.num_above
    starts = sorted({*plan.segment_starts.tolist(), above})
    ends = plan.host_end_N[starts[:-1]].tolist()
    for s, e, last in zip(starts, starts[1:], ends, strict=False):
        if s >= above:
            yield Rectangle(q0=s, q1=e, k0=s, k1=e, is_causal=True)
        first = max(e, above)
        if first < last:
            yield Rectangle(q0=first, q1=last, k0=s, k1=e, is_causal=False)


Grouping = Callable[[Sequence[Rectangle]], list[list[Rectangle]]]
"""Rectangles in packed order -> those of each call, of one kind and without a common token."""


def flash_calls(plan: TreePlan, grouping: Grouping) -> list[FlashCall]:
    """Return the calls that make up a plan.

    Every token but those that are keys alone is a query and a key in one causal call, and that is
    the first it is in.
    """
    return [_call(group, plan.device) for group in grouping(list(rectangles(plan))) if group]


def by_level(made: Sequence[Rectangle]) -> list[list[Rectangle]]:
    """Return all squares, then the other rectangles by how many hold them: as few as can be."""
    levels: list[list[Rectangle]] = []
    open_ends: list[int] = []
    for r in made:
        if r.is_causal:
            continue
        while open_ends and open_ends[-1] <= r.k0:
            open_ends.pop()
        if len(open_ends) == len(levels):
            levels.append([])
        levels[len(open_ends)].append(r)
        open_ends.append(r.q1)
    return [[r for r in made if r.is_causal], *levels]


def _call(group: Sequence[Rectangle], device: torch.device) -> FlashCall:
    queries = [(r.q0, r.q1) for r in group]
    keys = [(r.k0, r.k1) for r in group]
    return FlashCall(
        queries=_places(queries, device),
        keys=_places(keys, device),
        is_causal=group[0].is_causal,
        num=len(group),
        query_offsets=_offsets(queries, device),
        key_offsets=_offsets(keys, device),
        max_queries=max(stop - start for start, stop in queries),
        max_keys=max(stop - start for start, stop in keys),
    )


def _places(runs: Sequence[tuple[int, int]], device: torch.device) -> slice | Tensor:
    if all(stop == start for (_, stop), (start, _) in itertools.pairwise(runs)):
        return slice(runs[0][0], runs[-1][1])
    return torch.cat([torch.arange(start, stop) for start, stop in runs]).to(device)


def _offsets(runs: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    lengths = torch.tensor([0, *(stop - start for start, stop in runs)])
    return lengths.cumsum(0).to(device, torch.int32)
