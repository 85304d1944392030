"""Costs told from counts: by hand, fitted to measurements, kept in files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from katgym_trainer import ForestStats
from katgym_trainer.packing.cost_model import CostModel

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


@pytest.mark.parametrize("zeros", [(), ("edge_s",), ("forest_s", "pair_s")])
def test_a_fit_finds_the_costs_that_made_the_seconds(zeros: tuple[str, ...]) -> None:
    cost = CostModel(**{**COSTS, **dict.fromkeys(zeros, 0.0)})
    found = CostModel.fit([(s, cost.of(s)) for s in VARIED])
    for name in COSTS:
        assert getattr(found, name) == pytest.approx(getattr(cost, name), rel=1e-9, abs=1e-16)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"costs\.json' is not JSON: Expecting value"),
        ("{", r"costs\.json' is not JSON: Expecting property name"),
        ("[1]", r"is a JSON object of forest_s, token_s, pair_s, edge_s, got \[1\]"),
        ('{"forest_s": 1}', r"is a JSON object of forest_s, .*, got \['forest_s'\]"),
        ('{"forest_s": 1, "token_s": 1, "pair_s": 1, "edge_s": 1, "x": 1}', r"got \[.*'x'\]"),
        (
            '{"forest_s": 1, "token_s": "1", "pair_s": 1, "edge_s": 1}',
            r"costs\.json': token_s is a number >= 0, got '1'",
        ),
        (
            '{"forest_s": 1, "token_s": 1, "pair_s": NaN, "edge_s": 1}',
            r"costs\.json': pair_s is a number >= 0, got nan",
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        CostModel.load(path)


def test_a_file_that_is_no_text_or_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(FileNotFoundError):
        CostModel.load(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="is not JSON: 'utf-8' codec can't decode"):
        CostModel.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_s": -1e-9}, "token_s is a number >= 0, got -1e-09"),
        ({"pair_s": float("inf")}, "pair_s is a number >= 0, got inf"),
        ({"edge_s": None}, "edge_s is a number >= 0, got None"),
        ({"forest_s": True}, "forest_s is a number >= 0, got True"),
        (dict.fromkeys(COSTS, 0), "all costs are 0, which tells no forests apart; one is above 0"),
    ],
)
def test_costs_that_cannot_be_are_refused(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        CostModel(**{**COSTS, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_parameters": 0}, "num_parameters is an int >= 1, got 0"),
        ({"head_size": 64.0}, r"head_size is an int >= 1, got 64\.0"),
        ({"num_head_parameters": -1}, "num_head_parameters is an int >= 0, got -1"),
        ({"flops_per_s": 0}, "flops_per_s is a number > 0, got 0"),
        ({"flops_per_s": "fast"}, "flops_per_s is a number > 0, got 'fast'"),
    ],
)
def test_shapes_that_cannot_be_are_refused(change, words) -> None:
    shape = {"num_parameters": 9, "num_layers": 9, "num_heads": 9, "head_size": 9}
    with pytest.raises(ValueError, match=words):
        CostModel.of_shape(**{**shape, "flops_per_s": 1.0, **change})


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([], "0 forests tell 0 of the costs forest_s, token_s, pair_s, edge_s apart: measure"),
        ([(s, 1.0) for s in VARIED[:3]], "3 forests tell 3 of the costs"),
        ([(VARIED[0], 1.0)] * 9, "9 forests tell 1 of the costs"),
        # Nothing is trained in any of them.
        ([(stats(t, p, 0), 1.0) for t, p in itertools.product((5, 9), (15, 40))], "4 .* tell 3 "),
        ([(VARIED[0], 1.0), (VARIED[1], 0.0)], r"forest 1 took 0\.0 s; allowed is finite and abo"),
        ([(VARIED[0], float("nan"))], "forest 0 took nan s"),
    ],
)
def test_measurements_that_tell_too_little_are_refused(measured, words) -> None:
    with pytest.raises(ValueError, match=words):
        CostModel.fit(measured)
