"""Keys and values of the rows a batch holds: one slot a row, each row starting at column 0.

Rows of different length need no padding that moves: a decode step writes row b at column
`lengths[b]` and the mask hides what lies behind it. Memory grows by doubling, on demand.

Letters: B rows of this forward, S slots, H key/value heads, Q new tokens, K columns, D head size.
Not here: which row is in which slot (`hf_engine.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

MIN_COLUMNS = 128


@dataclass
class Window:
    """Where the next forward writes: rows `start` to `start + len(lengths)`, each at its length."""

    start: int = 0
    lengths: list[int] = field(default_factory=list)
    num_new: int = 1
    """Tokens each row adds."""
    rows: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    columns: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """Slot and first new column of each row, on the model's device."""

    @property
    def num_columns(self) -> int:
        """Columns the forward reads."""
        return max(self.lengths) + self.num_new


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers is untyped
    """One layer's keys and values, as transformers' models call it."""

    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, window: Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # transformers is untyped
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = key_states.new_zeros((0, key_states.shape[1], 0, key_states.shape[3]))
        self.values = value_states.new_zeros((0, value_states.shape[1], 0, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states at the window, return all that its rows hold."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        stop = window.start + len(window.lengths)
        self.reserve(stop, window.num_columns)
        for store_SHKD, new_BHQD in ((self.keys, key_states), (self.values, value_states)):
            if window.num_new == 1:
                store_SHKD[window.rows, :, window.columns] = new_BHQD[:, :, 0]
            else:
                for row, length in enumerate(window.lengths):
                    store_SHKD[window.start + row, :, length : length + window.num_new] = new_BHQD[
                        row
                    ]
        num_columns = window.num_columns
        return (
            self.keys[window.start : stop, :, :num_columns],
            self.values[window.start : stop, :, :num_columns],
        )

    def reserve(self, num_slots: int, num_columns: int) -> None:
        """Make room for so many slots and columns; what is stored keeps its place."""
        slots, heads, columns, _ = self.keys.shape
        if num_slots <= slots and num_columns <= columns:
            return
        while columns < num_columns:
            columns = max(MIN_COLUMNS, 2 * columns)
        slots = max(slots, num_slots)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((slots, heads, columns, old.shape[3]))
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.num_columns, 0

    def get_seq_length(self) -> int:
        return max(self.window.lengths, default=0)

    def get_max_length(self) -> int:
        return -1


Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""One row's keys and values taken out of its slot: per layer, H x K x D each."""


class SlotCache:
    """All layers' slots, with the moves a batch needs."""

    def __init__(self, num_layers: int) -> None:
        self.window = Window()
        self.layers = [SlotLayer(self.window) for _ in range(num_layers)]
        self.cache = Cache(layers=list(self.layers))

    def aim(
        self, start: int, lengths: list[int], num_new: int, device: torch.device
    ) -> torch.Tensor:
        """Set where the next forward writes; return its attention mask, B x 1 x Q x K, True = see.

        New token q of row b sees columns 0 to `lengths[b] + q`.
        """
        window = self.window
        window.start, window.lengths, window.num_new = start, lengths, num_new
        window.rows = torch.arange(start, start + len(lengths), device=device)
        window.columns = torch.tensor(lengths, device=device)
        columns_K = torch.arange(window.num_columns, device=device)
        last_BQ = window.columns[:, None] + torch.arange(num_new, device=device)
        return (columns_K <= last_BQ[:, :, None])[:, None]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of one slot to another."""
        for layer in self.layers:
            layer.reserve(target + 1, length)
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]

    def take(self, slot: int, length: int) -> Stored:
        """Return a copy of the first `length` columns of a slot."""
        return [
            (layer.keys[slot, :, :length].clone(), layer.values[slot, :, :length].clone())
            for layer in self.layers
        ]

    def put(self, slot: int, stored: Stored, length: int) -> None:
        """Write the first `length` columns of `stored` into a slot."""
        for layer, (keys_HKD, values_HKD) in zip(self.layers, stored, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(keys_HKD[None], values_HKD[None])
            layer.reserve(slot + 1, length)
            layer.keys[slot, :, :length] = keys_HKD[:, :length]
            layer.values[slot, :, :length] = values_HKD[:, :length]
