"""Places of the vertices of a group's tree: turns in rows, leaves side by side.

All answers of depth d lie in one row; places where paths part lie between rows, each a little below
the one above it. A vertex is over the middle of its children, the best child first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from katgym.run_view.trees.group_tree import GroupTree

ROW = 1.0
FORK_ROW = 0.55
"""Height that a fork between two rows adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLayout:
    """x in lanes, from 0; y in rows, from 0; one entry a vertex."""

    x: Sequence[float]
    y: Sequence[float]
    num_lanes: int
    height: float
    rows: Sequence[float]
    """y of the row of each depth."""


def tree_layout(tree: GroupTree, values: Sequence[float | None]) -> TreeLayout:
    """Return the places of a tree's vertices.

    values: of each vertex, the mean reward of the rollouts through it; None where none is valid.
    """
    children = tree.children()
    xs = [0.0] * len(tree.vertices)
    num_lanes = 0
    pending = [(0, False)]
    while pending:  # depth first, without recursion: trees may be deeper than the stack
        index, is_done = pending.pop()
        below = sorted(children[index], key=lambda i: (values[i] is None, -(values[i] or 0.0), i))
        if is_done:
            xs[index] = (xs[below[0]] + xs[below[-1]]) / 2
        elif below:
            pending.append((index, True))
            pending += [(child, False) for child in reversed(below)]
        else:
            xs[index] = num_lanes
            num_lanes += 1
    forks: list[int] = []  # between each vertex and its row; none for answers
    for vertex in tree.vertices:
        above = None if vertex.turns else vertex.parent
        forks.append(0 if above is None else forks[above] + 1)
    num_forks: dict[int, int] = {}
    for vertex, level in zip(tree.vertices, forks, strict=True):
        num_forks[vertex.depth] = max(num_forks.get(vertex.depth, 0), level)
    rows = [0.0]
    for depth in range(max(v.depth for v in tree.vertices)):
        rows.append(rows[-1] + ROW + FORK_ROW * num_forks.get(depth, 0))
    ys = [rows[v.depth] + FORK_ROW * level for v, level in zip(tree.vertices, forks, strict=True)]
    return TreeLayout(x=xs, y=ys, num_lanes=num_lanes, height=max(ys), rows=rows)
