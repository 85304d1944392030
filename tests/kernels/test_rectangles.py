"""The rectangles of a forest, and the calls they are grouped into, tile its mask exactly."""

from __future__ import annotations

import functools

import pytest
import torch
from forests import AWKWARD, ends, visible_pairs
from hypothesis import given

from katgym_kernels import TreePlan
from katgym_kernels.attention.cpu_batches import cpu_batches
from katgym_kernels.attention.rectangles import (
    FlashCall,
    Padded,
    by_level,
    flash_calls,
    rectangles,
)


def pairs_of(call: FlashCall) -> list[tuple[int, int]]:
    """Return the (query, key) pairs that an operation for many sequences computes."""
    every = torch.arange(1000)
    queries, keys = every[call.queries].tolist(), every[call.keys].tolist()
    assert len(set(queries)) == len(queries) and len(set(keys)) == len(keys)
    q_offsets, k_offsets = call.query_offsets.tolist(), call.key_offsets.tolist()
    assert (q_offsets[-1], k_offsets[-1]) == (len(queries), len(keys))
    found = []
    for q0, q1, k0, k1 in zip(q_offsets, q_offsets[1:], k_offsets, k_offsets[1:], strict=False):
        assert 0 < q1 - q0 <= call.max_queries and 0 < k1 - k0 <= call.max_keys
        found += [
            (queries[i], keys[j])
            for i in range(q0, q1)
            for j in range(k0, k1)
            if not call.is_causal or j - k0 <= i - q0
        ]
    return found


GROUPINGS = {
    "by level": by_level,
    "in large batches": functools.partial(cpu_batches, width=1),
    "in small batches": functools.partial(cpu_batches, width=10_000),
}


@given(end=ends())
def test_calls_compute_each_visible_pair_once(end: list[int]) -> None:
    plan = TreePlan.build(end)
    wanted = sorted(visible_pairs(end))
    assert sum(r.num_pairs for r in rectangles(plan)) == len(wanted)
    for name, grouping in GROUPINGS.items():
        computed = [(call, pairs_of(call)) for call in flash_calls(plan, grouping)]
        assert sorted(pair for _, pairs in computed for pair in pairs) == wanted, name
        begun: set[int] = set()
        for call, pairs in computed:
            tokens = {token for pair in pairs for token in pair}
            assert not tokens & begun if call.is_causal else tokens <= begun, name
            begun |= tokens


def test_groups_are_as_many_as_forks_lie_above_one_another(subtests: pytest.Subtests) -> None:
    for name, end in AWKWARD.items():
        with subtests.test(name):
            plan = TreePlan.build(end)
            forks = [(r.k0, r.q1) for r in rectangles(plan) if not r.is_causal]
            nested = [sum(start <= other < stop for start, stop in forks) for other, _ in forks]
            calls = flash_calls(plan, by_level)
            assert len(calls) == 1 + max(nested, default=0)
            assert calls[0].is_causal and calls[0].queries == slice(0, len(end))
            assert not any(call.is_causal for call in calls[1:])


@given(end=ends())
def test_padded_queries_see_no_padded_key(end: list[int]) -> None:
    every = torch.arange(len(end))
    for call in flash_calls(TreePlan.build(end), GROUPINGS["in large batches"]):
        queries, keys = call.padded_queries, call.padded_keys
        for places, offsets, longest, padded in (
            (call.queries, call.query_offsets, call.max_queries, queries),
            (call.keys, call.key_offsets, call.max_keys, keys),
        ):
            tokens = every[padded.tokens]
            assert len(tokens) == call.num * longest
            if padded.real is None:
                assert padded.padding is None and torch.equal(tokens, every[places])
                continue
            assert padded.padding is not None
            assert torch.equal(tokens[padded.real], every[places])
            assert sorted([*padded.real.tolist(), *padded.padding.tolist()]) == [
                *range(len(tokens))
            ]
            # Each run begins a row of the batch, so that padding comes after it.
            starts = offsets[:-1].long()
            assert torch.equal(padded.real[starts], torch.arange(call.num) * longest)
        assert call.is_causal or keys.real is None


def test_short_answers_of_one_prompt_are_one_batch_and_long_ones_are_not() -> None:
    def plan(length: int) -> TreePlan:
        leaves = [10 + length * (i + 1) for i in range(4) for _ in range(length)]
        return TreePlan.build([10 + 4 * length] * 10 + leaves)

    def nums(length: int) -> list[tuple[bool, int]]:
        calls = flash_calls(plan(length), functools.partial(cpu_batches, width=128))
        return [(call.is_causal, call.num) for call in calls]

    assert nums(12) == [(True, 5), (False, 1)]
    assert nums(1000) == [(True, 1), (True, 1), (True, 1), (True, 1), (True, 1), (False, 1)]


def test_a_batch_keeps_its_order_and_pads_with_own_tokens() -> None:
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    padded = Padded.of(torch.tensor([7, 8, 20, 21, 22]), offsets, 3)
    assert isinstance(padded.tokens, torch.Tensor)
    assert padded.tokens.tolist() == [7, 8, 7, 20, 21, 22]
    assert padded.padding is not None and padded.padding.tolist() == [2]
