"""Whether every backend is right on this device, before anything is timed.

Outputs and gradients are compared with `reference` in float64 (float32 where that is too large), by
relative error of the norm. Half precision may err twice as much as PyTorch's own attention with a
dense mask does on the same inputs. Not here: the tests, which go further on small forests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from shapes import caterpillar, fork_at, random_end, star
from stages import Bench
from torch import Tensor

from katgym_kernels import TreePlan, edge_logprobs, tree_attention

COLUMNS = ("backend", "case", "errors")
"""Errors are those of the output, and of the gradients of q, k, v and sinks."""
MAX_ERROR = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One forest with inputs of one kind."""

    name: str
    end: list[int]
    dtype: torch.dtype
    heads: tuple[int, int] = (4, 1)
    size: int = 128
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False


def groups(device: torch.device) -> dict[str, list[Case]]:
    """Return what is checked, by the kernels it compiles: inputs of one kind share them."""
    rng = random.Random(0)
    is_cuda = device.type == "cuda"
    half = torch.bfloat16 if is_cuda else torch.float16  # Triton's interpreter has no bfloat16 dot
    end = random_end(rng, 700 if is_cuda else 90, chain=0.97)
    last = 500 if is_cuda else 60
    forks = (57, 60, 63, 64, 65, 121, 127, 128, 129) if is_cuda else (63, 64)
    found = {
        "forests": [
            Case(name="random", end=end, dtype=half),
            *(Case(name=f"fork at {n}", end=fork_at(n, 2 * n + 31), dtype=half) for n in forks),
            Case(name="caterpillar", end=caterpillar(last), dtype=half),
            Case(name="leaves of one token", end=star(last), dtype=half),
            Case(name="one row", end=[last] * last, dtype=half),
        ],
        "float32": [Case(name="float32", end=end, dtype=torch.float32, size=64)],
        "window": [Case(name="window", end=end, dtype=half, window=40)],
        "options": [
            Case(name="window, softcap, sinks", end=end, dtype=half, window=40, softcap=5.0,
                 has_sinks=True),
        ],
    }  # fmt: skip
    for size in (64, 80, 96, 192, 256, 512) if is_cuda else (64,):
        found[f"size {size}"] = [Case(name=f"head size {size}", end=end, dtype=half, size=size)]
    if is_cuda:
        found["float16"] = [Case(name="float16", end=end, dtype=torch.float16)]
    return found


def activate(backend: str) -> str:
    """Have PyTorch take the FlashAttention that is named behind a backend; return the backend."""
    name, _, flash = backend.partition(" ")
    if flash:
        torch.nn.attention.activate_flash_attention_impl(flash)
    return name


def check_attention(bench: Bench, backend: str, group: str) -> None:
    """Write the errors of a group's cases; a failure for each that is wrong or cannot be had."""
    name = activate(backend)
    for case in groups(bench.device)[group]:
        with bench.passing_over(case.name):
            plan = TreePlan.build(case.end, window=case.window, device=bench.device)
            inputs = _draw(case, bench.device)
            options = {"softcap": case.softcap}
            wanted = _played(plan, [t.double() for t in inputs], "reference", options)
            allowed = [MAX_ERROR[case.dtype]] * len(wanted)
            if not case.has_sinks and case.dtype is not torch.float32:
                eager = _errors(_played(plan, inputs, "sdpa", options), wanted)
                allowed = [2 * e for e in eager]
            errors = _errors(_played(plan, inputs, name, options), wanted)
            if not all(x <= most for x, most in zip(errors, allowed, strict=True)):
                bench.fail(f"{case.name}: WRONG: {_told(errors)}, allowed {_told(allowed)}")
            bench.add("checks", {"backend": backend, "case": case.name, "errors": _told(errors)})


def check_edges(bench: Bench) -> None:
    """Write the errors of `edge_logprobs`, by backend."""
    device = bench.device
    rng = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16
    hidden, weight = (torch.randn(n, 64, generator=rng).to(device, dtype) for n in (300, 5000))
    target = torch.randint(5000, (300,), generator=rng).to(device)

    def play(hidden: Tensor, weight: Tensor, backend: str) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
        logprobs, entropy = edge_logprobs(*leaves, target, temperature=0.7, backend=backend)
        odd = torch.linspace(-1, 2, 300, dtype=logprobs.dtype, device=device)
        grads = torch.autograd.grad((logprobs * odd).sum() + (entropy * odd).sum(), leaves)
        return [logprobs.detach(), entropy.detach(), *grads]

    wanted = play(hidden.double(), weight.double(), "torch")
    for backend in ("torch", "triton"):
        with bench.passing_over(backend):
            errors = _errors(play(hidden, weight, backend), wanted)
            row = {"backend": backend, "case": "edge log-probs", "errors": _told(errors)}
            bench.add("checks", row)
            if not (max(errors[:2]) < 1e-5 and max(errors[2:]) < 1e-2):
                bench.fail(f"{backend}: WRONG: {_told(errors)}")


def _draw(case: Case, device: torch.device) -> list[Tensor]:
    """Return q, k, v, the output's gradient, and sinks."""
    rng = torch.Generator().manual_seed(len(case.end))
    heads, key_heads = case.heads
    shapes: list[tuple[int, ...]] = [
        (n, len(case.end), case.size) for n in (heads, key_heads, key_heads, heads)
    ]
    if case.has_sinks:
        shapes.append((heads,))
    return [torch.randn(*shape, generator=rng).to(device, case.dtype) for shape in shapes]


def _played(
    plan: TreePlan, inputs: list[Tensor], backend: str, options: dict[str, Any]
) -> list[Tensor]:
    """Return the output and the gradients of q, k, v and sinks."""
    q, k, v, grad, *sinks = inputs
    leaves = [t.clone().requires_grad_() for t in (q, k, v, *sinks)]
    given = dict(options, sinks=leaves[3]) if sinks else options
    out = tree_attention(*leaves[:3], plan, backend=backend, **given)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def _errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [
        float((x.double() - y).norm() / y.norm().clamp(min=1e-2))
        for x, y in zip(found, wanted, strict=True)
    ]


def _told(errors: list[float]) -> str:
    return " ".join(f"{error:.1e}" for error in errors)
