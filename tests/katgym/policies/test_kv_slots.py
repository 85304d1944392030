"""Slots of keys and values: where a forward writes, what it sees, growing and giving back."""

from __future__ import annotations

import torch

from katgym.policies.hf.kv_slots import COLUMN_STEP, SLOT_STEP, SlotCache

CPU = torch.device("cpu")


def aim(cache, start, lengths, counts):
    return cache.aim(start, lengths, counts, device=CPU, dtype=torch.float32)


def states(cache, num_rows, num_new, *, first=0):
    """One head of size 1 whose keys are numbers counted up row by row."""
    keys = torch.arange(first, first + num_rows * num_new, dtype=torch.float32)
    return keys.view(num_rows, 1, num_new, 1)


def test_rows_of_different_lengths_are_written_at_their_own_columns():
    cache = SlotCache(1)
    cache.reserve(3, 5)
    mask, positions = aim(cache, 1, [2, 0], [1, 3])
    keys, values = cache.layers[0].update(states(cache, 2, 3), -states(cache, 2, 3))
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 2], [3, 4, 5]]  # 0 and 1 of row 0 are padding
    assert torch.equal(values, -keys)
    assert positions.tolist() == [[0, 1, 2], [0, 1, 2]]
    sees = mask[:, 0] == 0
    assert sees[0, 2].tolist() == [True, True, True]
    assert sees[1].tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert sees.any(-1).all()  # padding sees something, so that it is no NaN


def test_a_decode_step_writes_one_column_a_row():
    cache = SlotCache(1)
    cache.reserve(2, 4)
    mask, positions = aim(cache, 0, [3, 1], [1, 1])
    keys, _ = cache.layers[0].update(states(cache, 2, 1, first=5), states(cache, 2, 1))
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 0, 5], [0, 6, 0, 0]]
    assert positions.tolist() == [[3], [1]]
    assert (mask[:, 0, 0] == 0).tolist() == [[True] * 4, [True, True, False, False]]


def test_memory_grows_in_steps_keeps_what_is_stored_and_gives_the_rest_back():
    cache = SlotCache(1)
    cache.reserve(2, 3)
    aim(cache, 0, [0, 0], [3, 3])
    written, _ = cache.layers[0].update(states(cache, 2, 3), states(cache, 2, 3))
    written = written.clone()
    cache.reserve(SLOT_STEP + 1, 3)
    assert cache.window.capacity == (2 * SLOT_STEP, COLUMN_STEP)
    cache.reserve(2, COLUMN_STEP + 1)
    assert cache.window.capacity == (SLOT_STEP, 2 * COLUMN_STEP)
    assert cache.layers[0].keys.shape == (SLOT_STEP, 1, 2 * COLUMN_STEP, 1)
    assert torch.equal(cache.layers[0].keys[:2, :, :3], written)
    cache.reserve(1, 1)
    assert cache.window.capacity == (SLOT_STEP, 2 * COLUMN_STEP)


def test_rows_are_copied_taken_out_and_put_back():
    cache = SlotCache(2)
    cache.reserve(4, 3)
    aim(cache, 0, [0, 0], [3, 3])
    for layer in cache.layers:
        layer.update(states(cache, 2, 3), states(cache, 2, 3, first=10))
    cache.copy_rows([1, 0], [2, 3], 2)
    keys = cache.layers[1].keys
    assert keys[2:4, 0, :3, 0].tolist() == [[3, 4, 0], [0, 1, 0]]
    stored = cache.take(1, 3)
    keys[1] = -1
    cache.put(0, stored, 2)
    assert keys[0, 0, :3, 0].tolist() == [3, 4, 2]
    assert cache.layers[0].values[0, 0, :3, 0].tolist() == [13, 14, 12]
