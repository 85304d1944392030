"""Whether every backend is right on this device, before anything is timed.

Outputs and gradients are compared with `reference` in float64 (float32 where that is too large), by
relative error of the norm. Half precision may err twice as much as PyTorch's own attention with a
dense mask does on the same inputs. Not here: the tests, which go further on small forests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from shapes import caterpillar, fork_at, random_end, star
from torch import Tensor
from triton.errors import TritonError

from katgym_kernels import TreePlan, edge_logprobs, tree_attention

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
    skipped: tuple[str, ...] = field(default=())
    """Backends that do not know an option of this case."""


def cases(device: torch.device) -> Iterator[Case]:
    """Yield what is checked; few kinds of inputs, since each compiles kernels of its own."""
    rng = random.Random(0)
    is_cuda = device.type == "cuda"
    half = torch.bfloat16 if is_cuda else torch.float16  # Triton's interpreter has no bfloat16 dot
    num = 700 if is_cuda else 90
    end = random_end(rng, num, chain=0.97)
    options = ("sdpa", "cascade")
    yield Case(name="random", end=end, dtype=half)
    for fork in (57, 60, 63, 64, 65, 121, 127, 128, 129) if is_cuda else (63, 64):
        yield Case(name=f"fork at {fork}", end=fork_at(fork, 2 * fork + 31), dtype=half)
    last = 500 if is_cuda else 60
    yield Case(name="caterpillar", end=caterpillar(last), dtype=half)
    yield Case(name="leaves of one token", end=star(last), dtype=half)
    yield Case(name="one row", end=[last] * last, dtype=half)
    yield Case(name="float32", end=end, dtype=torch.float32, size=64, skipped=("cascade", "flex"))
    yield Case(
        name="window, softcap, sinks", end=end, dtype=half, window=40, softcap=5.0,
        has_sinks=True, skipped=options,
    )  # fmt: skip
    for size in (64, 80, 96, 256) if is_cuda else (64,):
        yield Case(name=f"head size {size}", end=end, dtype=half, size=size)
    if is_cuda:
        yield Case(name="float16", end=end, dtype=torch.float16)


def check_attention(
    device: torch.device, backends: list[str], *, limit_s: float = 200
) -> dict[str, str]:
    """Print the errors of every case; return why a backend is wrong, by its name."""
    wrong: dict[str, str] = {}
    started = time.monotonic()
    for case in cases(device):
        if time.monotonic() - started > limit_s:
            print(f"not checked for want of time: {case.name} and what follows")
            break
        plan = TreePlan.build(case.end, window=case.window, device=device)
        inputs = _draw(case, device)
        options = {"softcap": case.softcap}
        wanted = _played(plan, [t.double() for t in inputs], "reference", options)
        allowed = [MAX_ERROR[case.dtype]] * len(wanted)
        if "sdpa" not in case.skipped and case.dtype is not torch.float32:
            eager = _errors(_played(plan, inputs, "sdpa", options), wanted)
            allowed = [2 * e for e in eager]
        for backend in backends:
            if backend in case.skipped or backend in wrong:
                continue
            try:
                errors = _errors(_played(plan, inputs, backend, options), wanted)
            except (RuntimeError, ValueError, TritonError) as e:  # a compiler's, a driver's, ours
                wrong[backend] = f"{case.name}: {type(e).__name__}: {e!s:.300}"
            else:
                if not all(x <= most for x, most in zip(errors, allowed, strict=True)):
                    wrong[backend] = f"{case.name}: {_told(errors)}, allowed {_told(allowed)}"
            said = f"WRONG: {wrong[backend]}" if backend in wrong else _told(errors)
            print(f"{case.name:24} {backend:8} {said}", flush=True)
    return wrong


def check_edges(device: torch.device) -> str | None:
    """Return how `edge_logprobs` is wrong on this device, None if it is not."""
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
        errors = _errors(play(hidden, weight, backend), wanted)
        print(f"{'edge log-probs':24} {backend:8} {_told(errors)}", flush=True)
        if not (max(errors[:2]) < 1e-5 and max(errors[2:]) < 1e-2):
            return f"backend {backend!r}: {_told(errors)}"
    return None


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
