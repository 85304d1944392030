"""Choice of a trie's nodes under a budget of tokens: the best ones, or a weighted draw.

A node is only of use with all its ancestors, so what is chosen is always closed: a forest of whole
paths. Not here: what a node is worth (`node_values.py`), the nodes (`trie_nodes.py`).

Letters: K nodes of a trie, parents before children.
"""

from __future__ import annotations

import heapq

import numpy as np

from katgym_trainer.pruning.node_values import NodeValues
from katgym_trainer.pruning.trie_nodes import TrieNodes
from katgym_trainer.row import Bools, Floats

_LEAST_DENSITY = 0.1
"""Of the mean, that a node's density counts as in a draw: bounds the weights."""


def best_nodes(values: NodeValues, max_tokens: int) -> Bools:
    """Return nodes, [K], that hold at most so many tokens and much of what can be had for them.

    Nodes with trained tokens are tried in `horn_order`, each together with its ancestors that are
    not in yet; one that does not fit what is left of the budget is passed over.
    """
    parent = values.nodes.parent_K.tolist()
    start, end = values.nodes.start_K.tolist(), values.nodes.end_K.tolist()
    is_in = values.is_forced_K.tolist()
    room = max_tokens - int(values.nodes.length_K[values.is_forced_K].sum())
    for k in horn_order(values):
        if is_in[k] or not values.is_trained_K[k]:
            continue
        path = [k]
        while (above := parent[path[-1]]) >= 0 and not is_in[above]:
            path.append(above)
            if end[k] - start[above] > room:
                break
        if end[k] - start[path[-1]] <= room:
            room -= end[k] - start[path[-1]]
            for node in path:
                is_in[node] = True
    return np.array(is_in)


def horn_order(values: NodeValues) -> list[int]:
    """Return the nodes that are not forced, parents first, the worthiest branches first.

    W. A. Horn, Single-machine job sequencing with treelike precedence ordering and linear delay
    penalties (SIAM J. Appl. Math. 23, 1972): of all blocks, at first single nodes, the one with the
    highest score per token comes next if nothing has to come before it; else it is joined to the
    block of its parent. Wherever a block ends, no other closed set of as few tokens has a higher
    score.
    """
    blocks = _Blocks(values)
    order: list[int] = []
    while blocks.heap:
        _, block = heapq.heappop(blocks.heap)
        if blocks.is_gone(block):
            continue
        above = blocks.above(block)
        if above is None:
            order += blocks.take(block)
        else:
            blocks.join(above, block)
    return order


class _Blocks:
    """Connected nodes that come one after the other, known by the topmost."""

    def __init__(self, values: NodeValues) -> None:
        self._parent = values.nodes.parent_K.tolist()
        self._score = values.score_K.tolist()
        self._tokens = values.nodes.length_K.tolist()
        self._is_taken = values.is_forced_K.tolist()
        self._joined_to = list(range(len(self._parent)))  # a block nearer to the top, or itself
        self._next = [-1] * len(self._parent)
        self._last = list(range(len(self._parent)))
        self.heap = [(self._key(k), k) for k, taken in enumerate(self._is_taken) if not taken]
        heapq.heapify(self.heap)

    def is_gone(self, block: int) -> bool:
        """Return whether a block was taken, or joined to another.

        Of a block that others were joined to, the first entry counts: each of them was denser, so
        it came before those from when the block was smaller.
        """
        return self._is_taken[block] or self._joined_to[block] != block

    def above(self, block: int) -> int | None:
        """Return the block that has to come first; None if none has."""
        node = self._parent[block]
        if node < 0:
            return None
        joined_to = self._joined_to
        while joined_to[node] != node:
            joined_to[node] = joined_to[joined_to[node]]
            node = joined_to[node]
        return None if self._is_taken[node] else node

    def join(self, above: int, block: int) -> None:
        """Let a block follow what the one above it consists of."""
        self._joined_to[block] = above
        self._next[self._last[above]] = block
        self._last[above] = self._last[block]
        self._score[above] += self._score[block]
        self._tokens[above] += self._tokens[block]
        heapq.heappush(self.heap, (self._key(above), above))

    def take(self, block: int) -> list[int]:
        """Return a block's nodes in order; what is below may come next."""
        self._is_taken[block] = True
        found = [block]
        while self._next[found[-1]] >= 0:
            found.append(self._next[found[-1]])
        return found

    def _key(self, block: int) -> float:
        """Return what sorts the highest density first; of equal ones, parents come first."""
        return -float(self._score[block] / self._tokens[block])


def inclusion_probabilities(values: NodeValues, max_tokens: int) -> Floats:
    """Return the chance of each node to be in, [K]: such that `max_tokens` are expected.

        importance = max(density / mean, 0.1)  # the highest of the node and all below it
        chance = min(1, level * importance)  # with the level that meets the budget

    with the mean over tokens. So no node has a higher chance than its parent, and none that trains
    something has none. Forced nodes have 1, nodes with nothing trained in them or below 0.
    `ValueError` if forced nodes leave no room while others are trained.
    """
    nodes, is_forced = values.nodes, values.is_forced_K
    is_open = (nodes.upward(values.is_trained_K.astype(np.float64), max) > 0) & ~is_forced
    chance = is_forced.astype(np.float64)
    room = max_tokens - int(nodes.length_K[is_forced].sum())
    if is_open.any():
        if not room:
            raise ValueError(
                f"what is kept takes all of max_tokens={max_tokens}: nothing is left to draw from"
                " the other trained tokens with"
            )
        tokens = nodes.length_K[is_open].astype(np.float64)
        mean = values.score_K[is_open].sum() / tokens.sum() or 1.0
        density = values.score_K / nodes.length_K / mean
        importance = nodes.upward(np.maximum(density, _LEAST_DENSITY), max)
        chance[is_open] = _chances(importance[is_open], tokens, room)
    return chance


def _chances(importance_K: Floats, tokens_K: Floats, room: int) -> Floats:
    """Return min(1, level * importance) with sum(chance * tokens) == room, or ones if all fit."""
    if tokens_K.sum() <= room:
        return np.ones_like(tokens_K)
    order = np.argsort(-importance_K, kind="stable")
    importance, tokens = importance_K[order], tokens_K[order]
    certain = tokens.cumsum() - tokens  # if exactly those before are certain, this is the level:
    levels = (room - certain) / (importance * tokens)[::-1].cumsum()[::-1]
    level = levels[int((levels * importance <= 1).argmax())]
    chances: Floats = np.minimum(1.0, level * importance_K)
    return chances


def draw_nodes(nodes: TrieNodes, chance_K: Floats, rng: np.random.Generator) -> Bools:
    """Return nodes, [K], that are in each with its chance: given its parent, independently."""
    above_K = np.where(nodes.parent_K < 0, 1.0, chance_K[nodes.parent_K])
    given_K = np.divide(chance_K, above_K, out=np.zeros(len(chance_K)), where=above_K > 0)
    wins = (rng.random(len(chance_K)) < given_K).tolist()
    is_in: list[bool] = []
    for wins_k, above in zip(wins, nodes.parent_K.tolist(), strict=True):
        is_in.append(wins_k and (above < 0 or is_in[above]))
    return np.array(is_in)
