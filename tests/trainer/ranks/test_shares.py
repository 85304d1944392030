"""Shares of rows: every row on one rank, rollouts and groups whole, about as much work on each."""

from __future__ import annotations

import itertools
import random

import context_parallel
import pytest
from drawn_rows import row_lists
from families import FAMILIES
from hypothesis import given
from hypothesis import strategies as st
from steps import make_rows

from katgym_trainer import Row, pack
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.ranks.passes import Pass, merge_orders
from katgym_trainer.ranks.ranks import Ranks
from katgym_trainer.ranks.shares import Shares, share_places

TOKENS = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
PAIRS = CostModel(forest_s=0, token_s=1, pair_s=0.01, edge_s=0)


@given(
    rows=row_lists(max_rows=14, is_plain=False),
    num_ranks=st.integers(1, 6),
    is_by_group=st.booleans(),
)
def test_every_row_is_on_one_rank_and_rollouts_are_whole(
    rows: list[Row], num_ranks: int, is_by_group: bool
) -> None:
    found = share_places(rows, num_ranks, cost=PAIRS, is_by_group=is_by_group)
    assert len(found) == num_ranks
    assert sorted(place for places in found for place in places) == list(range(len(rows)))
    rank_of = {place: rank for rank, places in enumerate(found) for place in places}
    for name in ("rollout", "group") if is_by_group else ("rollout",):
        where: dict[object, set[int]] = {}
        for place, row in enumerate(rows):
            is_of_group = is_by_group and name == "rollout" and row.group is not None
            if getattr(row, name) is not None and not is_of_group:
                where.setdefault(getattr(row, name), set()).add(rank_of[place])
        assert all(len(ranks) == 1 for ranks in where.values())


def test_rows_that_begin_alike_are_shared_out_together() -> None:
    rows = [Row([*[g] * 50, i], [0] * 50 + [1]) for i in range(4) for g in (7, 8)]
    assert share_places(rows, 2, cost=TOKENS) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_the_slowest_rank_has_at_most_a_tenth_more_than_the_mean(subtests: pytest.Subtests) -> None:
    names = ("8 rollouts x 20 step rows", "binary search tree, 6 levels of 0.5k")
    makers = {family.name: family.make for family in FAMILIES}
    for name, num_ranks in itertools.product(names, (2, 4)):
        with subtests.test(name, num_ranks=num_ranks):
            rows = make_rows(makers[name](random.Random(0)).shrunk(8), 1000)
            shares = [
                [rows[i] for i in places] for places in share_places(rows, num_ranks, cost=PAIRS)
            ]
            costs = [
                sum(PAIRS.of(forest.stats) for forest in pack(share, max_tokens=4096))
                for share in shares
            ]
            assert max(costs) <= 1.1 * sum(costs) / num_ranks


def test_twice_as_many_parts_as_ranks_divide_a_chain() -> None:
    chain = context_parallel.group(1, 512, 512)
    found = [context_parallel.plan(chain, 1024 // num) for num in (8, 16)]
    assert [(plan["parts"], plan["pair_balance"]) for plan in found] == [(8, "1.87"), (16, "1.00")]
    answers = context_parallel.plan(context_parallel.group(8, 64, 64), 64)
    assert (answers["tokens"], answers["parts"]) == (64 + 8 * 64, 9)


def test_alone_all_rows_are_ones_own_in_their_order() -> None:
    rows = [Row([9 - i, 1], [0, 1]) for i in range(5)]
    assert Shares().mine(rows) == [0, 1, 2, 3, 4]
    assert Shares().balance(pack(rows, max_tokens=9)) == 1


@given(st.lists(st.lists(st.sampled_from(list(Pass)), max_size=8), min_size=1, max_size=5))
def test_one_order_holds_the_passes_of_every_rank(orders: list[list[Pass]]) -> None:
    merged = merge_orders(orders)
    for order in orders:
        left = iter(merged)
        assert all(kind in left for kind in order)
    assert len(merged) <= sum(map(len, orders))
    if all(order == orders[0] for order in orders):
        assert merged == orders[0]


def test_a_rank_alone_hears_itself() -> None:
    alone = Ranks()
    assert alone.gather(3) == [3] and alone.share_first("a") == "a" and alone.any(True)
    assert alone.sum({"a": 0.1}) == {"a": 0.1}
    with pytest.raises(KeyError, match="b"):
        alone.together(lambda: {}["b"])
