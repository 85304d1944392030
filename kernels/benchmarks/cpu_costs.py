"""Fits the costs by which `tree_attention` chooses between "cascade" and "sdpa" on the CPU.

    python kernels/benchmarks/cpu_costs.py

Times forward and backward of both on forests of many shapes, and prints the constants of
`katgym_kernels/attention/choose.py`, how well they predict, and how much slower the choice is than
the faster of the two. Needs scipy. Not here: the choice.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from shapes import caterpillar, random_end

from katgym_kernels import TreePlan, tree_attention
from katgym_kernels.attention.choose import Costs, cascade_terms, dense_terms

SIZES = ((4, 2, 64), (8, 2, 128), (16, 4, 64))
"""Query heads, key heads, head size."""


def forests(rng: random.Random) -> dict[str, list[int]]:
    """Return `end` of forests from one row to a caterpillar, by name."""
    found = {}
    for num in (48, 300, 1500):
        found[f"one row of {num}"] = [num] * num
    for num_leaves, prompt, answer in (
        (4, 40, 20), (8, 128, 64), (8, 512, 128), (32, 200, 16), (100, 30, 3),
    ):  # fmt: skip
        num = prompt + num_leaves * answer
        leaves = [prompt + answer * (i + 1) for i in range(num_leaves) for _ in range(answer)]
        found[f"{num_leaves} answers of {answer} to {prompt}"] = [num] * prompt + leaves
    for num_prompts, num_leaves, prompt, answer in ((16, 8, 20, 48), (8, 8, 300, 60)):
        name = f"{num_leaves} answers of {answer} to each of {num_prompts} prompts of {prompt}"
        size = prompt + num_leaves * answer
        one = [size] * prompt
        one += [prompt + answer * (i + 1) for i in range(num_leaves) for _ in range(answer)]
        found[name] = [end + size * i for i in range(num_prompts) for end in one]
    for num, chain in ((60, 0.8), (200, 0.9), (400, 0.97), (600, 0.7)):
        found[f"random, {num} tokens, chain {chain}"] = random_end(rng, num, chain=chain)
    for num in (60, 240):
        found[f"caterpillar of {num}"] = caterpillar(num)
    return found


@dataclass(frozen=True)
class Sample:
    """One forest at one size: the terms of both costs and the measured nanoseconds."""

    name: str
    plan: TreePlan
    width: int
    cascade_ns: float
    dense_ns: float


def measure(name: str, end: list[int], size: tuple[int, int, int], repeats: int) -> Sample:
    """Return the least times of forward and backward: other work on the machine only adds."""
    heads, key_heads, head_size = size
    plan = TreePlan.build(end)
    shapes = ((heads, len(plan)), (key_heads, len(plan)), (key_heads, len(plan)))
    q, k, v = (torch.randn(*shape, head_size).requires_grad_() for shape in shapes)
    grad = torch.randn_like(q)
    times: dict[str, list[float]] = {"cascade": [], "sdpa": []}
    for _ in range(repeats + 1):
        for backend, values in times.items():
            started = time.perf_counter()
            out = tree_attention(q, k, v, plan, backend=backend)
            torch.autograd.grad(out, (q, k, v), grad)
            values.append((time.perf_counter() - started) * 1e9)
    return Sample(
        name=f"{name}; {heads}:{key_heads} heads of {head_size}",
        plan=plan,
        width=heads * head_size,
        cascade_ns=min(times["cascade"][1:]),
        dense_ns=min(times["sdpa"][1:]),
    )


def fitted(terms: list[tuple[float, ...]], wanted: list[float]) -> tuple[float, ...]:
    """Return non-negative factors of the terms with the least relative error."""
    scale = np.array(wanted)
    factors, _ = nnls(np.array(terms) / scale[:, None], np.ones(len(wanted)))
    return tuple(float(f"{f:.3g}") for f in factors)


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    samples = [
        measure(name, end, size, options.repeats)
        for size in SIZES
        for name, end in forests(random.Random(0)).items()
    ]
    costs = Costs(
        cascade=fitted(
            [cascade_terms(s.plan, s.width) for s in samples], [s.cascade_ns for s in samples]
        ),
        dense=fitted(
            [dense_terms(s.plan, s.width) for s in samples], [s.dense_ns for s in samples]
        ),
    )
    losses = []
    for s in samples:
        told = [costs.of_cascade(s.plan, s.width), costs.of_dense(s.plan, s.width)]
        chosen = s.cascade_ns if told[0] <= told[1] else s.dense_ns
        losses.append(chosen / min(s.cascade_ns, s.dense_ns))
        print(
            f"{s.name:50} cascade {s.cascade_ns / 1e6:8.2f} ms (told {told[0] / 1e6:8.2f}),"
            f" sdpa {s.dense_ns / 1e6:8.2f} ms (told {told[1] / 1e6:8.2f}), loss {losses[-1]:.2f}"
        )
    print(f"\n{costs}")
    print(f"the choice takes {statistics.mean(losses):.2f} times as long as the faster of both")
    print(f"always cascade: {_always(samples, 'cascade_ns'):.2f}, ", end="")
    print(f"always sdpa: {_always(samples, 'dense_ns'):.2f}")


def _always(samples: list[Sample], which: str) -> float:
    return statistics.mean(getattr(s, which) / min(s.cascade_ns, s.dense_ns) for s in samples)


if __name__ == "__main__":
    main()
