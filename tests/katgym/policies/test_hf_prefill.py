"""Prefill: known prefixes, the requests that are computed together, slots of keys and values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from katgym.policies.base import Sampling
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.known_prefixes import PrefixIndex
from katgym.policies.hf.kv_slots import COLUMN_STEP, SLOT_STEP, SlotCache
from katgym.policies.hf.prefill_plan import FREE_PADDING, MIN_SHARED, PrefillPlan
from katgym.policies.rendering.chat_format import num_common

# ---- known prefixes: a radix tree, against a search of all sequences

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=8)


def test_the_longest_shared_prefix_is_found_within_an_edge_and_past_it():
    index = PrefixIndex()
    index.add([1, 2, 3, 4], "a")
    index.add([1, 2, 9], "b")
    assert index.longest([1, 2, 3, 7], limit=9) == (3, "a")
    assert index.longest([1, 2, 9, 9], limit=9) == (3, "b")
    assert index.longest([1, 5], limit=9) == (1, "a")
    assert index.longest([1, 2, 3, 4], limit=3) == (3, "a")
    assert index.longest([6], limit=9) == (0, None)
    assert index.longest([], limit=0) == (0, None)


def test_what_is_removed_is_not_found_and_others_stay():
    index = PrefixIndex()
    for name in "ab":
        index.add([1, 2, 3], name)
    index.add([1, 2], "short")
    index.remove([1, 2, 3], "a")
    assert index.longest([1, 2, 3], limit=3) == (3, "b")
    index.remove([1, 2, 3], "b")
    assert index.longest([1, 2, 3], limit=3) == (2, "short")
    index.remove([1, 2], "short")
    assert index.longest([1, 2, 3], limit=3) == (0, None)
    with pytest.raises(KeyError):
        index.remove([1, 2], "short")


@given(SEQUENCES, st.sets(st.integers(0, 7)), st.lists(st.integers(0, 2), max_size=9))
def test_it_finds_what_a_search_of_all_finds(sequences, removed, wanted):
    index = PrefixIndex()
    for name, ids in enumerate(sequences):
        index.add(ids, name)
    left = dict(enumerate(sequences))
    for name in removed & left.keys():
        index.remove(left.pop(name), name)
    length, source = index.longest(wanted, limit=len(wanted))
    assert length == max((num_common(ids, wanted) for ids in left.values()), default=0)
    assert (source is None) == (length == 0)
    if source is not None:
        assert num_common(left[source], wanted) == length


# ---- the plan: waves of a common prefix, padding, budgets

TEMPLATE = list(range(100))


def make_request(ids):
    return Request(
        ids=list(ids),
        max_tokens=1,
        stop_ids=frozenset(),
        sampling=Sampling(),
        uniforms=iter([0.5]),
        session_id="s",
    )


@pytest.fixture
def known():
    return PrefixIndex()


def shape(forwards):
    """Tokens that are computed, forward by forward."""
    return [[entry.num_new for entry in forward] for forward in forwards]


def test_siblings_wait_for_the_first_and_compute_one_token_each(known):
    plan = PrefillPlan(known)
    requests = [make_request(TEMPLATE) for _ in range(4)]
    entries = [plan.add(request) for request in requests]
    assert shape(plan.forwards(2048)) == [[100], [1, 1, 1]]
    assert [entry.source for entry in entries] == [None, *[requests[0]] * 3]
    assert [entry.num_known for entry in entries] == [0, 99, 99, 99]


def test_groups_of_a_common_template_compute_it_once(known):
    plan = PrefillPlan(known)
    for group in range(3):
        for _ in range(2):
            plan.add(make_request([*TEMPLATE, *[200 + group] * 40]))
    # the first request; the other groups' first, beside its sibling; the siblings of those
    assert shape(plan.forwards(2048)) == [[140], [40, 40, 1], [1, 1]]


def test_a_known_prefix_wins_unless_a_planned_one_saves_more_than_a_forward_costs(known):
    source = make_request(TEMPLATE)
    known.add(source.ids, source)
    plan = PrefillPlan(known)
    first = plan.add(make_request([*TEMPLATE, *range(500, 520)]))
    assert (first.source, first.num_known, first.wave) == (source, 100, 0)
    near = plan.add(make_request([*TEMPLATE, *range(500, 500 + MIN_SHARED - 1), 9]))
    assert (near.source, near.num_known, near.wave) == (source, 100, 0)
    far = plan.add(make_request([*TEMPLATE, *range(500, 500 + MIN_SHARED), 9]))
    assert (far.source, far.num_known, far.wave) == (first.request, 100 + MIN_SHARED, 1)


def test_lengths_that_would_waste_padding_are_computed_apart(known):
    plan = PrefillPlan(known)
    for index, length in enumerate((200, 5, 190, 6)):
        plan.add(make_request([1000 + index] * length))
    assert shape(plan.forwards(2048)) == [[200, 190], [6, 5]]
    plan = PrefillPlan(known)
    plan.add(make_request([1] * FREE_PADDING))
    plan.add(make_request([2]))
    assert shape(plan.forwards(2048)) == [[FREE_PADDING, 1]]


def test_a_forward_is_bounded_with_its_padding_but_takes_one_request_at_least(known):
    plan = PrefillPlan(known)
    for index, length in enumerate((300, 50, 50, 49, 49)):
        plan.add(make_request([1000 + index] * length))
    assert shape(plan.forwards(100)) == [[300], [50, 50], [49, 49]]
    assert shape(PrefillPlan(known).forwards(100)) == []


# ---- slots: where a forward writes, what it sees, growing and giving back

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
