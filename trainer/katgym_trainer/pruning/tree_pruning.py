"""Rows cut down to the branches that teach most, under a budget of unique tokens.

    pruned = prune(rows, entropies, max_tokens=100_000)
    forests = pack(pruned.rows, max_tokens=32_768)

The rows' trie consists of nodes, runs of unique tokens without a fork or a row's end. Nodes stay
with all their ancestors, so each token that is left has the context it had. Not here: what a node
is worth (`node_values.py`), which are chosen by it (`node_choice.py`).

Letters: T tokens of one row, N unique tokens, K nodes of the trie, R rows in its order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from katgym_trainer.advantages.entropy_scaling import entropies_of_trained
from katgym_trainer.config.rules import Count, check_value
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.pruning.node_choice import best_nodes, draw_nodes, inclusion_probabilities
from katgym_trainer.pruning.node_values import NodeValues
from katgym_trainer.pruning.trie_nodes import TrieNodes, unique_tokens
from katgym_trainer.row import Bools, Floats, Ints, Row


class Pruning(StrEnum):
    """How nodes are chosen."""

    BEST = "best"
    """Much score for the budget, the same every time. Biased: what is left is trained as if the
    rest had never been sampled, and the rest is always what the policy was surest of."""
    SAMPLE = "sample"
    """A draw, with the weight of each token that stays divided by the chance that it does (Horvitz
    and Thompson 1952). The expectation of a weighted sum over trained tokens is the sum over all of
    them. Means over what is left are ratios of two such sums, and losses of whole rows (GSPO) see
    rows cut short: neither is exact. A draw may hold more tokens than expected, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningStats:
    """How much is left. Shares are 1 where there was nothing to keep.

    Example:
        PruningStats(num_tokens=6, kept_tokens=0.6, kept_trained=0.7, kept_advantage_entropy=0.9)
    """

    num_tokens: int
    """Unique tokens that are left."""
    kept_tokens: float
    """Share of the unique tokens."""
    kept_trained: float
    """Share of the trained tokens of all rows."""
    kept_advantage_entropy: float
    """Share of sum(abs(advantage) * entropy) over the trained tokens of all rows; weights do not
    count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pruned:
    """What `prune` leaves."""

    rows: list[Row]
    """Cut at their ends, in the order they were given."""
    places: Ints
    """Of each among the rows that were given."""
    stats: PruningStats


def prune(
    rows: Sequence[Row],
    entropies: Sequence[Sequence[float] | Floats],
    *,
    max_tokens: int,
    mode: str = "best",
    seed: int | None = None,
) -> Pruned:
    """Return the rows without the branches that are worth least.

    A row ends after its last node that stays, and is dropped if it then trains nothing. Nodes with
    nothing trained in them or below go whatever the budget, unless the rows' `is_kept` names them:
    what it names (tokens of tool or memory events) stays, with the whole node and all before it, as
    long as its row trains something.

    entropies: of each row, [T], in nats, of the distribution that predicts each token; looked at on
        trained tokens alone.
    max_tokens: unique tokens that may stay; in a draw, that are expected to.
    mode: "best" or "sample", see `Pruning`.
    seed: of the draw, and of that alone.

    Raises `ValueError` where nothing is trained, where what must stay is beyond the budget, and
    where the budget holds no path to a trained token.
    """
    _check_options(mode, max_tokens, seed)
    if not rows:
        raise ValueError("there are no rows to prune")
    known = entropies_of_trained(rows, entropies)
    nodes = TrieNodes.build(trie := TokenTrie.build(rows))
    keep = [np.zeros(len(r), dtype=bool) if r.is_kept is None else r.is_kept for r in rows]
    values = NodeValues.of(nodes, trie, entropies=known, keep=keep)
    _check_budget(values, max_tokens)
    # 1. The nodes that stay, and the chance that each token of a row does, by the row's place.
    chances: dict[int, Floats] = {}
    if mode == Pruning.BEST:
        is_in_K = best_nodes(values, max_tokens)
    else:
        chance_K = inclusion_probabilities(values, max_tokens)
        is_in_K = draw_nodes(nodes, chance_K, np.random.default_rng(seed))
        chance_N = np.repeat(chance_K, nodes.length_K)
        for place, path in zip(trie.order_R.tolist(), unique_tokens(trie), strict=True):
            chances[place] = chance_N[path]
    # 2. The rows that still train something, by place, cut behind their last node.
    lengths = _lengths(nodes, trie, is_in_K)
    left = {
        place: _cut(row, lengths[place], chances.get(place))
        for place, row in enumerate(rows)
        if row.loss_mask[1 : lengths[place]].any()
    }
    if not left and mode == Pruning.BEST:
        shortest = int(nodes.end_K[values.is_trained_K].min())
        raise ValueError(
            f"max_tokens={max_tokens} holds no path to a trained token besides what is_kept names;"
            f" the shortest has {shortest} tokens"
        )
    return Pruned(
        rows=list(left.values()),
        places=np.array(list(left), dtype=np.int64),
        stats=_stats(trie, known, left),
    )


def _check_options(mode: str, max_tokens: int, seed: int | None) -> None:
    if mode not in list(Pruning):
        raise ValueError(f"unknown mode {mode!r}; allowed: {', '.join(Pruning)}")
    check_value("max_tokens", max_tokens, Count)
    if mode == Pruning.BEST and seed is not None:
        raise ValueError(f"seed is for mode 'sample' alone, got {seed!r} for mode 'best'")
    if mode == Pruning.SAMPLE and (not isinstance(seed, int) or seed < 0):
        raise ValueError(f"mode 'sample' needs a seed, an int >= 0, got {seed!r}")


def _check_budget(values: NodeValues, max_tokens: int) -> None:
    nodes = values.nodes
    if not values.is_trained_K.any():
        raise ValueError("no row trains a token: there is nothing to prune for")
    num_forced = int(nodes.length_K[values.is_forced_K].sum())
    if num_forced > max_tokens:
        raise ValueError(
            f"what is_kept names takes {num_forced} tokens with all before it, max_tokens is"
            f" {max_tokens}: raise it, or keep less"
        )


def _lengths(nodes: TrieNodes, trie: TokenTrie, is_in_K: Bools) -> dict[int, int]:
    """Return how many tokens of each row stay, by its place."""
    ends: list[int] = []
    for is_in, above, end in zip(
        is_in_K.tolist(), nodes.parent_K.tolist(), nodes.end_K.tolist(), strict=True
    ):
        ends.append(end if is_in else ends[above] if above >= 0 else 0)
    lengths = np.array(ends)[nodes.node_R].tolist()
    return dict(zip(trie.order_R.tolist(), lengths, strict=True))


def _cut(row: Row, length: int, chance_T: Floats | None) -> Row:
    """Return a row's first tokens, with everything that it knows of each."""
    if length == len(row) and chance_T is None:
        return row
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    cut: dict[str, Any] = {
        name: value[:length] for name, value in fields.items() if isinstance(value, np.ndarray)
    }
    if row.routes is not None:
        cut["routes"] = row.routes.first(length)
    if chance_T is not None:
        cut["weight"] = row.weight[:length] / chance_T[:length]
    return row.replace(**cut)


def _stats(trie: TokenTrie, entropies: Sequence[Floats], left: dict[int, Row]) -> PruningStats:
    num_tokens = TokenTrie.build(list(left.values())).num_tokens if left else 0
    num_trained = sum(row.num_trained for row in trie.rows)
    signal = _signal(dict(enumerate(trie.rows)), entropies)
    return PruningStats(
        num_tokens=num_tokens,
        kept_tokens=num_tokens / trie.num_tokens,
        kept_trained=sum(row.num_trained for row in left.values()) / num_trained,
        kept_advantage_entropy=_signal(left, entropies) / signal if signal else 1.0,
    )


def _signal(rows: dict[int, Row], entropies: Sequence[Floats]) -> float:
    """Return sum(abs(advantage) * entropy) over trained tokens."""
    total = 0.0
    for place, row in rows.items():
        at = row.trained
        total += float(np.abs(row.advantages[at]) @ entropies[place][at])
    return total
