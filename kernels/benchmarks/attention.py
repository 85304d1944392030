"""How fast tree attention is beside attention over each row by itself, family by family.

    python kernels/benchmarks/attention.py --backend cascade --backend sdpa --repeats 3 \\
        --out kernels/benchmarks/attention_cpu.csv

Every backend's output and gradients are compared with those of the rows before it is timed;
backends and rows take turns. `flat` is PyTorch's causal flash attention: on CUDA one call for
all rows, on the CPU a call for each. `--shrink` divides all lengths. Not here: what the families
are (`families.py`), all that is measured on a GPU (`gpu.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from families import FAMILIES, Tree
from timing import MAX_REPEATS, Rows, device_name, in_turns, quantiles
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention.cascade import flash_calls_of
from katgym_kernels.attention.flash_ops import flash_backward, flash_forward

COLUMNS = (
    "family", "backend", "pass", "rows", "n_flat", "n_tree", "overlap", "pairs_flat", "pairs_tree",
    "tile_efficiency", "p20_ms", "p50_ms", "p80_ms", "tflops", "speedup_over_flat", "repeats",
    "error", "peak_mib",
)  # fmt: skip
FLOPS = {"forward": 4, "backward": 10}
"""Floating-point operations for each visible pair and element of a head: 2 and 5 products."""
MAX_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Of outputs, both sides in that dtype; gradients may be off by twice as much."""


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


@dataclass(frozen=True, kw_only=True)
class Work:
    """One way to compute a family's attention."""

    forward: Callable[[], object]
    backward: Callable[[], object]
    out: Tensor
    """[H, N, D] of the tree's tokens, or of the rows', behind one another."""
    gradients: Callable[[], Sequence[Tensor]]
    """Of q, k and v, as `out`, where only a token's first occurrence has a gradient."""


class Flat:
    """Attention over each row by itself, rows behind one another."""

    def __init__(self, inputs: list[Tensor], index: Tensor, lengths: list[int]) -> None:
        self.index, self.lengths = index, lengths
        self.num_tokens, self.num_pairs = len(index), sum(n * (n + 1) // 2 for n in lengths)
        self.q, self.k, self.v, self.grad = (t[:, index].transpose(0, 1) for t in inputs)
        self.scale = self.q.shape[-1] ** -0.5
        first = torch.full_like(inputs[0][0, :, 0], self.num_tokens, dtype=torch.int64)
        places = torch.arange(self.num_tokens, device=index.device)
        first.scatter_reduce_(0, index, places, "amin")
        self.seen = (first < self.num_tokens).nonzero()[:, 0]  # the last observation is in no row
        self.first_grad = torch.zeros_like(self.grad)
        self.first_grad[first[self.seen]] = self.grad[first[self.seen]]
        stops = torch.tensor(lengths).cumsum(0)
        plan = TreePlan.build(torch.repeat_interleave(stops, torch.tensor(lengths)).to(index))
        self._calls = flash_calls_of(plan, inputs[0])

    def flash(self) -> Work:
        """By PyTorch's flash attention, the one that is active."""
        out_NHD = torch.empty_like(self.q)
        found = self._forward()
        lse_NH = torch.empty_like(self.q[..., 0], dtype=found[0][1].dtype)
        for call, (out_IHD, lse_IH) in zip(self._calls, found, strict=True):
            out_NHD[call.queries], lse_NH[call.queries] = out_IHD, lse_IH

        def backward(grad_NHD: Tensor) -> list[tuple[Tensor, ...]]:
            return [
                flash_backward(
                    grad_NHD, self.q, self.k, self.v, out_NHD, lse_NH, call, scale=self.scale
                )
                for call in self._calls
            ]

        def gradients() -> list[Tensor]:
            totals = [torch.empty_like(t) for t in (self.q, self.k, self.v)]
            for call, parts in zip(self._calls, backward(self.first_grad), strict=True):
                for total, part in zip(totals, parts, strict=True):
                    total[call.queries] = part
            return [total.transpose(0, 1) for total in totals]

        return Work(
            forward=self._forward, backward=lambda: backward(self.grad),
            out=out_NHD.transpose(0, 1), gradients=gradients,
        )  # fmt: skip

    def cudnn(self) -> Work:
        """By cuDNN, a call for each row."""
        rows = [
            [part.transpose(0, 1)[None].requires_grad_() for part in parts]
            for parts in zip(
                *(t.detach().split(self.lengths) for t in (self.q, self.k, self.v)), strict=True
            )
        ]

        def forward() -> list[Tensor]:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return [
                    F.scaled_dot_product_attention(*row, is_causal=True, enable_gqa=True)
                    for row in rows
                ]

        def backward(grad_NHD: Tensor) -> tuple[Tensor, ...]:
            grads = [g.transpose(0, 1)[None] for g in grad_NHD.split(self.lengths)]
            leaves = [t for row in rows for t in row]
            return torch.autograd.grad(outs, leaves, grads, retain_graph=True)

        def gradients() -> list[Tensor]:
            found = backward(self.first_grad)
            return [torch.cat(found[i::3], 2)[0] for i in range(3)]

        outs = forward()
        return Work(
            forward=forward, backward=lambda: backward(self.grad),
            out=torch.cat(outs, 2)[0].detach(), gradients=gradients,
        )  # fmt: skip

    def _forward(self) -> list[tuple[Tensor, Tensor]]:
        """Return output and log-sum-exp of each call."""
        return [
            flash_forward(self.q, self.k, self.v, call, scale=self.scale) for call in self._calls
        ]

    def differences(self, work: Work, wanted: Sequence[Tensor], num_tree: int) -> list[float]:
        """Return how far output and gradients are from those wanted, which are the tree's."""
        found = [work.out, *work.gradients()]
        if work.out.shape[1] != num_tree:
            found = [self.on_tree(work.out, num_tree, is_sum=False)] + [
                self.on_tree(t, num_tree) for t in found[1:]
            ]
        found, wanted = ([t[:, self.seen].float() for t in each] for each in (found, wanted))
        return [float((x - y).norm() / y.norm()) for x, y in zip(found, wanted, strict=True)]

    def on_tree(self, flat: Tensor, num_tree: int, *, is_sum: bool = True) -> Tensor:
        """Return what a token has in all rows, summed or that of its last, head by head."""
        made = flat.new_zeros(len(flat), num_tree, flat.shape[-1])
        for head, values in zip(made, flat, strict=True):
            if is_sum:
                total = torch.zeros_like(head, dtype=torch.float32)
                head.copy_(total.index_add_(0, self.index, values.float()))
            else:
                head[self.index] = values
        return made


Run = Callable[[Tensor, Tensor, Tensor, TreePlan], Tensor]


def by_backend(name: str) -> Run:
    """Return `tree_attention` with a backend."""
    return functools.partial(tree_attention, backend=name)


def tree_work(run: Run, inputs: list[Tensor], plan: TreePlan) -> Work:
    """Return the work of a function on the tree."""
    *leaves, grad = inputs
    out = run(*leaves, plan)

    def forward() -> object:
        with torch.no_grad():
            return run(*leaves, plan)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, leaves, grad, retain_graph=True)

    return Work(forward=forward, backward=backward, out=out.detach(), gradients=backward)


def measure(
    tree: Tree,
    runs: Mapping[str, Run],
    shape: Shape,
    *,
    repeats: int,
    limit_s: float,
    flat_names: Sequence[str] = ("flat",),
    passing_over: Callable[[str], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[dict[str, object]]:
    """Yield a row for each pass and way, "flat" first.

    runs: ways on the tree; flat_names: on rows, the first by PyTorch's flash attention, "cudnn".
    passing_over: within it a way is tried, and raises if it is wrong.
    """
    plan = TreePlan.build(tree.end(), device=shape.device)
    inputs = shape.draw(len(plan))
    index = torch.cat([torch.arange(*run) for row in tree.rows() for run in row])
    flat = Flat(inputs, index.to(shape.device), tree.row_lengths())
    grad = torch.zeros_like(inputs[3])
    grad[:, flat.seen] = inputs[3][:, flat.seen]
    inputs = [*(t.requires_grad_() for t in inputs[:3]), grad]
    works, errors = {flat_names[0]: flat.flash()}, {}
    first = works[flat_names[0]]
    wanted = [flat.on_tree(first.out, len(plan), is_sum=False)]
    wanted += [flat.on_tree(t, len(plan)) for t in first.gradients()]
    made: dict[str, Callable[[], Work]] = dict.fromkeys(flat_names[1:], flat.cudnn)
    made |= {name: functools.partial(tree_work, run, inputs, plan) for name, run in runs.items()}
    for name, make in made.items():
        with passing_over(name):
            work = make()
            errors[name] = flat.differences(work, wanted, len(plan))
            if not max(2 * errors[name][0], *errors[name]) <= 2 * MAX_ERROR[shape.dtype]:
                told = " ".join(f"{error:.1e}" for error in errors[name])
                raise RuntimeError(f"{name!r} is wrong: relative errors {told}")
            works[name] = work
    del wanted
    shared: dict[str, object] = {
        "rows": len(flat.lengths),
        "n_flat": flat.num_tokens,
        "n_tree": len(plan),
        "overlap": round(1 - len(plan) / flat.num_tokens, 3),
        "pairs_flat": flat.num_pairs,
        "pairs_tree": plan.num_pairs,
        "tile_efficiency": round(plan.tiles(128, 64).efficiency(plan.num_pairs), 3),
    }
    for pass_name, per_pair in FLOPS.items():
        work_of = {name: getattr(work, pass_name) for name, work in works.items()}
        times = in_turns(work_of, shape.device, repeats=repeats, limit_s=limit_s)
        flat_ms = statistics.median(times[flat_names[0]])
        for name, values in times.items():
            median_ms = statistics.median(values)
            num_pairs = flat.num_pairs if name in flat_names else plan.num_pairs
            flops = per_pair * shape.heads * shape.head_size * num_pairs
            yield {
                "backend": name, "pass": pass_name, **shared, **quantiles(values),
                "tflops": round(flops / median_ms / 1e9, 3),
                "speedup_over_flat": round(flat_ms / median_ms, 2), "repeats": len(values),
                "error": f"{max(errors.get(name, [0])):.1e}",
            }  # fmt: skip


def table_line(family: str, row: dict[str, object]) -> str:
    """Return a row for people."""
    return (
        f"{family:44} {row['overlap']:5} {row['pass']:8} {row['backend']:8} {row['p50_ms']:10.2f}"
        f" ms {row['tflops']:8.2f} TFLOP/s {row['speedup_over_flat']:6.2f}x"
    )


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
    runs = {name: by_backend(name) for name in options.backend or ["cascade"]}
    with place.open("w", encoding="utf-8", newline="") as file:
        rows = Rows(file, COLUMNS, shared)
        for family in FAMILIES:
            tree = family.make(random.Random(0)).shrunk(options.shrink)
            for row in measure(tree, runs, shape, repeats=options.repeats, limit_s=600):
                rows.write({"family": family.name, **row})
                print(table_line(family.name, row), flush=True)
    if options.out is not None:
        print(f"written to {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
