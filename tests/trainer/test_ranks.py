"""Rows spread over ranks: nothing is lost, no cuts are better, gradients add up to one rank's.

Then costs told from counts: by hand, fitted to measurements, kept in files.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_rows import counted, row_lists
from families import FAMILIES
from hypothesis import assume, given
from hypothesis import strategies as st
from nightly import some_of
from rank_process import COST, MAX_TOKENS, gradient, num_held, unlike_rows
from steps import make_rows
from tiny_model import TinyModel

from katgym_trainer import (
    LOSSES,
    ForestStats,
    PackedForest,
    Row,
    forward_backward,
    loss,
    pack,
    trainer_logprobs,
)
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


def test_fewer_rows_than_ranks_leave_dummies(subtests: pytest.Subtests) -> None:
    cost = CostModel(forest_s=0, token_s=1, pair_s=0, edge_s=0)
    for first in (1, 4):  # a token that is shared, or not
        with subtests.test(first=first):
            rows = [Row([1, 2, 3], [0, 1, 1]), Row([first, 5, 6], [0, 1, 1])]
            ranks = pack_ranks(rows, num_ranks=5, max_tokens=3, cost=cost)
            held = [[f.rows.tolist() for f in forests] for forests in ranks]
            assert held == [[[0]], [[1]], [[]], [[]], [[]]]
            dummy = ranks[4][0]
            assert dummy.stats == ForestStats(
                num_rows=0, num_flat=1, num_tree=1, num_pairs=1, num_trained=0, num_edges=0
            )
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


def test_gradients_of_ranks_add_up(subtests: pytest.Subtests) -> None:
    model, rows = TinyModel(), unlike_rows()
    every = list(itertools.product(["sft", "grpo", "dapo", "gspo"], [1, 2, 3, 20]))
    for name, num_ranks in some_of(every, 6):
        with subtests.test(name=name, num_ranks=num_ranks):
            metrics = forward_backward(model, pack(rows, max_tokens=1000), loss(name))
            wanted = gradient(model)
            ranks = pack_ranks(rows, num_ranks=num_ranks, max_tokens=MAX_TOKENS, cost=COST)
            scope = Scope.of(all_of(ranks))
            losses = [
                forward_backward(model, forests, loss(name), scope=scope)["loss"]
                for forests in ranks
            ]
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


def test_families_are_balanced(subtests: pytest.Subtests) -> None:
    for name in ["8 rollouts x 20 step rows", "binary search tree, 6 levels of 0.5k"]:
        (family,) = (family for family in FAMILIES if family.name == name)
        rows = make_rows(family.make(random.Random(0)).shrunk(32), 1000)
        quarter = len(rows) // 4
        for budget in [1024, 4096]:
            with subtests.test(name=name, max_tokens=budget):
                ranks = pack_ranks(rows, num_ranks=4, max_tokens=budget, cost=QWEN3_8B)
                assert 1 <= balance(ranks, QWEN3_8B) < 1.15
                parts = [rows[i : i + quarter] for i in range(0, len(rows), quarter)]
                even = [pack(part, max_tokens=budget) for part in parts]
                assert max(map(cost_of, ranks)) <= max(map(cost_of, even))


def cost_of(forests: list[PackedForest]) -> float:
    return sum(QWEN3_8B.of(forest.stats) for forest in forests)


def test_what_cannot_be_spread_is_refused(subtests: pytest.Subtests) -> None:
    wanted = {"num_ranks": 2, "max_tokens": 9, "cost": COST}
    for options, words in [
        ({"num_ranks": 0}, "num_ranks is an int >= 1, got 0"),
        ({"num_ranks": 2.0}, r"num_ranks is an int >= 1, got 2\.0"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"max_tokens": 2}, "row 0 has 3 tokens by itself, the budget is 2: raise the budget"),
        ({"max_pairs": 5}, "row 0 has 6 pairs by itself, the budget is 5"),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=words):
            pack_ranks([Row([1, 2, 3], [0, 1, 1])], **{**wanted, **options})
    with pytest.raises(ValueError, match="there are no rows to pack"):
        pack_ranks([], num_ranks=2, max_tokens=9, cost=COST)
    with pytest.raises(ValueError, match="there are no ranks to compare"):
        balance([], COST)
    edges = CostModel(forest_s=0, token_s=0, pair_s=0, edge_s=1)
    with pytest.raises(ValueError, match=r"forests of 2 ranks cost nothing by CostModel\(forest_s"):
        balance(pack_ranks([Row([1], [0])], num_ranks=2, max_tokens=9, cost=edges), edges)


def test_groups_on_several_ranks_are_refused_by_losses_that_compare_their_rows() -> None:
    both = []
    for i in (0, 1):
        row = Row([1, 2 + i, 3], [0, 1, 1], advantages=1 - 2.0 * i, ref_logprobs=[0, -1, -1])
        (forest,) = pack([row], max_tokens=9)
        both.append(dataclasses.replace(forest, row_group=torch.tensor([0]), pack_number=0))
    scope = Scope.of(both)
    with pytest.raises(ValueError, match="loss 'dpo' needs each group on one rank; group number 0"):
        forward_backward(TinyModel(), both[:1], loss("dpo"), scope=scope)


COSTS = {"forest_s": 0.004, "token_s": 1.2e-4, "pair_s": 5e-9, "edge_s": 2e-5}


def stats(tokens: int, pairs: int, edges: int) -> ForestStats:
    return ForestStats(
        num_rows=1, num_flat=tokens, num_tree=tokens, num_pairs=pairs, num_trained=edges,
        num_edges=edges,
    )  # fmt: skip


VARIED = [
    stats(100, 5_050, 1), stats(100, 5_050, 99), stats(2_000, 300_000, 700),
    stats(30_000, 9_000_000, 12_000), stats(30_000, 450_015_000, 10), stats(7, 13, 3),
]  # fmt: skip


def test_a_forest_costs_the_sum_over_its_counts() -> None:
    cost = CostModel(forest_s=10.0, token_s=1.0, pair_s=0.5, edge_s=0.25)
    assert cost.of(stats(3, 6, 2)) == 10 + 3 + 3 + 0.5
    counts = np.array([3, 4]), np.array([6, 10]), np.array([2, 0])
    assert cost.of_counts(*counts).tolist() == [16.5, 19.0]


def test_a_shape_costs_its_operations() -> None:
    cost = CostModel.of_shape(
        num_parameters=100, num_layers=2, num_heads=3, head_size=5, flops_per_s=10.0,
        num_head_parameters=50,
    )  # fmt: skip
    # 6 * 100 / 10; 2 products of 2 * 5 operations, thrice and a half, in 6 heads / 10; 6 * 50 / 10
    assert cost == CostModel(forest_s=0.0, token_s=60.0, pair_s=42.0, edge_s=30.0)


def test_a_fit_finds_the_costs_that_made_the_seconds(subtests: pytest.Subtests) -> None:
    for zeros in [(), ("edge_s",), ("forest_s", "pair_s")]:
        with subtests.test(zeros=zeros):
            cost = CostModel(**{**COSTS, **dict.fromkeys(zeros, 0.0)})
            found = CostModel.fit([(s, cost.of(s)) for s in VARIED])
            for name in COSTS:
                assert getattr(found, name) == pytest.approx(
                    getattr(cost, name), rel=1e-9, abs=1e-16
                )


def test_a_cost_that_would_be_negative_is_zero_and_the_others_are_fitted_without_it() -> None:
    # Seconds fall with edges: 2 at none, 1 at four. Without edges, the best x for x / 2 and x / 1
    # is 1.2: (1.2 / 2 - 1) / 2 + (1.2 / 1 - 1) = 0.
    measured = [
        (stats(1, 1, 0), 2.0), (stats(1, 1, 4), 1.0), (stats(1, 2, 0), 2.0), (stats(2, 1, 0), 2.0),
        (stats(1, 2, 4), 1.0), (stats(2, 1, 4), 1.0),
    ]  # fmt: skip
    found = CostModel.fit(measured)
    assert (found.forest_s, found.edge_s) == (pytest.approx(1.2), 0.0)
    assert (found.token_s, found.pair_s) == pytest.approx((0, 0), abs=1e-12)


counts = st.integers(1, 1000)
measurements = st.lists(
    st.tuples(st.builds(stats, counts, counts, counts), st.floats(1e-3, 1e3)),
    min_size=4,
    max_size=12,
)


@given(measured=measurements)
def test_no_other_costs_are_nearer_and_none_is_negative(
    measured: list[tuple[ForestStats, float]],
) -> None:
    terms = np.array([[1, s.num_tree, s.num_pairs, s.num_edges] for s, _ in measured], float)
    seconds = np.array([seconds for _, seconds in measured])
    scaled = terms / seconds[:, None]
    assume(np.linalg.cond(scaled / np.linalg.norm(scaled, axis=0)) < 1e6)
    found = CostModel.fit(measured)
    costs = np.array([getattr(found, name) for name in COSTS])
    assert (costs >= 0).all() and costs.any()
    # The conditions of Karush, Kuhn and Tucker, which the only minimum fulfils.
    gradient = scaled.T @ (scaled @ costs - 1) / np.linalg.norm(scaled, axis=0)
    assert (gradient >= -1e-6).all()
    assert gradient[costs > 0] == pytest.approx(0, abs=1e-6)


def test_costs_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    cost = CostModel(forest_s=1 / 3, token_s=1e-300, pair_s=0, edge_s=2)
    cost.save(path)
    assert CostModel.load(path) == cost
    cost = CostModel(**COSTS)
    cost.save(str(path))
    assert CostModel.load(str(path)) == cost


def test_a_broken_file_is_named(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(FileNotFoundError):
        CostModel.load(path)
    rest = b'"pair_s": 1, "edge_s": 1'
    for content, words in [
        (b"", r"costs\.json' is not JSON: Expecting value"),
        (b"{", r"costs\.json' is not JSON: Expecting property name"),
        (b"\xff\xfe\xff", "is not JSON: 'utf-8' codec can't decode"),
        (b"[1]", r"is a JSON object of forest_s, token_s, pair_s, edge_s, got \[1\]"),
        (b'{"forest_s": 1}', r"is a JSON object of forest_s, .*, got \['forest_s'\]"),
        (b'{"forest_s": 1, "token_s": 1, %s, "x": 1}' % rest, r"got \[.*'x'\]"),
        (b'{"forest_s": 1, "token_s": "1", %s}' % rest, r"costs\.json': token_s is .*, got '1'"),
        (b'{"forest_s": NaN, "token_s": 1, %s}' % rest, r"costs\.json': forest_s is .*, got nan"),
    ]:
        path.write_bytes(content)
        with subtests.test(content=content), pytest.raises(ValueError, match=words):
            CostModel.load(path)


def test_costs_that_cannot_be_are_refused(subtests: pytest.Subtests) -> None:
    for change, words in [
        ({"token_s": -1e-9}, "token_s is a number >= 0, got -1e-09"),
        ({"pair_s": float("inf")}, "pair_s is a number >= 0, got inf"),
        ({"edge_s": None}, "edge_s is a number >= 0, got None"),
        ({"forest_s": True}, "forest_s is a number >= 0, got True"),
        (dict.fromkeys(COSTS, 0), "all costs are 0, which tells no forests apart; one is above 0"),
    ]:
        with subtests.test(change=change), pytest.raises(ValueError, match=words):
            CostModel(**{**COSTS, **change})


def test_shapes_that_cannot_be_are_refused(subtests: pytest.Subtests) -> None:
    names = ("num_parameters", "num_layers", "num_heads", "head_size")
    shape = {**dict.fromkeys(names, 9), "flops_per_s": 1.0}
    for change, words in [
        ({"num_parameters": 0}, "num_parameters is an int >= 1, got 0"),
        ({"head_size": 64.0}, r"head_size is an int >= 1, got 64\.0"),
        ({"num_head_parameters": -1}, "num_head_parameters is an int >= 0, got -1"),
        ({"flops_per_s": 0}, "flops_per_s is a number > 0, got 0"),
        ({"flops_per_s": "fast"}, "flops_per_s is a number > 0, got 'fast'"),
    ]:
        with subtests.test(change=change), pytest.raises(ValueError, match=words):
            CostModel.of_shape(**{**shape, **change})


def test_measurements_that_tell_too_little_are_refused(subtests: pytest.Subtests) -> None:
    for measured, words in [
        ([], "0 forests tell 0 of the costs forest_s, token_s, pair_s, edge_s apart: measure"),
        ([(s, 1.0) for s in VARIED[:3]], "3 forests tell 3 of the costs"),
        ([(VARIED[0], 1.0)] * 9, "9 forests tell 1 of the costs"),
        # Nothing is trained in any of them.
        ([(stats(t, p, 0), 1.0) for t, p in itertools.product((5, 9), (15, 40))], "4 .* tell 3 "),
        ([(VARIED[0], 1.0), (VARIED[1], 0.0)], r"forest 1 took 0\.0 s; allowed is finite and abo"),
        ([(VARIED[0], float("nan"))], "forest 0 took nan s"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            CostModel.fit(measured)
