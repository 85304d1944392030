"""The benchmarks run to their end on small inputs; steps are compared before they are timed."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "trainer/benchmarks"


def run(script: str, out: Path, *options: str) -> list[dict[str, str]]:
    command = [sys.executable, FOLDER / script, "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_steps_are_measured(tmp_path: Path) -> None:
    small = "--shrink 128 --layers 1 --width 128 --vocabulary 100 --repeats 1 --max-tokens 1500"
    rows = run("steps.py", tmp_path / "steps.csv", *small.split())
    methods = {"rows", "padded", "varlen", "concatenated", "prompt only", "forest"}
    assert {row["method"] for row in rows} == methods
    assert all(float(row["peak_mib"]) > 0 for row in rows)
    assert all(int(row["num_tree"]) <= int(row["num_flat"]) for row in rows)
    assert all(float(row["ceiling"]) >= 1 for row in rows)


@pytest.mark.slow
def test_packing_never_leaves_more_tokens_than_first_fit(tmp_path: Path) -> None:
    rows = run("packing.py", tmp_path / "packing.csv", "--trees", "2", "--max-tokens", "30000")
    for row in rows:
        unique, packed = int(row["num_unique"]), int(row["pack"])
        assert unique <= packed <= int(row["first_fit"]) <= int(row["num_flat"])


@pytest.mark.slow
def test_runs_on_sleeping_servers_are_predicted(tmp_path: Path) -> None:
    (row,) = run("cluster/placements.py", tmp_path / "rows.csv", "--steps", "6", "--only", "8")
    assert (row["placement"], row["max_staleness"]) == ("disaggregated", "8")
    wanted = float(row["predicted"]) / float(row["steps_per_hour"]) - 1
    assert float(row["error"]) == pytest.approx(wanted, abs=0.02)
    assert 0 < float(row["predicted_sampler_idle"]) < 1
    assert 0 <= float(row["sampler_idle"]) <= 1
