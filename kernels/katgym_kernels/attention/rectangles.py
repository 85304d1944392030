"""The forest's mask as rectangles without a mask of their own, in the order of packing.

A segment [s, e) of a path, whose descendants end at E, is seen by two blocks of queries:

    its own tokens, causally:    [s, e) x [s, e)
    all its descendants, fully:  [e, E) x [s, e)

In depth-first order both are contiguous, and together they tile the mask exactly. Not here: what
is computed in a rectangle (`cascade.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def rectangles(plan: TreePlan) -> Iterator[Rectangle]:
    """Yield the rectangles of a plan without a window."""
    starts = plan.segment_starts.tolist()
    ends = plan.host_end_N[plan.segment_starts[:-1]].tolist()
    for s, e, last in zip(starts, starts[1:], ends, strict=False):
        yield Rectangle(q0=s, q1=e, k0=s, k1=e, is_causal=True)
        if e < last:
            yield Rectangle(q0=e, q1=last, k0=s, k1=e, is_causal=False)
