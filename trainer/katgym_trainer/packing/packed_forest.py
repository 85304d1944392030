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

import numpy as np
import torch
from torch import Tensor

from katgym_trainer.packing.forest_parts import ForestPart, split_forest
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.row import Floats


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

    def in_parts(self, max_tokens: int) -> PackedForest:
        """Return the same forest in parts of at most so many tokens (`gateway.py`)."""
        return dataclasses.replace(
            self,
            parts=split_forest(
                self.input_ids,
                self.position_ids,
                end=self.end,
                edge_pred=self.edge_pred,
                edge_target=self.edge_target,
                max_tokens=max_tokens,
            ),
        )

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
        packer = _Packer(trie)
        for leaf in leaves:
            packer.add(leaf)
        return packer.forest()


class _Packer:
    """Appends leaf after leaf; knows the packed place of every token on the last one's path."""

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._path = np.empty(int(trie.length_R.max()), dtype=np.int64)
        self._num_tokens = 0
        self._last_leaf: int | None = None
        self._last_length = 0
        self._tokens: list[np.ndarray] = []
        self._depths: list[np.ndarray] = []
        self._closed: list[tuple[np.ndarray, int]] = []
        self._paths: list[np.ndarray] = []
        self._occurrences: list[dict[str, np.ndarray]] = []
        self._leaves: list[int] = []

    def add(self, leaf: int) -> None:
        """Append a leaf, which comes after the last one in depth-first order."""
        trie = self._trie
        row = trie.rows[trie.order_R[leaf]]
        shared = 0
        if self._last_leaf is not None:
            shared = int(trie.lcp_R[self._last_leaf + 1 : leaf + 1].min())
        self._close(shared)
        num_new = len(row) - shared
        start = self._num_tokens
        self._path[shared : len(row)] = np.arange(start, start + num_new)
        self._tokens.append(row.token_ids[shared:])
        self._depths.append(np.arange(shared, len(row)))
        self._num_tokens += num_new
        path = self._path[: len(row)].copy()
        self._paths.append(path)
        at = np.flatnonzero(row.loss_mask[1:]) + 1
        unknown = np.full(len(row), np.nan)

        def known(values: Floats | None) -> Floats:
            found: Floats = (unknown if values is None else values)[at]
            return found

        self._occurrences.append(
            {
                "token": path[at],
                "pred": path[at - 1],
                "row": np.full(len(at), len(self._leaves)),
                "position": at,
                "policy_logprob": known(row.policy_logprobs),
                "advantage": row.advantages[at],
                "weight": row.weight[at],
                "proximal_logprob": known(row.proximal_logprobs),
                "ref_logprob": known(row.ref_logprobs),
                "value": known(row.values),
                "return": known(row.returns),
            }
        )
        self._leaves.append(leaf)
        self._last_leaf, self._last_length = leaf, len(row)

    def _close(self, depth: int) -> None:
        """End every token of the last path that lies deeper."""
        self._closed.append((self._path[depth : self._last_length].copy(), self._num_tokens))

    def forest(self) -> PackedForest:
        """Return everything as tensors."""
        self._close(0)
        num = self._num_tokens
        end = np.empty(num, dtype=np.int64)
        for tokens, stop in self._closed:
            end[tokens] = stop
        multiplicity = np.bincount(np.concatenate(self._paths), minlength=num)
        occ = {
            name: np.concatenate([part[name] for part in self._occurrences])
            for name in self._occurrences[0]
        }
        trained, first, occ_edge = np.unique(occ["token"], return_index=True, return_inverse=True)
        input_ids = np.concatenate(self._tokens)
        depths = np.concatenate(self._depths)
        places = self._trie.order_R[self._leaves]
        return PackedForest(
            input_ids=torch.from_numpy(input_ids),
            position_ids=torch.from_numpy(depths),
            end=torch.from_numpy(end),
            multiplicity=torch.from_numpy(multiplicity),
            edge_pred=torch.from_numpy(occ["pred"][first]),
            edge_target=torch.from_numpy(input_ids[trained]),
            occ_edge=torch.from_numpy(occ_edge),
            occ_row=torch.from_numpy(occ["row"]),
            occ_position=torch.from_numpy(occ["position"]),
            occ_policy_logprob=torch.from_numpy(occ["policy_logprob"]),
            occ_advantage=torch.from_numpy(occ["advantage"]),
            occ_weight=torch.from_numpy(occ["weight"]),
            occ_proximal_logprob=torch.from_numpy(occ["proximal_logprob"]),
            occ_ref_logprob=torch.from_numpy(occ["ref_logprob"]),
            occ_value=torch.from_numpy(occ["value"]),
            occ_return=torch.from_numpy(occ["return"]),
            rows=torch.from_numpy(places),
            pack_number=self._trie.number,
            row_group=torch.from_numpy(self._trie.group_R[self._leaves]),
            row_rollout=torch.from_numpy(self._trie.rollout_R[self._leaves]),
            stats=ForestStats(
                num_rows=len(places),
                num_flat=int(self._trie.length_R[self._leaves].sum()),
                num_tree=num,
                num_pairs=int((depths + 1).sum()),
                num_trained=len(occ_edge),
                num_edges=len(trained),
            ),
        )
