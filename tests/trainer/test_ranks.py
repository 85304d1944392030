"""Rows spread over ranks: nothing is lost, no cuts are better, gradients add up to one rank's."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from drawn_rows import counted, row_lists
from families import FAMILIES
from hypothesis import given
from hypothesis import strategies as st
from rank_process import COST, MAX_TOKENS, gradient, num_held, unlike_rows
from steps import make_rows
from tiny_model import TinyModel

from katgym_trainer import LOSSES, PackedForest, Row, forward_backward, loss, pack, trainer_logprobs
from katgym_trainer.losses.scope import Scope
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.packing.ranks import balance, pack_ranks

costs = st.builds(
    CostModel,
    forest_s=st.integers(0, 3),
    token_s=st.integers(1, 3),
    pair_s=st.integers(0, 3),
    edge_s=st.integers(0, 3),
)


def all_of(ranks: list[list[PackedForest]]) -> list[PackedForest]:
    return [forest for forests in ranks for forest in forests]


def numbers(forests: list[PackedForest]) -> dict[int, tuple[int, int]]:
    """Return number of rollout and group of each row, by its place."""
    return {
        place: (int(forest.row_rollout[r]), int(forest.row_group[r]))
        for forest in forests
        for r, place in enumerate(forest.rows.tolist())
    }


@given(
    rows=row_lists(max_rows=12, is_plain=False),
    num_ranks=st.integers(1, 5),
    max_tokens=st.integers(8, 40),
    cost=costs,
)
def test_every_row_is_on_one_rank_with_its_own_numbers(
    rows: list[Row], num_ranks: int, max_tokens: int, cost: CostModel
) -> None:
    ranks = pack_ranks(rows, num_ranks=num_ranks, max_tokens=max_tokens, cost=cost)
    assert len(ranks) == num_ranks
    assert len({len(forests) for forests in ranks}) == 1 and len(ranks[0]) > 0
    assert any(num_held(forests) == len(forests) for forests in ranks)
    places = [place for forest in all_of(ranks) for place in forest.rows.tolist()]
    assert sorted(places) == list(range(len(rows)))
    assert numbers(all_of(ranks)) == numbers(pack(rows, max_tokens=max_tokens))
    for forest in all_of(ranks):
        wanted = counted([rows[place] for place in forest.rows])
        if len(forest.rows):
            assert forest.stats == wanted and forest.stats.num_tree <= max_tokens


@given(rows=row_lists(), num_ranks=st.integers(1, 3))
def test_forests_keep_every_budget(rows: list[Row], num_ranks: int) -> None:
    cost = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
    ranks = pack_ranks(
        rows, num_ranks=num_ranks, max_tokens=99, max_pairs=40, max_trained=8, cost=cost
    )
    for forest in all_of(ranks):
        assert forest.stats.num_pairs <= 40 and forest.stats.num_trained <= 8


def least_of_all(rows: list[Row], num_ranks: int, cost: CostModel) -> float:
    """Return the cost of the dearest run for the best of all ways to cut the sorted rows."""
    ordered = sorted(rows, key=lambda row: row.token_ids.tolist())
    num = len(ordered)
    return min(
        max(cost.of(counted(ordered[a:b])) for a, b in itertools.pairwise([0, *cuts, num]))
        for num_cuts in range(min(num_ranks, num))
        for cuts in itertools.combinations(range(1, num), num_cuts)
    )


@given(rows=row_lists(max_rows=7), num_ranks=st.integers(1, 4), cost=costs)
def test_no_other_cuts_have_a_cheaper_dearest_rank(
    rows: list[Row], num_ranks: int, cost: CostModel
) -> None:
    ranks = pack_ranks(rows, num_ranks=num_ranks, max_tokens=1000, cost=cost)
    assert all(len(forests) == 1 for forests in ranks)
    held = [cost.of(forest.stats) for (forest,) in ranks if len(forest.rows)]
    assert max(held) == least_of_all(rows, num_ranks, cost)


def test_cuts_by_hand() -> None:
    # Prefixes 1 1 1 1 of three rows, 2 2 of two; what is shared counts once on each rank.
    rows = [Row(tokens, [0] * len(tokens)) for tokens in (
        [1, 1, 1, 1, 5], [1, 1, 1, 1, 6], [1, 1, 1, 1, 7, 7], [2, 2, 5, 5], [2, 2, 6],
    )]  # fmt: skip
    tokens = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
    found = pack_ranks(rows, num_ranks=2, max_tokens=99, cost=tokens)
    assert [[f.rows.tolist() for f in forests] for forests in found] == [[[0, 1, 2]], [[3, 4]]]
    assert [forests[0].stats.num_tree for forests in found] == [8, 5]
    assert balance(found, tokens) == 8 / 6.5
    # Pairs: 20 of the prefix's 10 and 5 + 5, the third 10 + 5 + 6 = 21 alone.
    pairs = CostModel(forest_s=0, token_s=0, pair_s=1, edge_s=0)
    found = pack_ranks(rows, num_ranks=3, max_tokens=99, cost=pairs)
    assert [[f.rows.tolist() for f in forests] for forests in found] == [[[0, 1]], [[2]], [[3, 4]]]
    assert [forests[0].stats.num_pairs for forests in found] == [20, 21, 13]
    assert balance(found, pairs) == 21 / 18


def test_a_token_that_several_rows_train_costs_one_edge() -> None:
    tokens = ([1, 1, 1, 1, 5], [1, 1, 1, 1, 6], [1, 1, 1, 1, 7], [2] * 4, [3] * 4)
    rows = [Row(ids, [1] * len(ids)) for ids in tokens]
    edges = CostModel(forest_s=0, token_s=0, pair_s=0, edge_s=1)
    first, second = pack_ranks(rows, num_ranks=2, max_tokens=99, cost=edges)
    # 3 + 1 + 1 + 1 of the first three and 3 + 3 of the others; 12 of the first three would be most.
    assert (first[0].rows.tolist(), second[0].rows.tolist()) == ([0, 1, 2], [3, 4])
    assert (first[0].stats.num_edges, second[0].stats.num_edges) == (6, 6)
    assert (first[0].stats.num_trained, second[0].stats.num_trained) == (12, 6)


@pytest.mark.parametrize("is_shared", [True, False])
def test_fewer_rows_than_ranks_leave_dummies(is_shared: bool) -> None:
    rows = [Row([1, 2, 3], [0, 1, 1]), Row([1 if is_shared else 4, 5, 6], [0, 1, 1])]
    cost = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
    ranks = pack_ranks(rows, num_ranks=5, max_tokens=3, cost=cost)
    assert [[f.rows.tolist() for f in forests] for forests in ranks] == [
        [[0]], [[1]], [[]], [[]], [[]]
    ]  # fmt: skip
    dummy = ranks[4][0]
    assert (dummy.stats.num_rows, dummy.stats.num_flat, dummy.stats.num_tree) == (0, 1, 1)
    assert (dummy.stats.num_pairs, dummy.stats.num_trained, dummy.stats.num_edges) == (1, 0, 0)
    assert (dummy.input_ids.tolist(), dummy.end.tolist(), dummy.stats.por) == ([0], [1], 0)
    assert dummy.row_rollout.tolist() == dummy.row_group.tolist() == []
    assert balance(ranks, cost) == pytest.approx(3 / (9 / 5))


def test_a_dummy_gives_a_gradient_of_zeros() -> None:
    row = Row([1, 2, 3], [0, 1, 1], [0, -1, -2], advantages=1.0)
    cost = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
    held, dummies = pack_ranks([row], num_ranks=2, max_tokens=9, cost=cost)
    scope = Scope.of([*held, *dummies])
    assert scope.weighted_tokens == 2 and scope.rollout_tokens.tolist() == [2]
    model = TinyModel()
    for name in LOSSES:
        options = {"max_completion_tokens": 4} if name == "dr_grpo" else {}
        metrics = forward_backward(model, dummies, loss(name, **options), scope=scope)
        assert metrics["loss"] == metrics["num_trained"] == metrics["por"] == 0
        assert len(list(model.parameters())) == sum(p.grad is not None for p in model.parameters())
        assert not gradient(model).any()
    assert trainer_logprobs(model, dummies) == {}
    assert list(trainer_logprobs(model, [*held, *dummies])) == [0]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 20])
@pytest.mark.parametrize("name", ["sft", "grpo", "dapo", "gspo"])
def test_gradients_of_ranks_add_up(name: str, num_ranks: int) -> None:
    model, rows = TinyModel(), unlike_rows()
    metrics = forward_backward(model, pack(rows, max_tokens=1000), loss(name))
    wanted = gradient(model)
    ranks = pack_ranks(rows, num_ranks=num_ranks, max_tokens=MAX_TOKENS, cost=COST)
    scope = Scope.of(all_of(ranks))
    losses = []
    for forests in ranks:
        losses.append(forward_backward(model, forests, loss(name), scope=scope)["loss"])
    assert float((gradient(model) - wanted).norm() / wanted.norm()) < 1e-10
    assert sum(losses) == pytest.approx(metrics["loss"], rel=1e-10)


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("rank_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", tmp_path], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            out, _ = process.communicate(timeout=600)
            assert process.returncode == 0, out[-3000:]
    finally:
        for process in processes:
            process.kill()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [f["num_held"] for f in found] == [1, 5]
    assert [f["num_backward"] for f in found] == [10, 10]  # 2 losses, 5 forests
    model, forests = TinyModel(), pack(unlike_rows(), max_tokens=1000)
    for name in ("grpo", "dapo"):
        forward_backward(model, forests, loss(name))
        wanted = gradient(model)
        for f in found:
            assert float((f[name] - wanted).norm() / wanted.norm()) < 1e-10


QWEN3_8B = CostModel.of_shape(
    num_parameters=6_950_000_000, num_layers=36, num_heads=32, head_size=128, flops_per_s=4e14,
    num_head_parameters=620_000_000,
)  # fmt: skip


@pytest.mark.parametrize("max_tokens", [1024, 4096])
@pytest.mark.parametrize(
    "name", ["8 rollouts x 20 step rows", "binary search tree, 6 levels of 0.5k"]
)
def test_families_are_balanced(name: str, max_tokens: int) -> None:
    (family,) = (family for family in FAMILIES if family.name == name)
    rows = make_rows(family.make(random.Random(0)).shrunk(32), 1000)
    ranks = pack_ranks(rows, num_ranks=4, max_tokens=max_tokens, cost=QWEN3_8B)
    assert 1 <= balance(ranks, QWEN3_8B) < 1.15
    dearest = max(cost_of(forests) for forests in ranks)
    quarter = len(rows) // 4
    even = [
        pack(rows[i : i + quarter], max_tokens=max_tokens) for i in range(0, len(rows), quarter)
    ]
    assert dearest <= max(cost_of(forests) for forests in even)


def cost_of(forests: list[PackedForest]) -> float:
    return sum(QWEN3_8B.of(forest.stats) for forest in forests)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_ranks": 0}, "num_ranks is an int >= 1, got 0"),
        ({"num_ranks": 2.0}, r"num_ranks is an int >= 1, got 2\.0"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"max_tokens": 2}, "row 0 has 3 tokens by itself, the budget is 2: raise the budget"),
        ({"max_pairs": 5}, "row 0 has 6 pairs by itself, the budget is 5"),
    ],
)
def test_what_cannot_be_spread_is_refused(options, words) -> None:
    with pytest.raises(ValueError, match=words):
        pack_ranks(
            [Row([1, 2, 3], [0, 1, 1])],
            **{"num_ranks": 2, "max_tokens": 9, "cost": COST, **options},
        )


def test_no_rows_and_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no rows to pack"):
        pack_ranks([], num_ranks=2, max_tokens=9, cost=COST)
    with pytest.raises(ValueError, match="there are no ranks to compare"):
        balance([], COST)
    edges = CostModel(forest_s=0, token_s=0, pair_s=0, edge_s=1)
    with pytest.raises(ValueError, match=r"forests of 2 ranks cost nothing by CostModel\(forest_s"):
        balance(pack_ranks([Row([1], [0])], num_ranks=2, max_tokens=9, cost=edges), edges)


def test_groups_on_several_ranks_are_refused_by_losses_that_compare_their_rows() -> None:
    rows = [
        Row(
            [1, 2 + i, 3], [0, 1, 1], advantages=1 - 2.0 * i, group="pair", ref_logprobs=[0, -1, -1]
        )
        for i in (0, 1)
    ]
    ranks = [pack([row.replace(group=None)], max_tokens=9) for row in rows]
    both = [
        dataclasses.replace(f, row_group=torch.tensor([0]), pack_number=0)
        for forests in ranks
        for f in forests
    ]
    scope = Scope.of(both)
    with pytest.raises(ValueError, match="loss 'dpo' needs each group on one rank; group number 0"):
        forward_backward(TinyModel(), both[:1], loss("dpo"), scope=scope)


def test_a_rank_with_dummies_alone_gives_every_parameter_a_gradient_of_zeros() -> None:
    model = TinyModel()
    rows = [Row([1, 2, 3], [0, 1, 1])]
    ranks = pack_ranks(rows, num_ranks=2, max_tokens=9, cost=COST)
    scope = Scope.of([forest for forests in ranks for forest in forests])
    (dummies,) = [forests for forests in ranks if not forests[0].stats.num_edges]
    forward_backward(model, dummies, loss("sft"), scope=scope)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
