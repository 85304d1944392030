"""Rows sorted so that shared prefixes lie side by side: a trie without nodes.

The rows' leaves in depth-first order, their lengths, and how long a prefix each shares with the one
before it are all there is to know: the unique tokens of rows a to b are

    len_a + sum_{a < i <= b} (len_i - lcp_i)

and likewise for visible pairs with n (n + 1) / 2 in place of n. Not here: which rows go together
(`packer.py`), the packed tensors (`packed_forest.py`).

Letters: R rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from katgym_trainer.row import Ints, Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTrie:
    """Rows in depth-first order.

    Example:
        TokenTrie.build([Row([1, 2], [0, 1]), Row([1, 3], [0, 1])]).num_tokens == 3
    """

    rows: Sequence[Row]
    """As they were given."""
    order_R: Ints
    """Depth-first: place in `rows` of each leaf."""
    length_R: Ints
    """Of each leaf's row."""
    lcp_R: Ints
    """Tokens each leaf shares with the one before it; 0 for the first."""
    rollout_R: Ints
    """Number of each leaf's rollout; rows that name none have one of their own."""
    group_R: Ints
    """Number of each leaf's group; rows that name none have one of their own."""
    number: int
    """Of the trie: numbers of rollouts and groups say nothing about those of another."""

    @classmethod
    def build(cls, rows: Sequence[Row]) -> TokenTrie:
        """Sort rows and compare neighbours; `ValueError` if there is none."""
        if not rows:
            raise ValueError("there are no rows to pack")
        contexts: dict[Hashable, int] = {}
        has_extras = any(row.extras is not None for row in rows)
        keys = []
        for place, row in enumerate(rows):
            context = contexts.setdefault(row.context, len(contexts))
            keys.append((context, _sort_key(row, has_extras=has_extras), place))
        keys.sort()
        order = np.array([place for *_, place in keys])
        lcp = np.zeros(len(rows), dtype=np.int64)
        for i in range(1, len(order)):
            one, other = rows[order[i - 1]], rows[order[i]]
            if one.context == other.context:
                num = min(len(one), len(other))
                differs = one.token_ids[:num] != other.token_ids[:num]
                if one.extras is not None or other.extras is not None:
                    differs |= _extras(one)[:num] != _extras(other)[:num]
                first = int(differs.argmax())
                lcp[i] = first if differs[first] else num
        return cls(
            number=next(_NUMBERS),
            rows=rows,
            rollout_R=_number([row.rollout for row in rows])[order],
            group_R=_number([row.group for row in rows])[order],
            order_R=order,
            length_R=np.array([len(rows[place]) for place in order]),
            lcp_R=lcp,
        )

    @property
    def num_flat(self) -> int:
        """Tokens of all rows."""
        return int(self.length_R.sum())

    @property
    def num_tokens(self) -> int:
        """Unique tokens: those that are left when every shared prefix is kept once."""
        return int((self.length_R - self.lcp_R).sum())


_NUMBERS = itertools.count()


def _number(names: Sequence[Hashable]) -> Ints:
    """Return a number for each name, the same for the same; None is another name each time."""
    numbers: dict[Hashable, int] = {}
    return np.array(
        [
            numbers.setdefault((name, place if name is None else 0), len(numbers))
            for place, name in enumerate(names)
        ]
    )


def _sort_key(row: Row, *, has_extras: bool) -> bytes:
    """Return bytes that sort as the row's tokens do, and their extras if any row has some."""
    if not has_extras:
        return row.token_ids.astype(">i4").tobytes()
    return np.stack([row.token_ids, _extras(row)], axis=1).view(np.uint64).astype(">u8").tobytes()


def _extras(row: Row) -> Ints:
    return np.zeros(len(row), dtype=np.int64) if row.extras is None else row.extras
