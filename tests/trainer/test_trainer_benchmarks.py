"""The benchmarks run to their end in their smallest form; committed tables say what they must."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import memory
import pytest

from katgym_trainer.packing.cost_model import CostModel

FOLDER = Path(__file__).parents[2] / "trainer/benchmarks"

pytestmark = pytest.mark.slow


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(script: str, out: Path, *options: str) -> list[dict[str, str]]:
    command = [sys.executable, FOLDER / script, *options, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return read(out)


def test_steps_are_measured(tmp_path: Path) -> None:
    small = "--shrink 128 --layers 1 --width 128 --vocabulary 100 --repeats 1 --max-tokens 1500"
    rows = run("steps.py", tmp_path / "steps.csv", *small.split())
    methods = {"rows", "padded", "varlen", "concatenated", "prompt only", "forest"}
    assert {row["method"] for row in rows} == methods
    assert all(float(row["peak_mib"]) > 0 for row in rows)
    assert all(int(row["num_tree"]) <= int(row["num_flat"]) for row in rows)
    assert all(float(row["ceiling"]) >= 1 for row in rows)


def test_packing_never_leaves_more_tokens_than_first_fit(tmp_path: Path) -> None:
    rows = run("packing.py", tmp_path / "packing.csv", "--trees", "2", "--max-tokens", "30000")
    for row in rows:
        unique, packed = int(row["num_unique"]), int(row["pack"])
        assert unique <= packed <= int(row["first_fit"]) <= int(row["num_flat"])


def test_runs_on_sleeping_servers_are_predicted(tmp_path: Path) -> None:
    (row,) = run("cluster/placements.py", tmp_path / "rows.csv", "--steps", "6", "--only", "8")
    assert (row["placement"], row["max_staleness"]) == ("disaggregated", "8")
    wanted = float(row["predicted"]) / float(row["steps_per_hour"]) - 1
    assert float(row["error"]) == pytest.approx(wanted, abs=0.02)
    assert 0 < float(row["predicted_sampler_idle"]) < 1
    assert 0 <= float(row["sampler_idle"]) <= 1


def test_costs_are_measured_and_written(tmp_path: Path) -> None:
    small = "--lengths 16 48 --layers 1 --width 128 --vocabulary 50 --repeats 1"
    rows = run("costs.py", tmp_path / "costs.csv", *small.split())
    assert len(rows) == 12
    for row in rows:
        measured, predicted = float(row["p50_ms"]), float(row["predicted_ms"])
        assert measured > 0 and predicted >= 0
        assert float(row["error"]) == pytest.approx(predicted / measured - 1, abs=0.01)
    cost = CostModel.load(tmp_path / "costs.json")
    assert cost.forest_s + cost.token_s + cost.pair_s + cost.edge_s > 0


def test_a_seed_has_a_row_of_each_variant_of_branches_from_one_start(tmp_path: Path) -> None:
    small = (
        "--seeds 1 --processes 1 --steps 1 --groups 2 --group-size 3 --imitation-steps 1"
        " --held-out 5 --tasks 40 --timed-steps 1"
    )
    rows = run("branch_ablations.py", tmp_path / "rows.csv", *small.split())
    assert len({row["variant"] for row in rows}) == len(rows) > 3
    # The same start, the same tasks, the same first step.
    for name in ("accuracy_start", "sampled_start", "num_paths", "mean_reward"):
        assert len({row[name] for row in rows}) == 1, name


def test_bytes_are_those_of_the_committed_rows() -> None:
    rows = [row for row in read(FOLDER / "optimizer_memory.csv") if row["optimizer"] == "adamw"]
    assert [row["kind"] for row in rows] == list(memory.KINDS)
    for row in rows:
        model = memory.make_model("Qwen3", 256, 1, 64, mlp_width=64)
        found = memory.measure(model, {"optimizer": "adamw", **memory.KINDS[row["kind"]]})
        for name in ("weights", "masters", "gradients"):
            assert found[name] == pytest.approx(float(row[name]), abs=0.01)
        assert found["sum"] == pytest.approx(float(row["sum"]), abs=0.02)


def test_committed_models_are_computed_from_committed_bytes() -> None:
    rows = list(memory.compute_all(read(FOLDER / "optimizer_memory.csv")))
    found = [{name: str(value) for name, value in row.items()} for row in rows]
    assert found == read(FOLDER / "model_memory.csv")
    # By hand, Qwen3-8B at 8.03 bytes: (80e9 - 2 GiB - 8.03 * 8190735360 - 0.5 GiB) / a.
    a = 2 * 36 * 4096 + 2 * (8 * 4096 + 4 * 32 * 128 + 4 * 8 * 128 + 6 * 12288)
    wanted = (80e9 - 2.5 * 2**30 - 8.03 * 8190735360) / a
    by_key = {(row["model"], row["gpu_gb"], row["bytes"]): row["max_tokens"] for row in rows}
    assert by_key["Qwen3-8B", 80, "8.03"] == int(wanted) == 21032


def test_families_that_work_are_within_their_bounds_and_others_say_why(tmp_path: Path) -> None:
    rows = read(FOLDER / "model_families.csv")
    results = [row["result"] for row in rows]
    assert len(rows) >= 120 and results.count("works") >= 100
    assert set(results) <= {"works", "refused", "no tiny model"}
    for row in rows:
        if row["result"] == "works":
            bound = max(5e-6, 2 * float(row["noise"] or 0))
            assert max(float(row["error"]), float(row["error_in_parts"])) <= bound, row
            worst = max(float(row["bfloat16_error"]), float(row["bfloat16_error_in_parts"]))
            rounded = 1.25 * 1.05  # the bound, and what two digits make of it
            near = worst <= rounded * float(row["bfloat16_rows"])
            assert row["bfloat16"] == "works" and near, row
        else:
            assert row["reason"], row
    refused, works = run("model_families.py", tmp_path / "rows.csv", "lfm2", "doge")
    assert works["result"] == works["bfloat16"] == "works" and works["class"] == "Lfm2ForCausalLM"
    assert refused["result"] == "refused" and "a mask of its own" in refused["reason"]
