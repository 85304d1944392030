"""Segments of a forest: runs of tokens without a fork, in groups that are computed together.

A segment starts from the state that its parent ended with, so those of one depth can run at the
same time, padded to the longest. Not here: what runs over them (`recurrence.py`).

Letters: N tokens, S segments, B segments of a group, T tokens of its longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from katgym_kernels.tree_plan import parents

_SLACK = 256
"""Tokens of padding that cost less than a call of their own."""


class Layout(StrEnum):
    """How the segments of a group lie."""

    PADDED = "padded"
    """Each a sequence, padded to the longest."""
    EQUAL = "equal"
    """Each a sequence, all as long."""
    CONCATENATED = "concatenated"
    """One sequence of all, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentGroup:
    """Segments of one depth that one call computes."""

    tokens_BT: Tensor
    """int64: their tokens; padding repeats the first. [1, all] if concatenated."""
    lengths_B: Tensor
    """int64."""
    parents_B: Tensor
    """int64: of each segment's parent, its place among the states kept one depth above."""
    kept: Tensor
    """int64: the segments whose final state goes on, places in the group."""

    @property
    def is_padding_BT(self) -> Tensor:
        """True beyond each segment's end."""
        places_T = torch.arange(self.tokens_BT.shape[1], device=self.lengths_B.device)
        return places_T >= self.lengths_B[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """A forest's segments, from the roots down."""

    levels: tuple[tuple[SegmentGroup, ...], ...]
    """Groups by depth; of each depth all states that are kept lie in the groups' order."""
    order_N: Tensor
    """int64: where each token lies among those of all groups, padding among them."""
    exits: Tensor
    """int64: of each exit, the place of its state among those of all depths."""

    @classmethod
    def of(cls, end_N: Tensor, exits: Tensor, *, device: torch.device, layout: Layout) -> Segments:
        """Cut a forest into segments.

        end_N: one past the last descendant of each token. exits: tokens whose state is wanted, in
        ascending order.
        """
        starts_S, lengths_S, above_S, segment_N = _runs(end_N, exits)
        exit_segments = segment_N[exits].tolist()
        is_kept = {*above_S, *exit_segments}
        depths: list[list[int]] = []
        depth_of = {-1: -1}
        for segment, above in enumerate(above_S):
            depth_of[segment] = depth = depth_of[above] + 1
            if depth == len(depths):
                depths.append([])
            depths[depth].append(segment)
        levels, row_of, num_placed = [], {-1: 0}, 0
        order_N = torch.empty(len(end_N), dtype=torch.int64)
        start_above, start = 0, 0  # of the rows of states that are kept, one depth above and here
        for members in depths:
            groups, num_kept = [], 0
            for chosen in _together(members, lengths_S, layout):
                lengths_B = torch.tensor([lengths_S[s] for s in chosen])
                places_T = torch.arange(int(lengths_B.max()))
                is_real_BT = places_T < lengths_B[:, None]
                tokens_BT = starts_S[chosen][:, None] + places_T * is_real_BT
                places = is_real_BT.flatten().nonzero()[:, 0]
                if layout is Layout.CONCATENATED:
                    places = torch.arange(len(places))
                order_N[tokens_BT[is_real_BT]] = num_placed + places
                if layout is Layout.CONCATENATED:
                    tokens_BT = tokens_BT[is_real_BT][None]
                num_placed += tokens_BT.numel()
                parents_B = torch.tensor([row_of[above_S[s]] - start_above for s in chosen])
                kept = [i for i, s in enumerate(chosen) if s in is_kept]
                row_of |= {chosen[i]: start + num_kept + n for n, i in enumerate(kept)}
                num_kept += len(kept)
                groups.append(
                    SegmentGroup(
                        tokens_BT=tokens_BT.to(device),
                        lengths_B=lengths_B.to(device),
                        parents_B=parents_B.to(device),
                        kept=torch.tensor(kept, dtype=torch.int64, device=device),
                    )
                )
            start_above, start = start, start + num_kept
            levels.append(tuple(groups))
        rows = torch.tensor([row_of[s] for s in exit_segments], dtype=torch.int64)
        return cls(levels=tuple(levels), order_N=order_N.to(device), exits=rows.to(device))


def _runs(end_N: Tensor, exits: Tensor) -> tuple[Tensor, list[int], list[int], Tensor]:
    """Return each segment's first token, length and parent or -1, and each token's segment."""
    is_start_N = torch.ones(len(end_N), dtype=torch.bool)
    is_start_N[1:] = end_N[1:] != end_N[:-1]
    is_start_N[(exits + 1).clamp(max=len(end_N) - 1)] = True
    starts_S = torch.nonzero(is_start_N)[:, 0]
    segment_N = is_start_N.cumsum(0) - 1
    lengths_S = torch.bincount(segment_N).tolist()
    parents_S = parents(end_N)[starts_S]
    above_S = torch.where(parents_S < 0, -1, segment_N[parents_S]).tolist()
    return starts_S, lengths_S, above_S, segment_N


def _together(
    members: Sequence[int], lengths: Sequence[int], layout: Layout
) -> Iterator[list[int]]:
    """Yield segments that are computed together, the longest first."""
    chosen: list[int] = []
    total = 0
    for segment in sorted(members, key=lambda s: -lengths[s]):
        longest = lengths[chosen[0]] if chosen else lengths[segment]
        total += lengths[segment]
        limit = 1.25 * total + _SLACK if layout is Layout.PADDED else total
        if layout is not Layout.CONCATENATED and (len(chosen) + 1) * longest > limit:
            yield chosen
            chosen, total = [], lengths[segment]
        chosen.append(segment)
    yield chosen
