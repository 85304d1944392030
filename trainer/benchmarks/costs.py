"""Fits `CostModel` to measured forests, and tells how far off its predictions are.

    python trainer/benchmarks/costs.py --out trainer/benchmarks/costs_cpu.csv

Times `forward_backward` of a Qwen3-shaped model, one forest at a time, on forests whose tokens,
pairs and edges vary apart. Each forest is then told by costs that were fitted to all others; the
costs fitted to all are written beside the CSV as JSON, for `CostModel.load`. The gradient of the
smallest forest is compared with its rows' before anything is timed. Not here: the model and its
rows (`steps.py`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from methods import rows_alone
from steps import gradient, make_model, make_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import Node, Tree
from timing import Rows, device_name, in_turns, quantiles

from katgym_trainer import PackedForest, Row, forward_backward, loss, pack
from katgym_trainer.packing.cost_model import CostModel

COLUMNS = ("forest", "num_rows", "num_tree", "num_pairs", "num_edges", "p20_ms", "p50_ms", "p80_ms",
           "predicted_ms", "error", "repeats")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One forest and the milliseconds of its runs."""

    name: str
    forest: PackedForest
    times_ms: list[float]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.times_ms) / 1e3


def shapes(lengths: Iterable[int]) -> dict[str, tuple[int, int, int]]:
    """Return prompt, answers and tokens of an answer: for each length, forests of unlike shares.

    Few or many edges of as many tokens and pairs, few or many pairs of as many tokens.
    """
    found = {}
    for length in lengths:
        for shape in (
            (length, 1, 1), (1, 1, length), (length // 2, 8, length // 16), (1, 16, length // 16),
            (length // 2, 1, length // 2), (length, 4, length // 4),
        ):  # fmt: skip
            prompt, num, answer = (max(1, x) for x in shape)
            found[f"{num} answers of {answer} to {prompt}"] = (prompt, num, answer)
    return found


def shape_rows(shape: tuple[int, int, int], vocabulary: int) -> list[Row]:
    """Return the rows of a prompt and its answers, which are trained."""
    prompt, num, answer = shape
    root = Node(prompt)
    for _ in range(num):
        root.add(answer, num_rows=1)
    return make_rows(Tree(root), vocabulary)


def one_forest(rows: Sequence[Row]) -> PackedForest:
    """Return all rows in one forest."""
    (forest,) = pack(rows, max_tokens=sum(map(len, rows)))
    return forest


def train(model: Any, forest: PackedForest) -> None:
    """Leave the gradient of one forest."""
    model.zero_grad()
    forward_backward(model, [forest], loss("sft"))


def check_gradient(model: Any, rows: list[Row]) -> None:
    """Raise if the gradient on a forest is not that of its rows."""
    forest = one_forest(rows)
    wanted = gradient(model, lambda: rows_alone(model, rows, loss("sft"), len(forest.end)))
    found = gradient(model, lambda: train(model, forest))
    error = float((found - wanted).norm() / wanted.norm())
    if not error < 1e-4:
        raise SystemExit(f"the gradients differ by {error:.1e}")


def measure(model: Any, forests: dict[str, PackedForest], *, repeats: int) -> list[Sample]:
    """Return the times of each forest, measured in turns."""
    work = {name: partial(train, model, forest) for name, forest in forests.items()}
    times = in_turns(work, torch.device("cpu"), repeats=repeats, limit_s=600)
    return [
        Sample(name=name, forest=forest, times_ms=times[name]) for name, forest in forests.items()
    ]


def fitted(samples: Iterable[Sample]) -> CostModel:
    """Return the costs that samples tell."""
    return CostModel.fit([(s.forest.stats, s.seconds) for s in samples])


def told_by_others(samples: Sequence[Sample]) -> list[float]:
    """Return the seconds of each sample by costs fitted to all others."""
    return [
        fitted([s for s in samples if s is not left_out]).of(left_out.forest.stats)
        for left_out in samples
    ]


def row_of(sample: Sample, predicted_s: float) -> dict[str, object]:
    """Return a sample's row of the CSV."""
    stats = sample.forest.stats
    return {
        "forest": sample.name, "num_rows": stats.num_rows, "num_tree": stats.num_tree,
        "num_pairs": stats.num_pairs, "num_edges": stats.num_edges, **quantiles(sample.times_ms),
        "predicted_ms": round(predicted_s * 1e3, 3),
        "error": round(predicted_s / sample.seconds - 1, 4), "repeats": len(sample.times_ms),
    }  # fmt: skip


def main() -> None:
    """Measure, fit, write the CSV and the JSON, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--width", type=int, default=512, help="of the model (512)")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the CSV, JSON beside it; none without it")
    options = parser.parse_args()
    model = make_model(options.layers, options.width, options.vocabulary)
    rows = {
        name: shape_rows(shape, options.vocabulary)
        for name, shape in shapes(options.lengths).items()
    }
    check_gradient(model, min(rows.values(), key=lambda rows: sum(map(len, rows))))
    forests = {name: one_forest(of_shape) for name, of_shape in rows.items()}
    samples = measure(model, forests, repeats=options.repeats)
    predicted = told_by_others(samples)
    costs = fitted(samples)
    shared = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device_name(torch.device("cpu")), "dtype": "float32",
    }  # fmt: skip
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for sample, seconds in zip(samples, predicted, strict=True):
            row = row_of(sample, seconds)
            table.write(row)
            print(
                f"{sample.name:32} {row['p50_ms']:10} ms, told {row['predicted_ms']:10} ms"
                f" ({row['error']:+.1%})"
            )
    errors = [abs(p / s.seconds - 1) for p, s in zip(predicted, samples, strict=True)]
    print(f"\n{costs}")
    print(f"off by {statistics.median(errors):.1%} (median), {max(errors):.1%} (most)")
    if options.out:
        costs.save(options.out.with_suffix(".json"))


if __name__ == "__main__":
    main()
