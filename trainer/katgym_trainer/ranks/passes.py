"""Passes of sharded models: every rank runs as many as the others, of the same kinds.

A pass through a sharded model is a collective: its weights are gathered layer by layer, forward and
again backward. Ranks whose rows make fewer passes, or passes of other kinds, run dummies of one
token in between. Not here: what a pass runs (`gradients/forest_runner.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from enum import StrEnum

from katgym_trainer.ranks.ranks import Ranks


class Pass(StrEnum):
    """What runs at a time."""

    FORWARD = "forward"
    """Without a gradient."""
    BACKWARD = "backward"
    """Forward and backward."""


def merge_orders(orders: Sequence[Sequence[Pass]]) -> list[Pass]:
    """Return one order that holds each of some orders, with gaps; next is what most ranks wait for.

    Example:
        >>> [str(each) for each in merge_orders([[Pass.BACKWARD], [Pass.FORWARD, Pass.BACKWARD]])]
        ['forward', 'backward']
    """
    left = [deque(order) for order in orders]
    found: list[Pass] = []
    while waiting := Counter(each[0] for each in left if each):
        kind = max(Pass, key=lambda one: (waiting[one], one is Pass.FORWARD))
        found.append(kind)
        for each in left:
            if each and each[0] is kind:
                each.popleft()
    return found


class PassOrder:
    """The order of all ranks' passes, as this one goes through it."""

    def __init__(self, ranks: Ranks, own: Sequence[Pass]) -> None:
        """own: this rank's passes; every rank says its own at once."""
        self._left = deque(merge_orders(ranks.gather(list(own))))

    def before(self, kind: Pass | None) -> Iterator[Pass]:
        """Yield others' passes before this rank's next, which is of a kind; None: the rest."""
        while self._left:
            if (found := self._left.popleft()) is kind:
                return
            yield found
