"""Values of a trie's nodes to a step's training.

    score = reach * sum(entropy of its trained tokens)
    density = score / tokens
    reach = sum over the rows through it of 1 / rows of their group

where a token that several rows train has the mean of their entropies, and a row without a group
counts as one of all rows. KAT-Dev-32B keeps nodes of high entropy that are likely to be reached,
and publishes no formula; this one is katgym's. Not here: which nodes are chosen (`node_choice.py`).

Letters: N unique tokens, K nodes of a trie, parents before children, R rows in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import numpy as np

from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.pruning.trie_nodes import TrieNodes, unique_tokens
from katgym_trainer.row import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeValues:
    """What there is to choose from."""

    nodes: TrieNodes
    score_K: Floats
    """What each is worth, at least 0."""
    is_trained_K: Bools
    """Whether it holds a trained token."""
    is_forced_K: Bools
    """Whether it is in whatever the budget; with every node its ancestors are too."""

    @classmethod
    def of(
        cls,
        nodes: TrieNodes,
        trie: TokenTrie,
        *,
        entropies: Sequence[Floats],
        keep: Sequence[Bools],
    ) -> NodeValues:
        """Return the worth of a trie's nodes.

        entropies: of each row, by its place; 0 on tokens that are not trained.
        keep: of each row, by its place, true on tokens that always stay.
        """
        entropy_N, num_trained_N, num_kept_N = np.zeros((3, trie.num_tokens))
        for place, path in zip(trie.order_R.tolist(), unique_tokens(trie), strict=True):
            entropy_N[path] += entropies[place]
            num_trained_N[path[1:]] += trie.rows[place].loss_mask[1:]
            num_kept_N[path] += keep[place]
        entropy_K = nodes.sums(entropy_N / np.maximum(num_trained_N, 1))
        # How likely a rollout of its group goes through each node, summed over groups.
        groups = [trie.rows[place].group for place in trie.order_R]
        sizes = {**Counter(groups), None: len(groups)}
        ends_K = np.zeros(len(nodes.parent_K))
        np.add.at(ends_K, nodes.node_R, [1 / sizes[group] for group in groups])
        return cls(
            nodes=nodes,
            score_K=nodes.upward(ends_K, add) * entropy_K,
            is_trained_K=nodes.sums(num_trained_N) > 0,
            is_forced_K=nodes.upward(nodes.sums(num_kept_N), add) > 0,
        )
