"""How fast tree attention is beside attention over each row by itself, family by family.

    python kernels/benchmarks/attention.py --backend cascade --backend sdpa --repeats 3 \\
        --out kernels/benchmarks/attention_cpu.csv

Every backend's output is compared with that of the rows before it is timed; backends and rows take
turns. `flat` is PyTorch's causal flash attention: on CUDA one call for all rows, on the CPU a call
for each. `--shrink` divides all lengths. Not here: what the families are (`families.py`), all that
is measured on a GPU (`gpu.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from families import FAMILIES, Family, Tree
from timing import MAX_REPEATS, Rows, device_name, in_turns, quantiles
from torch import Tensor

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention.cascade import flash_calls_of
from katgym_kernels.attention.flash_ops import flash_backward, flash_forward

COLUMNS = (
    "family", "backend", "pass", "rows", "n_flat", "n_tree", "overlap", "pairs_flat", "pairs_tree",
    "tile_efficiency", "p20_ms", "p50_ms", "p80_ms", "tflops", "speedup_over_flat", "repeats",
)  # fmt: skip
FLOPS = {"forward": 4, "backward": 10}
"""Floating-point operations for each visible pair and element of a head: 2 and 5 products."""
MAX_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a measurement has besides a forest."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    head_size: int

    def draw(self, num_tokens: int) -> list[Tensor]:
        """Return q, k, v and the gradient of the output."""
        rng = torch.Generator(self.device).manual_seed(0)
        return [
            torch.randn(
                heads, num_tokens, self.head_size, generator=rng, device=self.device
            ).to(self.dtype)
            for heads in (self.heads, self.key_heads, self.key_heads, self.heads)
        ]  # fmt: skip


class Flat:
    """Attention over each row by itself, rows behind one another."""

    def __init__(self, inputs: list[Tensor], index: Tensor, lengths: list[int]) -> None:
        self.q, self.k, self.v, self.grad = (t[:, index].transpose(0, 1) for t in inputs)
        self._scale = self.q.shape[-1] ** -0.5
        stops = torch.tensor(lengths).cumsum(0)
        plan = TreePlan.build(torch.repeat_interleave(stops, torch.tensor(lengths)).to(index))
        self._calls = flash_calls_of(plan, inputs[0])

    def forward(self) -> list[tuple[Tensor, Tensor]]:
        """Return output and log-sum-exp of each call."""
        return [
            flash_forward(self.q, self.k, self.v, call, scale=self._scale) for call in self._calls
        ]

    def whole(self, found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return what `forward` gave as one output and one log-sum-exp, token by token."""
        out_NHD = torch.empty_like(self.q)
        lse_NH = torch.empty_like(self.q[..., 0], dtype=found[0][1].dtype)
        for call, (out_IHD, lse_IH) in zip(self._calls, found, strict=True):
            out_NHD[call.queries], lse_NH[call.queries] = out_IHD, lse_IH
        return out_NHD, lse_NH

    def backward(self, out_NHD: Tensor, lse_NH: Tensor) -> list[tuple[Tensor, ...]]:
        """Return dq, dk and dv of each call."""
        return [
            flash_backward(
                self.grad, self.q, self.k, self.v, out_NHD, lse_NH, call, scale=self._scale
            )
            for call in self._calls
        ]


def measure(
    tree: Tree, backends: list[str], shape: Shape, *, repeats: int, limit_s: float
) -> Iterator[dict[str, object]]:
    """Yield a row for each pass and backend, "flat" first; raises if an output is wrong."""
    plan = TreePlan.build(tree.end(), device=shape.device)
    inputs = shape.draw(len(plan))
    lengths = tree.row_lengths()
    index = torch.cat([torch.arange(*run) for row in tree.rows() for run in row])
    index = index.to(shape.device)
    flat = Flat(inputs, index, lengths)
    q, k, v = (t.requires_grad_() for t in inputs[:3])
    whole = flat.whole(flat.forward())
    wanted = whole[0].transpose(0, 1)
    outputs = {name: tree_attention(q, k, v, plan, backend=name) for name in backends}
    for name, out in outputs.items():
        with torch.no_grad():
            error = float((out[:, index].float() - wanted.float()).norm() / wanted.float().norm())
        if not error <= MAX_ERROR[shape.dtype]:
            raise SystemExit(f"backend {name!r} is wrong: relative error {error:.1e}")
    del wanted
    passes: dict[str, dict[str, Callable[[], object]]] = {
        "forward": {
            "flat": flat.forward,
            **{name: _forward(q, k, v, plan, name) for name in backends},
        },
        "backward": {
            "flat": lambda: flat.backward(*whole),
            **{name: _backward(out, [q, k, v], inputs[3]) for name, out in outputs.items()},
        },
    }
    pairs = {"flat": sum(n * (n + 1) // 2 for n in lengths)}
    shared: dict[str, object] = {
        "rows": len(lengths),
        "n_flat": sum(lengths),
        "n_tree": len(plan),
        "overlap": round(1 - len(plan) / sum(lengths), 3),
        "pairs_flat": pairs["flat"],
        "pairs_tree": plan.num_pairs,
        "tile_efficiency": round(plan.tiles(128, 64).efficiency(plan.num_pairs), 3),
    }
    for pass_name, work in passes.items():
        times = in_turns(work, shape.device, repeats=repeats, limit_s=limit_s)
        flat_ms = statistics.median(times["flat"])
        for name, values in times.items():
            median_ms = statistics.median(values)
            flops = FLOPS[pass_name] * shape.heads * shape.head_size
            flops *= pairs.get(name, plan.num_pairs)
            yield {
                "backend": name, "pass": pass_name, **shared, **quantiles(values),
                "tflops": round(flops / median_ms / 1e9, 3),
                "speedup_over_flat": round(flat_ms / median_ms, 2), "repeats": len(values),
            }  # fmt: skip


def _forward(q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, backend: str) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return tree_attention(q, k, v, plan, backend=backend)

    return run


def _backward(out: Tensor, inputs: list[Tensor], grad: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def table_line(family: str, row: dict[str, object]) -> str:
    """Return a row for people."""
    return (
        f"{family:44} {row['overlap']:5} {row['pass']:8} {row['backend']:8} {row['p50_ms']:10.2f}"
        f" ms {row['tflops']:8.2f} TFLOP/s {row['speedup_over_flat']:6.2f}x"
    )


def run(
    families: list[Family],
    backends: list[str],
    shape: Shape,
    rows: Rows,
    *,
    shrink: int,
    repeats: int,
    limit_s: float,
) -> list[dict[str, object]]:
    """Measure families one by one, print and write their rows, and return them."""
    measured = []
    for family in families:
        tree = family.make(random.Random(0)).shrunk(shrink)
        for row in measure(tree, backends, shape, repeats=repeats, limit_s=limit_s):
            named = {"family": family.name, **row}
            rows.write(named)
            measured.append(named)
            print(table_line(family.name, row), flush=True)
    return measured


def main() -> None:
    """Measure on the CPU, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", help="may be given several times (cascade)")
    parser.add_argument("--shrink", type=int, default=8, help="divides all lengths (8)")
    parser.add_argument("--repeats", type=int, default=MAX_REPEATS // 4)
    parser.add_argument("--heads", type=int, nargs=3, default=(4, 1, 64), metavar="N",
                        help="query heads, key heads, head size (4 1 64)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    heads, key_heads, head_size = options.heads
    shape = Shape(device=torch.device("cpu"), dtype=torch.float32, heads=heads,
                  key_heads=key_heads, head_size=head_size)  # fmt: skip
    shared = {
        "device": device_name(shape.device),
        "dtype": "float32",
        "heads": ":".join(map(str, options.heads)),
        "shrink": options.shrink,
    }
    place = options.out or Path(os.devnull)
    with place.open("w", encoding="utf-8", newline="") as file:
        run(
            list(FAMILIES), options.backend or ["cascade"], shape, Rows(file, COLUMNS, shared),
            shrink=options.shrink, repeats=options.repeats, limit_s=600,
        )  # fmt: skip
    if options.out is not None:
        print(f"written to {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
