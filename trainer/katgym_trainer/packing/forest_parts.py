"""A forest cut into parts that fit a budget, each a piece of the tree that hangs off one token.

Parts hold every token once. What a part needs of the tokens above it are their keys and values,
layer by layer (`split_backward.py`). Cut from the leaves up, so that parts are as full as they can
be: where what hangs off a token does not fit, the largest piece is cut off first, which gives the
fewest cuts (Kundu and Misra 1977, doi 10.1137/0206012). Pieces cut off the same token are put
together where they fit. Not here: running them.

Letters: N tokens of the forest, n of a part, P of the path above it, U edges of a part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from katgym_trainer.config.rules import Count, check_value
from katgym_trainer.row import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForestPart:
    """Plain tensors on the CPU."""

    input_ids: Tensor
    """int64 [n]."""
    position_ids: Tensor
    """int64 [n]: depth on the path from the root."""
    end: Tensor
    """int64 [n]: one past the last descendant within the part."""
    path_part: Tensor
    """int64 [P]: the part that holds each token of the path above, from the root down."""
    path_token: Tensor
    """int64 [P]: its place in that part."""
    edges: Tensor
    """int64 [U]: the forest's edges that are predicted in this part."""
    edge_pred: Tensor
    """int64 [U]: the part's token that predicts."""
    edge_target: Tensor
    """int64 [U]: the token id that is predicted."""
    children: tuple[int, ...]
    """Parts that hang off this one; their numbers are above its own."""
    exits: Tensor
    """int64, ascending: the tokens that they hang off."""
    routes: Tensor | None = None
    """As of a `PackedForest`."""


def split_forest(
    input_ids: Tensor,
    position_ids: Tensor,
    *,
    end: Tensor,
    edge_pred: Tensor,
    edge_target: Tensor,
    max_tokens: int,
    routes: Tensor | None = None,
) -> tuple[ForestPart, ...]:
    """Return the parts of a forest, none of more than max_tokens tokens, those above first.

    The tensors are those of a `PackedForest`.
    """
    check_value("max_tokens", max_tokens, Count)
    nodes = _Nodes.of(position_ids.numpy())
    groups = _together(nodes, _cut(nodes, max_tokens), max_tokens)
    # The part of each token, and each part's first token.
    number_of = {head: number for number, heads in enumerate(groups) for head in heads}
    parent_of = dict(zip(nodes.starts[:-1].tolist(), nodes.parents.tolist(), strict=True))
    owner_N = np.empty(len(input_ids), dtype=np.int64)
    for first, stop in itertools.pairwise(sorted({*nodes.starts.tolist(), *number_of})):
        # A run that begins no piece goes on with the piece of the token it hangs off.
        owner_N[first:stop] = number_of[first] if first in number_of else owner_N[parent_of[first]]
    heads = [group[0] for group in groups]
    order = np.argsort(owner_N, kind="stable")
    starts = np.searchsorted(owner_N[order], np.arange(len(heads) + 1))
    local_N = np.empty_like(owner_N)
    local_N[order] = np.arange(len(order)) - starts[owner_N[order]]
    above = [nodes.path(head) for head in heads]
    upper = [int(owner_N[path[-1]]) if len(path) else -1 for path in above]
    end_N, pred_U = end.numpy(), edge_pred.numpy()
    parts = []
    for number, path in enumerate(above):
        children = tuple(child for child, parent in enumerate(upper) if parent == number)
        tokens = order[starts[number] : starts[number + 1]]
        edges = np.flatnonzero(owner_N[pred_U] == number)
        parts.append(
            ForestPart(
                input_ids=input_ids[tokens],
                position_ids=position_ids[tokens],
                end=torch.from_numpy(np.searchsorted(tokens, end_N[tokens])),
                path_part=torch.from_numpy(owner_N[path]),
                path_token=torch.from_numpy(local_N[path]),
                edges=torch.from_numpy(edges),
                edge_pred=torch.from_numpy(local_N[pred_U[edges]]),
                edge_target=edge_target[edges],
                children=children,
                exits=torch.tensor(
                    sorted({int(local_N[above[child][-1]]) for child in children}),
                    dtype=torch.int64,
                ),
                routes=None if routes is None else routes[tokens],
            )
        )
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Nodes:
    """Runs of tokens without a fork, in depth-first order."""

    starts: Ints
    """First token of each node, and the number of tokens."""
    parents: Ints
    """The token each node hangs off; -1: none, it is a root."""

    @classmethod
    def of(cls, depth_N: Ints) -> _Nodes:
        """Find the nodes."""
        num = len(depth_N)
        path = np.empty(int(depth_N.max()) + 1, dtype=np.int64)

        def parents(starts: Ints) -> Ints:
            found = np.full(len(starts), -1)
            for i, (first, stop) in enumerate(itertools.pairwise([*starts, num])):
                depth = depth_N[first]
                if depth:
                    found[i] = path[depth - 1]
                path[depth : depth + stop - first] = np.arange(first, stop)
            return found

        is_start = np.diff(depth_N, prepend=-1) != 1
        is_start[0] = True
        runs = np.flatnonzero(is_start)
        starts = np.union1d(runs, parents(runs) + 1)  # what follows a fork begins a node too
        return cls(starts=np.append(starts, num), parents=parents(starts))

    def path(self, token: int) -> Ints:
        """Return the tokens above one, from the root down."""
        pieces = [np.empty(0, dtype=np.int64)]
        node = int(np.searchsorted(self.starts, token, side="right")) - 1
        last = token - 1 if token > self.starts[node] else int(self.parents[node])
        while last >= 0:
            node = int(np.searchsorted(self.starts, last, side="right")) - 1
            pieces.append(np.arange(self.starts[node], last + 1))
            last = int(self.parents[node])
        return np.concatenate(pieces[::-1])


def _cut(nodes: _Nodes, max_tokens: int) -> dict[int, int]:
    """Return the first token of each piece and the piece's size."""
    sizes: dict[int, int] = {}
    hanging: dict[int, list[tuple[int, int]]] = {}  # last token of a node -> (size, first token)
    starts, parents = nodes.starts.tolist(), nodes.parents.tolist()
    for first, stop, parent in zip(starts[-2::-1], starts[:0:-1], parents[::-1], strict=True):
        below = sorted(hanging.pop(stop - 1, []))
        size = sum(piece for piece, _ in below)
        while size >= max_tokens:  # the token they hang off has no room
            piece, head = below.pop()
            sizes[head] = piece
            size -= piece
        size += stop - first
        while size > max_tokens:  # the lowest tokens fill a piece
            stop_of_rest = first + size - max_tokens
            sizes[stop_of_rest] = max_tokens
            size -= max_tokens
        if parent < 0:
            sizes[first] = size
        else:
            hanging.setdefault(parent, []).append((size, first))
    return sizes


def _together(nodes: _Nodes, sizes: dict[int, int], max_tokens: int) -> list[list[int]]:
    """Return pieces as parts: those that hang off one token, largest first, where they fit."""
    parent_of = dict(zip(nodes.starts[:-1].tolist(), nodes.parents.tolist(), strict=True))
    siblings: dict[int, list[int]] = {}
    for head in sizes:
        siblings.setdefault(parent_of.get(head, head - 1), []).append(head)
    groups: list[list[int]] = []
    for heads in siblings.values():
        bins: list[tuple[int, list[int]]] = []
        for head in sorted(heads, key=lambda head: (-sizes[head], head)):
            place = next(
                (i for i, (held, _) in enumerate(bins) if held + sizes[head] <= max_tokens), None
            )
            if place is None:
                bins.append((sizes[head], [head]))
            else:
                held, members = bins[place]
                bins[place] = (held + sizes[head], [*members, head])
        groups += [sorted(members) for _, members in bins]
    return sorted(groups)
