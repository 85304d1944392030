"""What a forest in parts costs and saves: seconds and peak memory of a step, by budget.

    python trainer/benchmarks/parts.py --out trainer/benchmarks/parts_cpu.csv

One chain longer than the budget, and one tree of step rows; the gradient of every budget is
compared with the whole forest's before anything is timed. Not here: other ways to train rows
(`steps.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES, Node, Tree
from steps import gradient, make_model, make_rows
from timing import Rows, device_name, in_turns, peak_mib, quantiles

from katgym_trainer import PackedForest, Row, forward_backward, loss, pack

COLUMNS = ("rows", "num_tree", "budget", "parts", "p20_ms", "p50_ms", "p80_ms", "slowdown",
           "peak_mib", "error", "repeats")  # fmt: skip


def chain(num_tokens: int) -> Tree:
    """Return one row."""
    root = Node(num_tokens // 2)
    root.add(num_tokens // 2, num_rows=1)
    return Tree(root)


def main() -> None:
    """Measure, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8192, help="of the chain (8192)")
    parser.add_argument("--shrink", type=int, default=64, help="divides the tree's lengths (64)")
    parser.add_argument("--budgets", default="4096,2048,1024,512")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    model = make_model(options.layers, options.width, options.vocabulary)
    (steps,) = (family for family in FAMILIES if "8 rollouts x 20" in family.name)
    trees = {
        f"one row of {options.tokens}": chain(options.tokens),
        "8 rollouts x 20 step rows": steps.make(random.Random(0)).shrunk(options.shrink),
    }
    shared = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": device_name(torch.device("cpu")), "dtype": "float32",
    }  # fmt: skip
    budgets = [int(budget) for budget in options.budgets.split(",")]
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for name, tree in trees.items():
            rows = make_rows(tree, options.vocabulary)
            for row in measure(model, rows, budgets, options.repeats):
                table.write({"rows": name, **row})
                print(
                    f"{name:28} budget {row['budget']:6} {row['parts']:4} parts"
                    f" {row['p50_ms']:10} ms {row['slowdown']:5}x {row['peak_mib']:6} MiB",
                    flush=True,
                )


def measure(
    model: torch.nn.Module, rows: list[Row], budgets: list[int], repeats: int
) -> list[dict[str, object]]:
    """Return a row of numbers for the whole forest and each budget."""
    (whole,) = pack(rows, max_tokens=sum(map(len, rows)))
    forests = {whole.stats.num_tree: whole}
    forests |= {budget: whole.in_parts(budget) for budget in budgets if budget < len(whole.end)}

    def step(forest: PackedForest) -> None:
        model.zero_grad()
        forward_backward(model, [forest], loss("sft"))

    wanted = gradient(model, lambda: step(whole))
    errors, peaks = {}, {}
    for budget, forest in forests.items():
        found = gradient(model, lambda forest=forest: step(forest))
        errors[budget] = float((found - wanted).norm() / wanted.norm())
        if not errors[budget] < 1e-4:
            raise SystemExit(f"budget {budget}: the gradient is off by {errors[budget]:.1e}")
        step(forest)  # gradients are there before
        peaks[budget] = peak_mib(lambda forest=forest: step(forest))
    times = in_turns(
        {str(budget): lambda forest=forest: step(forest) for budget, forest in forests.items()},
        torch.device("cpu"), repeats=repeats, limit_s=300,
    )  # fmt: skip
    first = statistics.median(times[str(whole.stats.num_tree)])
    return [
        {
            "num_tree": whole.stats.num_tree, "budget": budget,
            "parts": max(1, len(forest.parts)), **quantiles(times[str(budget)]),
            "slowdown": round(statistics.median(times[str(budget)]) / first, 2),
            "peak_mib": round(peaks[budget]), "error": f"{errors[budget]:.1e}",
            "repeats": len(times[str(budget)]),
        }
        for budget, forest in forests.items()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
