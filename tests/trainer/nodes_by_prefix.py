"""The oracle of pruning: nodes as lists of prefixes, their worth, every closed choice of them.

Knows nothing of sorted rows. Rows have one context and no extras.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from katgym_trainer import Row

Prefix = tuple[int, ...]
Node = frozenset[int]
"""The rows through it: nodes are where these change."""


@dataclass
class Nodes:
    """Nodes of rows, by the rows through them."""

    prefixes: dict[Node, list[Prefix]] = field(default_factory=dict)
    score: dict[Node, float] = field(default_factory=dict)
    num_trained: dict[Node, int] = field(default_factory=dict)

    def ancestors(self, node: Node) -> list[Node]:
        """Return the nodes above one."""
        return [other for other in self.prefixes if other > node]

    def size(self, nodes: frozenset[Node]) -> int:
        """Return how many unique tokens nodes hold."""
        return sum(len(self.prefixes[node]) for node in nodes)

    def closed(self) -> list[frozenset[Node]]:
        """Return every set of nodes with all their ancestors."""
        found = []
        for flags in itertools.product((False, True), repeat=len(self.prefixes)):
            chosen = frozenset(itertools.compress(self.prefixes, flags))
            if all(above in chosen for node in chosen for above in self.ancestors(node)):
                found.append(chosen)
        return found

    def is_fertile(self, node: Node) -> bool:
        """Return whether something is trained in a node or below."""
        return any(self.num_trained[other] for other in self.prefixes if other <= node)

    def chances(self, max_tokens: int) -> dict[Node, float]:
        """Return each node's chance in a draw without kept tokens, by bisection of the level."""
        fertile = [node for node in self.prefixes if self.is_fertile(node)]
        size = {node: len(self.prefixes[node]) for node in fertile}
        mean = sum(self.score[node] for node in fertile) / sum(size.values())
        density = {n: max(0.1, self.score[n] / size[n] / mean if mean else 0) for n in fertile}
        importance = {n: max(density[o] for o in fertile if o <= n) for n in fertile}
        low, high = 0.0, 1e6
        for _ in range(200):
            level = (low + high) / 2
            expected = sum(min(1.0, level * importance[node]) * size[node] for node in fertile)
            low, high = (level, high) if expected < max_tokens else (low, level)
        return {n: min(1.0, high * importance[n]) if n in fertile else 0.0 for n in self.prefixes}

    def chance_of(self, chosen: frozenset[Node], chances: dict[Node, float]) -> float:
        """Return how likely a closed choice is if nodes are drawn given their parents."""
        total = 1.0
        for node in self.prefixes:
            above = self.ancestors(node)
            if all(other in chosen for other in above):
                parent = chances[min(above, key=len)] if above else 1.0
                given = chances[node] / parent if parent else 0.0
                total *= given if node in chosen else 1 - given
        return total


def nodes_of(rows: Sequence[Row], entropies: Sequence[Sequence[float]]) -> Nodes:
    """Return the nodes of rows and what each is worth."""
    prefixes = {tuple(row.token_ids[: t + 1].tolist()) for row in rows for t in range(len(row))}
    found = Nodes()
    for prefix in sorted(prefixes, key=len):
        end = len(prefix) - 1
        through = [
            i for i, row in enumerate(rows) if tuple(row.token_ids[: end + 1].tolist()) == prefix
        ]
        node = frozenset(through)
        found.prefixes.setdefault(node, []).append(prefix)
        found.score.setdefault(node, 0.0)
        trained = [i for i in through if rows[i].loss_mask[end] and end > 0]
        found.num_trained[node] = found.num_trained.get(node, 0) + len(trained)
        if trained:
            reach = 0.0
            for i in through:
                group = rows[i].group
                same = [row for row in rows if group is None or row.group == group]
                reach += 1 / len(same)
            mean = sum(entropies[i][end] for i in trained) / len(trained)
            found.score[node] += reach * mean
    return found
