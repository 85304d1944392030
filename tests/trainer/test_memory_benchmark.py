"""The benchmark of memory counts what a trainer holds; committed models are what it computes."""

from __future__ import annotations

import csv
from pathlib import Path

import memory
import pytest
import torch

FOLDER = Path(memory.__file__).parent


def read(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_bytes_are_those_of_the_committed_rows(optimizer: str) -> None:
    rows = [row for row in read("optimizer_memory.csv") if row["optimizer"] == optimizer]
    assert [row["kind"] for row in rows] == list(memory.KINDS)
    for row in rows:
        model = memory.make_model("Qwen3", 256, 1, 64, mlp_width=64)
        found = memory.measure(model, {"optimizer": optimizer, **memory.KINDS[row["kind"]]})
        for name in ("weights", "masters", "gradients"):
            assert found[name] == pytest.approx(float(row[name]), abs=0.01)
        if optimizer == "adamw":  # what Muon keeps depends on the share of the vocabulary
            assert found["sum"] == pytest.approx(float(row["sum"]), abs=0.02)
        else:
            assert 4 < found["moments"] < 8


def test_of_a_tensor_and_its_views_the_memory_counts_once() -> None:
    tensor = torch.zeros(10)
    assert memory.num_bytes([tensor, tensor[2:], tensor.view(2, 5)]) == 40
    assert memory.num_bytes([torch.zeros(()).expand(1000)]) == 4


def test_committed_models_are_computed_from_committed_bytes() -> None:
    rows = list(memory.compute_all(read("optimizer_memory.csv")))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == read(
        "model_memory.csv"
    )
    assert {row["model"]: round(row["parameters"] / 1e9, 2) for row in rows} == {
        "Qwen3-0.6B": 0.6, "Llama-3.2-1B": 1.24, "Qwen3-1.7B": 1.72, "Llama-3.2-3B": 3.21,
        "Qwen3-4B": 4.02, "Llama-3.1-8B": 8.03, "Qwen3-8B": 8.19, "Qwen3-14B": 14.77,
        "Qwen3-32B": 32.76,
    }  # fmt: skip
    # By hand, Qwen3-8B at 8.03 bytes: (80e9 - 2 GiB - 8.03 * 8190735360 - 0.5 GiB) / a.
    a = 2 * 36 * 4096 + 2 * (8 * 4096 + 4 * 32 * 128 + 4 * 8 * 128 + 6 * 12288)
    wanted = (80e9 - 2.5 * 2**30 - 8.03 * 8190735360) / a
    (found,) = (
        row["max_tokens"]
        for row in rows
        if (row["model"], row["gpu_gb"], row["bytes"]) == ("Qwen3-8B", 80, "8.03")
    )
    assert found == int(wanted) == 21032
