"""Seconds that making the next forest's plans ahead takes off a step.

    python trainer/benchmarks/plans.py --out trainer/benchmarks/plans_cpu.csv

Two kinds of rows. "cpu": a small model on this machine, whose cores compute and make plans;
forced, as the trainer makes none ahead there.
"asleep": a model that sleeps as long as a GPU would be busy, by the operations of a shape at 4e14 a
second (without its head: one token a rollout is trained), and asks for the lists of the Triton
kernels, which are made here: what a GPU's step would gain if its work left the CPU free. No GPU was
run. Gradients of both ways are compared bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES
from steps import make_model, make_rows
from timing import Rows, device_name

from katgym_kernels.attention.triton_kernels.launch import key_parts
from katgym_trainer import Head, PackedForest, Row, TreeContext, forward_backward, loss, pack
from katgym_trainer.gradients import forest_runner
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.plans.plans_ahead import PlansAhead

COLUMNS = ("kind", "rows", "forests", "max_tokens", "computing_s", "on_demand_s", "ahead_s",
           "saved", "repeats")  # fmt: skip
VOCABULARY = 4096
SHAPES = {
    "Qwen3-0.6B": CostModel.of_shape(
        num_parameters=440_000_000, num_layers=28, num_heads=16, head_size=128, flops_per_s=4e14,
        num_head_parameters=155_600_000,
    ),
}  # fmt: skip


FORCED = functools.partial(PlansAhead, is_forced=True)


class OnDemand(PlansAhead):
    """Makes each forest's plans when they are asked for."""

    def start(self) -> None:
        """Make nothing."""


class Asleep(torch.nn.Module):
    """A model that takes its time, a third of it forward, and keeps no core busy meanwhile."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, 1))
        self.cost = cost

    @property
    def device(self) -> torch.device:
        """Of the lists."""
        return self.weight.device

    def head(self) -> Head:
        """Return one of the smallest width."""
        return Head(weight_VD=self.weight)

    def prepare(self) -> AbstractContextManager[None]:
        """Need nothing."""
        return contextlib.nullcontext()

    def hidden(self, forest: PackedForest, context: TreeContext) -> Tensor:
        """Ask for the lists of forward and backward, then sleep."""
        plan = context.plans.attention(None)
        plan.tiles(128, 64)
        plan.once("keys", lambda plan: key_parts(plan, 64, 128, 64, 1024).lists())
        seconds = self.cost.of(forest.stats)
        time.sleep(seconds / 3)
        found: Tensor = _Slow.apply(self.weight[forest.input_ids], 2 * seconds / 3)  # type: ignore[no-untyped-call]
        return found


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        """Return the values."""
        ctx.seconds = seconds
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Sleep."""
        time.sleep(ctx.seconds)
        return gradients[0], None


def measure(
    model: torch.nn.Module, forests: Sequence[PackedForest], repeats: int
) -> dict[str, float]:
    """Return median seconds of a gradient with plans on demand and ahead, in turn."""
    times: dict[str, list[float]] = {"on_demand_s": [], "ahead_s": []}
    gradients = []
    for number in range(repeats + 1):  # the first is left out
        both = [("on_demand_s", OnDemand), ("ahead_s", FORCED)]
        for name, kind in both[:: 1 - 2 * (number % 2)]:
            forest_runner.PlansAhead = kind  # type: ignore[misc]
            model.zero_grad()
            began = time.perf_counter()
            forward_backward(model, forests, loss("sft"))
            if number:
                times[name].append(time.perf_counter() - began)
            else:
                gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    found = {name: statistics.median(each) for name, each in times.items()}
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Measure, write the CSV, print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    options = parser.parse_args()
    (steps,) = (family for family in FAMILIES if "8 rollouts x 20" in family.name)
    tree = steps.make(random.Random(0))
    rows = [Row(row.token_ids, [0] * (len(row) - 1) + [1]) for row in make_rows(tree, VOCABULARY)]
    cases: list[tuple[str, str, Callable[[], Any], list[Any], int]] = [
        (f"asleep, {name}", steps.name, lambda c=cost: Asleep(c), rows, max_tokens)
        for name, cost in SHAPES.items()
        for max_tokens in (32_768, 65_536)
    ]
    small = make_rows(tree.shrunk(48), VOCABULARY)
    cases.append(("cpu", f"{steps.name} (lengths / 48)", lambda: make_model(6, 512, VOCABULARY),
                  small, 1024))  # fmt: skip
    with options.out.open("w", newline="") as file:
        out = Rows(file, COLUMNS, {"device": device_name(torch.device("cpu"))})
        for kind, name, make, some, max_tokens in cases:
            forests = pack(some, max_tokens=max_tokens)
            model = make()
            computing = sum(model.cost.of(f.stats) for f in forests) if "asleep" in kind else None
            found = measure(model, forests, options.repeats)
            row = {"kind": kind, "rows": name, "forests": len(forests), "max_tokens": max_tokens,
                   "computing_s": computing and round(computing, 3), **found,
                   "saved": round(1 - found["ahead_s"] / found["on_demand_s"], 3),
                   "repeats": options.repeats}  # fmt: skip
            out.write(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
