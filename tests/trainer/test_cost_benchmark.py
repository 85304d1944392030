"""The benchmark of costs runs to its end on a tiny model; what it tells of others is held out."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import costs
import pytest
from tiny_model import TinyModel

from katgym_trainer.packing.cost_model import CostModel

SCRIPT = Path(costs.__file__)


def test_shapes_vary_what_costs() -> None:
    found = costs.shapes([16])
    assert found["1 answers of 1 to 16"] == (16, 1, 1)
    assert found["16 answers of 1 to 1"] == (1, 16, 1)
    assert len(found) == 6
    counts = {}
    for name, shape in found.items():
        stats = costs.one_forest(costs.shape_rows(shape, 1000)).stats
        counts[name] = (stats.num_tree, stats.num_pairs, stats.num_edges)
    # As many tokens and pairs, of which one or all but one are trained; then few pairs.
    assert counts["1 answers of 1 to 16"] == (17, 153, 1)
    assert counts["1 answers of 16 to 1"] == (17, 153, 16)
    assert counts["16 answers of 1 to 1"][1:] == (1 + 16 * 2, 16)


def test_a_prediction_knows_nothing_of_the_forest_it_is_of() -> None:
    cost = CostModel(forest_s=1.0, token_s=0.5, pair_s=0.01, edge_s=0.2)
    samples = []
    for name, shape in costs.shapes([16, 64]).items():
        forest = costs.one_forest(costs.shape_rows(shape, 1000))
        samples.append(
            costs.Sample(name=name, forest=forest, times_ms=[1e3 * cost.of(forest.stats)] * 3)
        )
    assert costs.told_by_others(samples) == pytest.approx([s.seconds for s in samples])
    odd = costs.Sample(name="odd", forest=samples[3].forest, times_ms=[1e9])
    changed = [*samples[:3], odd, *samples[4:]]
    assert costs.told_by_others(changed)[3] == pytest.approx(samples[3].seconds)
    assert costs.row_of(samples[3], 2 * samples[3].seconds)["error"] == 1.0


def test_a_tiny_model_is_measured() -> None:
    model = TinyModel()
    forests = {
        name: costs.one_forest(costs.shape_rows(shape, 13))
        for name, shape in costs.shapes([8]).items()
    }
    samples = costs.measure(model, forests, repeats=3)
    assert [s.name for s in samples] == list(forests)
    assert all(len(s.times_ms) == 3 and s.seconds > 0 for s in samples)
    cost = costs.fitted(samples)
    assert all(cost.of(s.forest.stats) > 0 for s in samples)


@pytest.mark.slow
def test_costs_are_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "costs.csv"
    small = "--lengths 16 48 --layers 1 --width 128 --vocabulary 50 --repeats 1"
    command = [sys.executable, SCRIPT, "--out", out, *small.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for row in rows:
        assert float(row["p50_ms"]) > 0 and float(row["predicted_ms"]) >= 0
        assert (
            abs(float(row["error"]) - (float(row["predicted_ms"]) / float(row["p50_ms"]) - 1))
            < 0.01
        )
    assert str(CostModel.load(tmp_path / "costs.json")) in done.stdout
