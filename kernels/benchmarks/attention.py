"""How fast tree attention is beside attention over each row by itself, family by family.

    python kernels/benchmarks/attention.py --shrink 8 > kernels/benchmarks/attention_cpu.csv

Every backend's output is compared with that of the rows before it is timed; backends and rows take
turns. `flat` is PyTorch's causal attention, a row at a time. `--shrink` divides all lengths. For
machines without a GPU. Not here: what the families are (`families.py`).
"""

from __future__ import annotations

import argparse
import csv
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from families import FAMILIES, Tree
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention

COLUMNS = (
    "family", "backend", "pass", "rows", "n_flat", "n_tree", "overlap", "pairs_flat", "pairs_tree",
    "tile_efficiency", "p20_ms", "p50_ms", "p80_ms", "speedup_over_flat", "repeats", "device",
    "dtype", "heads", "shrink", "torch", "commit",
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """Queries, keys, values and the output's gradient, [heads, tokens, size]."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor

    def rows(self, index: Tensor) -> Inputs:
        """Return those of some packed tokens."""
        return Inputs(*(t[:, index].contiguous() for t in (self.q, self.k, self.v, self.grad)))


def flat(rows: list[Inputs]) -> list[Tensor]:
    """Return each row's attention by itself."""
    return [
        F.scaled_dot_product_attention(
            r.q[None], r.k[None], r.v[None], is_causal=True, enable_gqa=len(r.q) != len(r.k)
        )[0]
        for r in rows
    ]


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds that some work takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def _backward_of(rows: list[Inputs]) -> Callable[[], object]:
    outputs = flat(rows)
    given = [t for r in rows for t in (r.q, r.k, r.v)]
    return lambda: torch.autograd.grad(outputs, given, [r.grad for r in rows])


def leaves(inputs: Inputs) -> Inputs:
    """Return the same with gradients asked for."""
    q, k, v = (t.detach().clone().requires_grad_() for t in (inputs.q, inputs.k, inputs.v))
    return Inputs(q, k, v, inputs.grad)


def measure(tree: Tree, backends: list[str], heads: tuple[int, int, int], repeats: int) -> list[
    dict[str, object]
]:  # fmt: skip
    """Return a row for each backend and pass; raises if an output is wrong."""
    plan = TreePlan.build(tree.end())
    rng = torch.Generator().manual_seed(0)
    shapes = ((heads[0], len(plan), heads[2]), (heads[1], len(plan), heads[2]))
    inputs = leaves(Inputs(*(torch.randn(*shapes[i], generator=rng) for i in (0, 1, 1, 0))))
    index = [torch.cat([torch.arange(*run) for run in row]) for row in tree.rows()]
    rows = [leaves(inputs.rows(i)) for i in index]
    wanted = flat(rows)
    for backend in backends:
        found = tree_attention(inputs.q, inputs.k, inputs.v, plan, backend=backend)
        for i, row in zip(index, wanted, strict=True):
            error = float(((found[:, i] - row).norm() / row.norm()).detach())
            if error > 1e-5:
                raise SystemExit(f"{backend} is wrong: error {error:.1e}")
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        samples.setdefault(("flat", "forward"), []).append(timed(lambda: flat(rows)))
        samples.setdefault(("flat", "backward"), []).append(timed(_backward_of(rows)))
        for backend in backends:

            def run() -> Tensor:
                return tree_attention(inputs.q, inputs.k, inputs.v, plan, backend=backend)  # noqa: B023

            samples.setdefault((backend, "forward"), []).append(timed(run))
            out = run()
            samples.setdefault((backend, "backward"), []).append(
                timed(lambda: torch.autograd.grad(out, (inputs.q, inputs.k, inputs.v), inputs.grad))  # noqa: B023
            )
    lengths = tree.row_lengths()
    shared: dict[str, object] = {
        "rows": len(lengths),
        "n_flat": sum(lengths),
        "n_tree": len(plan),
        "overlap": round(1 - len(plan) / sum(lengths), 3),
        "pairs_flat": sum(n * (n + 1) // 2 for n in lengths),
        "pairs_tree": plan.num_pairs,
        "tile_efficiency": round(plan.tiles(128, 64).efficiency(plan.num_pairs), 3),
    }
    return [
        {"backend": backend, "pass": name, **shared, **_quantiles(values),
         "speedup_over_flat": round(
             statistics.median(samples[("flat", name)]) / statistics.median(values), 2)}
        for (backend, name), values in samples.items()
    ]  # fmt: skip


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {f"p{p}_ms": round(cuts[p // 10 - 1], 2) for p in (20, 50, 80)}


def main() -> None:
    """Print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", help="may be given several times (cascade)")
    parser.add_argument("--shrink", type=int, default=8, help="divides all lengths (8)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--heads", type=int, nargs=3, default=(4, 1, 64), metavar="N",
                        help="query heads, key heads, head size (4 1 64)")  # fmt: skip
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()  # fmt: skip
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for family in FAMILIES:
        tree = family.make(random.Random(0)).shrunk(options.shrink)
        found = measure(tree, options.backend or ["cascade"], tuple(options.heads), options.repeats)
        for row in found:
            writer.writerow(
                {
                    "family": family.name,
                    **row,
                    "repeats": options.repeats,
                    "device": f"{platform.machine()} {torch.get_num_threads()} threads",
                    "dtype": "float32",
                    "heads": ":".join(map(str, options.heads)),
                    "shrink": options.shrink,
                    "torch": torch.__version__,
                    "commit": commit,
                }
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
