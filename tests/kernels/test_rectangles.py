"""The rectangles of a forest, and the calls they are grouped into, tile its mask exactly."""

from __future__ import annotations

import pytest
import torch
from forests import AWKWARD, ends, visible_pairs
from hypothesis import given

from katgym_kernels import TreePlan
from katgym_kernels.attention.rectangles import FlashCall, flash_calls, rectangles


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


@pytest.mark.parametrize("is_grouped", [False, True])
@given(end=ends())
def test_calls_compute_each_visible_pair_once(is_grouped: bool, end: list[int]) -> None:
    plan = TreePlan.build(end)
    calls = flash_calls(plan, is_grouped=is_grouped)
    found = [pair for call in calls for pair in pairs_of(call)]
    assert sorted(found) == sorted(visible_pairs(end))
    begun: set[int] = set()
    for call in calls:
        tokens = {token for pair in pairs_of(call) for token in pair}
        assert not tokens & begun if call.is_causal else tokens <= begun
        begun |= tokens
    assert sum(r.num_pairs for r in rectangles(plan)) == len(found)


@pytest.mark.parametrize("name", AWKWARD)
def test_groups_are_as_many_as_forks_lie_above_one_another(name: str) -> None:
    end = AWKWARD[name]
    plan = TreePlan.build(end)
    forks = [(r.k0, r.q1) for r in rectangles(plan) if not r.is_causal]
    nested = [sum(start <= other < stop for start, stop in forks) for other, _ in forks]
    calls = flash_calls(plan, is_grouped=True)
    assert len(calls) == 1 + max(nested, default=0)
    assert calls[0].is_causal and calls[0].queries == slice(0, len(end))
    assert not any(call.is_causal for call in calls[1:])
