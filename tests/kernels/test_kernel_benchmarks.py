"""The benchmarks run to their end on tiny inputs, and what they write is what they measured."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kernels/benchmarks"


def run(script: str, *options: str) -> str:
    command = [sys.executable, "-W", "ignore", FOLDER / script, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_families_are_measured_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "attention.csv"
    run("attention.py", "--shrink", "128", "--repeats", "1", "--out", str(out))
    rows = read(out)
    assert len({row["family"] for row in rows}) == 10 and len(rows) == 40
    for row in rows:
        assert int(row["n_tree"]) <= int(row["n_flat"])
        assert float(row["overlap"]) == pytest.approx(
            1 - int(row["n_tree"]) / int(row["n_flat"]), abs=1e-3
        )


@pytest.mark.slow
def test_peers_and_confident_tokens(tmp_path: Path) -> None:
    out = tmp_path / "edges.csv"
    run("edges.py", "--edges", "128", "--vocabulary", "2000", "--size", "16", "--out", str(out))
    assert {row["backend"] for row in read(out)} >= {"torch", "eager"}
    told = run("edges.py", "--confident")
    assert "p=0.999  torch" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--arch 90 --head-size 128",
        "--arch 90 --head-size 128 --options",
        "--arch 90 --head-size 256 --dtype fp16",
        "--arch 90 --head-size 80",
        "--arch 80 --head-size 128",
        "--arch 89 --head-size 128",
        "--arch 86 --head-size 256",
        "--arch 89 --head-size 256 --dtype fp32",
        "--arch 100 --head-size 128",
    ],
)
def test_kernels_compile_for_gpus_and_fit_their_shared_memory(options: str) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    lines = run("compiled.py", *options.split()).splitlines()
    assert len(lines) == 7
    if "--arch 90" in options:
        assert all(" 0 wgmma" not in line for line in lines[:3])  # Hopper's own instructions
