"""Rows as one forest of tokens: what a model is run on, and what its losses are gathered from.

Tokens are in depth-first order. An edge is a token that some row trains, given those before it; an
occurrence is that edge in one row, with the row's own advantage and policy log-prob. Edges are
computed once and gathered to occurrences, which exactly gives the sum of all rows' gradients. Not
here: which rows are packed together (`packer.py`).

Letters: N packed tokens, U edges, M occurrences, R rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from katgym_trainer.packing.forest_parts import ForestPart, split_forest
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.routing.row_routes import pack_routes
from katgym_trainer.row import Ints, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestStats:
    """How much a forest shares.

    Example:
        ForestStats(num_rows=2, num_flat=10, num_tree=7, num_pairs=19, num_trained=4, num_edges=4)
    """

    num_rows: int
    num_flat: int
    """Tokens of all rows."""
    num_tree: int
    """Packed tokens."""
    num_pairs: int
    """Visible (query, key) pairs."""
    num_trained: int
    """Trained tokens of all rows."""
    num_edges: int
    """Unique ones among them."""

    @property
    def por(self) -> float:
        """Share of the rows' tokens that need not be computed (potential overlap ratio)."""
        return 1 - self.num_tree / self.num_flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedForest:
    """Plain tensors on the CPU; see `build`."""

    input_ids: Tensor
    """int64 [N]."""
    position_ids: Tensor
    """int64 [N]: depth on the path."""
    end: Tensor
    """int64 [N]: one past the last descendant."""
    multiplicity: Tensor
    """int64 [N]: rows that go through each token."""
    edge_pred: Tensor
    """int64 [U]: the packed token whose hidden state predicts the edge."""
    edge_target: Tensor
    """int64 [U]: the token id that is predicted."""
    occ_edge: Tensor
    """int64 [M]: of each trained token of each row."""
    occ_row: Tensor
    """int64 [M]: its row, a place in `rows`; ascending."""
    occ_position: Tensor
    """int64 [M]: its place in its row."""
    occ_policy_logprob: Tensor
    """float64 [M]; NaN where the row knows none."""
    occ_advantage: Tensor
    """float64 [M]."""
    occ_weight: Tensor
    """float64 [M]."""
    occ_proximal_logprob: Tensor
    """float64 [M]; NaN where the row knows none, as in all that follow."""
    occ_ref_logprob: Tensor
    """float64 [M]."""
    occ_value: Tensor
    """float64 [M]."""
    occ_return: Tensor
    """float64 [M]."""
    rows: Tensor
    """int64 [R]: place of each row among those that were packed."""
    row_group: Tensor
    """int64 [R]: number of each row's group, the same in all forests of one `pack`."""
    row_rollout: Tensor
    """int64 [R]: number of each row's rollout, the same in all forests of one `pack`."""
    pack_number: int
    """The same in all forests of one `pack`, another in those of others."""
    stats: ForestStats
    parts: tuple[ForestPart, ...] = ()
    """What runs at a time where the whole is beyond the budget; empty: the whole."""
    routes: Tensor | None = None
    """int16 [N, layers, experts of a token]: those that the sampler took, -1 where it is not told.
    A token of several rows has those of the first row, in the forest's order, that knows them.
    None: no row knows any."""

    def in_parts(self, max_tokens: int) -> PackedForest:
        """Return the same forest in parts of at most so many tokens (`split_backward.py`)."""
        return dataclasses.replace(
            self,
            parts=split_forest(
                self.input_ids,
                self.position_ids,
                end=self.end,
                edge_pred=self.edge_pred,
                edge_target=self.edge_target,
                max_tokens=max_tokens,
                routes=self.routes,
            ),
        )

    def without_routes(self) -> PackedForest:
        """Return the same forest for a model whose routers choose themselves."""
        if self.routes is None:
            return self
        parts = tuple(dataclasses.replace(part, routes=None) for part in self.parts)
        return dataclasses.replace(self, routes=None, parts=parts)

    def occurrences_of(self, edges: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the places of the occurrences of some edges, and each one's place among the edges.

        edges: int64, places in `edge_pred`; None: all.
        """
        if edges is None:
            return torch.arange(len(self.occ_edge)), self.occ_edge
        place_U = torch.full((self.stats.num_edges,), -1)
        place_U[edges] = torch.arange(len(edges))
        chosen = torch.nonzero(place_U[self.occ_edge] >= 0)[:, 0]
        return chosen, place_U[self.occ_edge[chosen]]

    def first_row(self, is_chosen_M: Tensor) -> int | None:
        """Return the place of the row of the first occurrence that is chosen; None if none is."""
        chosen = torch.nonzero(is_chosen_M)[:, 0]
        return int(self.rows[self.occ_row[chosen[0]]]) if len(chosen) else None

    def by_row(self, values_U: Tensor) -> dict[int, Tensor]:
        """Return values of edges as each row's, by its place among all rows.

        float64 [trained tokens], in the row's order, on the CPU.
        """
        values_M = values_U.double().cpu()[self.occ_edge]
        counts = torch.bincount(self.occ_row, minlength=len(self.rows)).tolist()
        return dict(zip(self.rows.tolist(), torch.split(values_M, counts), strict=True))

    @classmethod
    def build(cls, trie: TokenTrie, leaves: Sequence[int]) -> PackedForest:
        """Return the forest of some leaves of a trie, in depth-first order."""
        # The packed place of every token of the last row.
        path = np.empty(int(trie.length_R.max()), dtype=np.int64)
        num, before, length = 0, -1, 0
        tokens, depths, through, closed = [], [], [], []
        occurrences: list[dict[str, Any]] = []
        for number, leaf in enumerate(leaves):
            row = trie.rows[trie.order_R[leaf]]
            shared = int(trie.lcp_R[before + 1 : leaf + 1].min()) if number else 0
            closed.append((path[shared:length].copy(), num))  # what lies deeper has no other leaf
            before, length = leaf, len(row)
            path[shared:length] = np.arange(num, num + length - shared)
            num += length - shared
            tokens.append(row.token_ids[shared:])
            depths.append(np.arange(shared, length))
            through.append(path[:length].copy())
            occurrences.append(_occurrences(row, path, number))
        closed.append((path[:length], num))
        end = np.empty(num, dtype=np.int64)
        for places, stop in closed:
            end[places] = stop
        occ = {
            name: np.concatenate([each[name] for each in occurrences]) for name in occurrences[0]
        }
        trained, first, occ_edge = np.unique(occ["token"], return_index=True, return_inverse=True)
        input_ids, position_ids = np.concatenate(tokens), np.concatenate(depths)
        chosen = list(leaves)
        arrays = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "end": end,
            "multiplicity": np.bincount(np.concatenate(through), minlength=num),
            "edge_pred": occ["pred"][first],
            "edge_target": input_ids[trained],
            "occ_edge": occ_edge,
            **{f"occ_{name}": occ[name] for name in ("row", "position", *_OF_ROW)},
            "rows": trie.order_R[chosen],
            "row_group": trie.group_R[chosen],
            "row_rollout": trie.rollout_R[chosen],
        }
        stats = ForestStats(
            num_rows=len(chosen),
            num_flat=int(trie.length_R[chosen].sum()),
            num_tree=num,
            num_pairs=int((position_ids + 1).sum()),
            num_trained=len(occ_edge),
            num_edges=len(trained),
        )
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        routes = pack_routes([trie.rows[i].routes for i in trie.order_R[chosen]], through, num)
        tensors["routes"] = None if routes is None else torch.from_numpy(routes)
        return cls(**tensors, pack_number=trie.number, stats=stats, parts=())


_OF_ROW = {
    "policy_logprob": "policy_logprobs",
    "advantage": "advantages",
    "weight": "weight",
    "proximal_logprob": "proximal_logprobs",
    "ref_logprob": "ref_logprobs",
    "value": "values",
    "return": "returns",
}
"""What an occurrence keeps of its row -> the row's name for it."""


def _occurrences(row: Row, path: Ints, number: int) -> dict[str, Any]:
    """Return what is known of each trained token of a row, by names.

    path: the packed places of its tokens. number: the row's among those of the forest.
    """
    at = row.trained
    found: dict[str, Any] = {
        "token": path[at],
        "pred": path[at - 1],
        "row": np.full(len(at), number),
        "position": at,
    }
    for name, each in _OF_ROW.items():
        values = getattr(row, each)
        found[name] = np.full(len(at), np.nan) if values is None else values[at]
    return found
