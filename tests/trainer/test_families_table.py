"""The table of families says what it must, and its script makes its rows."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "trainer/benchmarks"


def test_the_table_holds_what_works_within_its_bounds_and_why_others_are_refused() -> None:
    with (FOLDER / "model_families.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    results = [row["result"] for row in rows]
    assert len(rows) >= 120 and results.count("works") >= 100
    assert set(results) <= {"works", "refused", "no tiny model"}
    for row in rows:
        if row["result"] == "works":
            bound = max(5e-6, 2 * float(row["noise"] or 0))
            assert max(float(row["error"]), float(row["error_in_parts"])) <= bound, row
        else:
            assert row["reason"], row


@pytest.mark.slow
def test_a_row_is_measured_anew() -> None:
    spec = importlib.util.spec_from_file_location("family_table", FOLDER / "model_families.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    row = script.measure("lfm2")
    assert row["result"] == "works" and row["class"] == "Lfm2ForCausalLM"
    refused = script.measure("doge")
    assert refused["result"] == "refused" and "a mask of its own" in refused["reason"]
