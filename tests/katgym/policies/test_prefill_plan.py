"""Which requests are prefilled together: waves of a common prefix, padding, budgets."""

from __future__ import annotations

import pytest

from katgym.policies.base import Sampling
from katgym.policies.hf.hf_request import Request
from katgym.policies.hf.known_prefixes import PrefixIndex
from katgym.policies.hf.prefill_plan import FREE_PADDING, MIN_SHARED, PrefillPlan

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
