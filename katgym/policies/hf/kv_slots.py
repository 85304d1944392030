"""Keys and values of the rows a batch holds: one slot a row, each row starting at column 0.

Rows of different length need no padding that moves: a forward writes row b's new tokens from
column `lengths[b]` on, and the mask hides what lies behind them: columns past a row's length hold
leftovers.

Letters: B rows of this forward, S slots, H key/value heads, Q new tokens of a row, N new tokens of
all rows, K columns, D head size. Not here: which row is in which slot (`row_batch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

SLOT_STEP = 16
COLUMN_STEP = 128


@dataclass
class Window:
    """Where the next forward writes and reads: rows in slots `start` to `stop`."""

    start: int = 0
    stop: int = 0
    num_columns: int = 0
    """Columns the forward reads."""
    slot_N: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    column_N: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """Where the new tokens are written, row by row; on the model's device, as all here."""
    pick_N: torch.Tensor | None = None
    """Which of B x Q, flat, the new tokens are; None: all."""
    capacity: tuple[int, int] = (0, 0)
    """Slots and columns there is memory for."""


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers is untyped
    """One layer's keys and values, as transformers' models call it."""

    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, window: Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers is untyped
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        slots, columns = self.window.capacity
        self.keys = key_states.new_zeros((slots, key_states.shape[1], columns, key_states.shape[3]))
        self.values = value_states.new_zeros(
            (slots, value_states.shape[1], columns, value_states.shape[3])
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states at the window, return all that its rows hold."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        for store_SHKD, new_BHQD in ((self.keys, key_states), (self.values, value_states)):
            new_NHD = new_BHQD.transpose(1, 2).flatten(0, 1)
            if window.pick_N is not None:
                new_NHD = new_NHD[window.pick_N]
            store_SHKD[window.slot_N, :, window.column_N] = new_NHD
        return (
            self.keys[window.start : window.stop, :, : window.num_columns],
            self.values[window.start : window.stop, :, : window.num_columns],
        )

    def resize(self, num_slots: int, num_columns: int) -> None:
        """Change the memory; what lies in both keeps its place."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((num_slots, old.shape[1], num_columns, old.shape[3]))
            slots, columns = min(num_slots, old.shape[0]), min(num_columns, old.shape[2])
            new[:slots, :, :columns] = old[:slots, :, :columns]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.num_columns, 0

    def get_seq_length(self) -> int:
        return self.window.num_columns

    def get_max_length(self) -> int:
        return -1


Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""One row's keys and values taken out of its slot: per layer, H x K x D each."""


class SlotCache:
    """All layers' slots, with the moves a batch needs.

    `reserve` before anything else: the other methods write where there is memory.
    """

    def __init__(self, num_layers: int) -> None:
        self.window = Window()
        self.layers = [SlotLayer(self.window) for _ in range(num_layers)]
        self.cache = Cache(layers=list(self.layers))

    def reserve(self, num_slots: int, num_columns: int) -> None:
        """Make room for so many slots and columns. What lies beyond them may be lost.

        Memory is the product of both, so that a change gives back what the last one did not need.
        """
        slots, columns = self.window.capacity
        if num_slots <= slots and num_columns <= columns:
            return
        capacity = (_round_up(num_slots, SLOT_STEP), _round_up(num_columns, COLUMN_STEP))
        self.window.capacity = capacity
        for layer in self.layers:
            if layer.is_initialized:
                layer.resize(*capacity)

    def aim(
        self,
        start: int,
        lengths: Sequence[int],
        counts: Sequence[int],
        *,
        column_step: int = 1,
        device: torch.device,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Set where the next forward writes; return its mask, B x 1 x Q x K, and positions, B x Q.

        Row b is in slot `start + b`, has `lengths[b]` tokens and gets `counts[b]` more; a row that
        gets fewer than another has padding in front. Columns that are read are a multiple of
        `column_step`, a divisor of `COLUMN_STEP`. The mask is added to the scores: 0 or the least
        number of `dtype`. A new token sees the columns up to its own.
        """
        window = self.window
        num_new = max(counts)
        ends = [length + count for length, count in zip(lengths, counts, strict=True)]
        window.start, window.stop = start, start + len(ends)
        window.num_columns = _round_up(max(ends), column_step)
        # A token's column is its position in the row; that of padding lies before the new ones.
        position_BQ = torch.tensor(ends)[:, None] + torch.arange(-num_new, 0)
        slot_B = torch.arange(start, window.stop)
        if min(counts) == num_new:
            window.pick_N = None
            position_BQ = position_BQ.to(device)
            window.slot_N = slot_B.repeat_interleave(num_new).to(device)
            window.column_N = position_BQ.flatten()
        else:
            is_new_BQ = position_BQ >= torch.tensor(lengths)[:, None]
            row_N, query_N = is_new_BQ.nonzero(as_tuple=True)
            window.pick_N = (row_N * num_new + query_N).to(device)
            window.slot_N = slot_B[row_N].to(device)
            window.column_N = position_BQ[is_new_BQ].to(device)
            position_BQ = position_BQ.clamp_(min=0).to(device)
        is_hidden_BQK = torch.arange(window.num_columns, device=device) > position_BQ[:, :, None]
        mask_BQK = torch.zeros(is_hidden_BQK.shape, dtype=dtype, device=device)
        mask_BQK.masked_fill_(is_hidden_BQK, torch.finfo(dtype).min)
        return mask_BQK[:, None], position_BQ

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int], num_columns: int) -> None:
        """Copy the first `num_columns` columns of slots to others."""
        for layer in self.layers:
            for store_SHKD in (layer.keys, layer.values):
                store_SHKD[targets, :, :num_columns] = store_SHKD[sources, :, :num_columns]

    def take(self, slot: int, length: int) -> Stored:
        """Return a copy of the first `length` columns of a slot."""
        return [
            (layer.keys[slot, :, :length].clone(), layer.values[slot, :, :length].clone())
            for layer in self.layers
        ]

    def put(self, slot: int, stored: Stored, length: int) -> None:
        """Write the first `length` columns of `stored` into a slot."""
        for layer, (keys_HKD, values_HKD) in zip(self.layers, stored, strict=True):
            layer.keys[slot, :, :length] = keys_HKD[:, :length]
            layer.values[slot, :, :length] = values_HKD[:, :length]


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
