"""Rows that a step computes, by update.

Not here: which rows share a forest (`packing/`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from katgym_trainer.losses.objective import Normaliser
from katgym_trainer.row import Row


def split_groups(
    rows: Sequence[Row], num_parts: int, *, rng: np.random.Generator
) -> list[list[Row]]:
    """Return rows in parts of about as many whole groups each, in random order.

    A row that names no group is one with its rollout, or alone. There are fewer parts where there
    are fewer groups. One part is the rows as they are, without a draw.
    """
    if num_parts == 1:
        return [list(rows)] if rows else []
    groups: dict[Hashable, list[Row]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(_group(row, place), []).append(row)
    members = list(groups.values())
    parts = np.array_split(rng.permutation(len(members)), num_parts)
    return [[row for i in part for row in members[i]] for part in parts if len(part)]


def busy_places(rows: Sequence[Row]) -> list[int]:
    """Return the places of rows of groups in which some trained token has weight and advantage."""
    names = [_group(row, place) for place, row in enumerate(rows)]
    busy = set()
    for name, row in zip(names, rows, strict=True):
        if name in busy:
            continue
        at = row.trained
        if row.advantages[at][row.weight[at] > 0].any():
            busy.add(name)
    return [place for place, name in enumerate(names) if name in busy]


def is_trained(rows: Sequence[Row]) -> bool:
    """Return whether some token is trained, with a weight above 0."""
    return any(bool(row.weight[row.trained].any()) for row in rows)


_COUNTED = (
    Normaliser.TOKENS, Normaliser.ROLLOUT_TOKENS, Normaliser.ROLLOUTS, Normaliser.GROUPS,
)  # fmt: skip


def share(some: Sequence[Row], rows: Sequence[Row], normaliser: Normaliser) -> float:
    """Return what a mean over `some` whole rollouts is multiplied by to be one over all `rows`.

        (what the normaliser counts in some) / (what it counts in rows)

    The rows left out have gradient 0. At least one row of `some` is trained.
    """
    if normaliser not in _COUNTED:
        raise ValueError(f"it is not known what normaliser {normaliser!r} counts")
    if len(some) == len(rows):
        return 1.0
    return _count(some, normaliser) / _count(rows, normaliser)


def _count(rows: Sequence[Row], normaliser: Normaliser) -> float:
    """Return the sum that `Scope` divides by: of weights, or of mean weights."""
    sums: dict[Hashable, list[float]] = {}
    for place, row in enumerate(rows):
        weight = row.weight[row.trained]
        name = row.group if normaliser is Normaliser.GROUPS else row.rollout
        counted = sums.setdefault(("own", place) if name is None else name, [0.0, 0])
        counted[0] += float(weight.sum())
        counted[1] += len(weight)
    if normaliser is Normaliser.TOKENS:
        return sum(total for total, _ in sums.values())
    return sum(total / num for total, num in sums.values() if num)


def _group(row: Row, place: int) -> Hashable:
    if row.group is not None:
        return ("group", row.group)
    return ("row", place) if row.rollout is None else ("rollout", row.rollout)
