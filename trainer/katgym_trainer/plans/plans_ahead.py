"""Plans of forests and their parts, those of the next one made while one is computed.

A GPU's work leaves the CPU free to make them, except for the copies, which take their turn on the
GPU's stream. What is made is the same. Not here: what plans are (`forest_plans.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from katgym_kernels.devices import device_of_tensors
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.plans.forest_plans import Asked, ForestPlans

Piece = PackedForest | ForestPart


class PlansAhead:
    """The plans of pieces that are run one after the other.

    Example:
        with PlansAhead(forests, device=device) as ahead:
            for forest in forests:
                plans = ahead.take(forest)
                ...  # the forward, after which it is known what is asked of plans
                ahead.start()
    """

    def __init__(
        self, pieces: Sequence[Piece], *, device: torch.device, is_forced: bool = False
    ) -> None:
        """pieces: in the order in which each is run first. is_forced: on a CPU too, to compare."""
        self._is_forced = is_forced
        self._left = deque(pieces)
        self._device = device_of_tensors(device)  # here: the thread's current one is another
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plans")
        self._next: Future[ForestPlans] | None = None
        self._asked: Asked = {}
        self._latest: ForestPlans | None = None
        self._again: dict[int, ForestPlans] = {}

    def take(self, piece: Piece, *, is_last: bool = True) -> ForestPlans:
        """Return a piece's plans; what went wrong while they were made is raised here.

        is_last: whether they are not taken again.
        """
        plans = self._again.pop(id(piece), None)
        if plans is None:
            self._left.popleft()
            plans = self._next.result() if self._next is not None else plans_of(piece, self._device)
            self._next = None
            self._remember()
            self._latest = plans
        if not is_last:
            self._again[id(piece)] = plans
        return plans

    def start(self) -> None:
        """Begin to make the next piece's plans, by what was asked of others.

        Not where the CPU computes as well: a second thread's operations take its cores from it.
        """
        is_cuda = self._device.type == "cuda"
        if not self._left or self._next is not None or not (is_cuda or self._is_forced):
            return
        self._remember()
        stream = torch.cuda.current_stream(self._device) if is_cuda else None
        asked = dict(self._asked)
        self._next = self._thread.submit(_make, self._left[0], self._device, asked, stream)

    def _remember(self) -> None:
        for key, makers in (self._latest.asked() if self._latest is not None else {}).items():
            self._asked[key] = {**self._asked.get(key, {}), **makers}

    def __enter__(self) -> PlansAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def plans_of(piece: Piece, device: torch.device) -> ForestPlans:
    """Return the plans of a forest, or of a part below the tokens on its path."""
    if isinstance(piece, PackedForest):
        return ForestPlans(piece.end, piece.position_ids, device=device)
    num = len(piece.path_part)
    return ForestPlans(
        torch.cat([torch.full((num,), num + len(piece.end)), piece.end + num]),
        torch.cat([torch.arange(num), piece.position_ids]),
        device=device,
        num_above=num,
        exits=piece.exits,
    )


def _make(piece: Piece, device: torch.device, asked: Asked, stream: Any) -> ForestPlans:
    """Return a piece's plans, with what was asked of others; a thread's work."""
    with torch.cuda.stream(stream):  # the memory of copies is that of who uses them
        plans = plans_of(piece, device)
        plans.make_ahead(asked)
    return plans
