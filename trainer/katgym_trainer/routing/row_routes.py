"""Expert routes of a row's tokens: which experts of each layer ran them when they were sampled.

Not here: which a rollout's rows have (`rollouts/rollout_routes.py`), how routers replay them
(`replay.py`), how they travel (`katgym/policies/expert_routes.py`).

Letters: T tokens of one row, N packed tokens, L layers, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MAX_EXPERT = 2**15 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RowRoutes:
    """The arrays cannot be written.

    Example:
        RowRoutes(np.array([[[0, 3]], [[1, 2]]], dtype=np.uint8), np.array([True, False]))
    """

    experts_TLK: npt.NDArray[np.unsignedinteger]
    """uint8 or uint16."""
    is_told_T: npt.NDArray[np.bool_]
    """False: the forward's own are taken, whatever stands there."""

    def __post_init__(self) -> None:
        experts, is_told = self.experts_TLK, self.is_told_T
        if experts.ndim != 3 or experts.dtype.kind != "u" or experts.dtype.itemsize > 2:
            raise ValueError(
                "routes are uint8 or uint16 of [tokens, layers, experts of a token], got"
                f" {experts.dtype} of shape {experts.shape}"
            )
        if is_told.shape != experts.shape[:1] or is_told.dtype != np.bool_:
            raise ValueError(
                f"is_told_T is true or false for each of {len(experts)} tokens, got"
                f" {is_told.dtype} of shape {is_told.shape}"
            )
        if experts.size and experts.max() > _MAX_EXPERT:
            raise ValueError(f"routes name expert {experts.max()}, allowed is 0 to {_MAX_EXPERT}")
        for array in (experts, is_told):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.is_told_T)

    def first(self, num: int) -> RowRoutes:
        """Return those of the first tokens."""
        return RowRoutes(self.experts_TLK[:num], self.is_told_T[:num])

    def to_bytes(self, at: slice) -> bytes:
        """Return some tokens' routes as bytes, equal for equal ones."""
        is_told = self.is_told_T[at]
        return is_told.tobytes() + self.experts_TLK[at][is_told].astype("<u2").tobytes()


def pack_routes(
    rows: Sequence[RowRoutes | None], paths: Sequence[npt.NDArray[np.int64]], num_tokens: int
) -> npt.NDArray[np.int16] | None:
    """Return the routes of packed tokens, [N, L, K]; -1 where no row tells, None if none tells any.

    A token of several rows has those of the first. paths: the packed places of each row's tokens.
    Raises `ValueError` for rows of different models.
    """
    known = [(row, path) for row, path in zip(rows, paths, strict=True) if row is not None]
    shapes = {row.experts_TLK.shape[1:] for row, _ in known}
    if not known:
        return None
    if len(shapes) > 1:
        raise ValueError(
            f"rows have routes of {sorted(shapes)!r} (layers, experts of a token): they were"
            " sampled from different models; train those of one, or leave out routes of the others"
        )
    found = np.full((num_tokens, *shapes.pop()), -1, dtype=np.int16)
    for row, path in reversed(known):  # the first row's stay
        found[path[row.is_told_T]] = row.experts_TLK[row.is_told_T]
    return found
