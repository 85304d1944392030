"""The backend that `tree_attention` takes when it is asked for "auto".

On CUDA: the Triton kernels, but PyTorch's flash attention (in backend "cascade") for rows that
share nothing. On the CPU: the dense mask for small or much branched forests, else the rectangles of
"cascade", by a cost in nanoseconds that `benchmarks/cpu_costs.py` has fitted to measurements. Not
here: the backends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from katgym_kernels.attention.cpu_batches import cpu_batches
from katgym_kernels.attention.rectangles import rectangles
from katgym_kernels.tree_plan import TreePlan
from katgym_kernels.triton_check import triton_problem

_log = logging.getLogger(__name__)
_MAX_DENSE_TOKENS = 8192
"""Above, the dense mask alone takes more than 256 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Nanoseconds of forward and backward for each term."""

    cascade: tuple[float, ...]
    """Of `cascade_terms`."""
    dense: tuple[float, ...]
    """Of `dense_terms`."""

    def of_cascade(self, plan: TreePlan, width: int) -> float:
        """Return what backend "cascade" costs."""
        return _total(self.cascade, cascade_terms(plan, width))

    def of_dense(self, plan: TreePlan, width: int) -> float:
        """Return what backend "sdpa" costs."""
        return _total(self.dense, dense_terms(plan, width))


def _total(factors: tuple[float, ...], terms: tuple[float, ...]) -> float:
    return sum(f * t for f, t in zip(factors, terms, strict=True))


def cascade_terms(plan: TreePlan, width: int) -> tuple[float, ...]:
    """Return 1, calls, rectangles, elements of queries in them, and pairs with those of padding.

    width: query heads times head size.
    """

    def count(plan: TreePlan) -> tuple[float, ...]:
        made = list(rectangles(plan))
        batches = cpu_batches(made, width)
        num_queries = sum(r.q1 - r.q0 for r in made)
        num_pairs = sum(len(batch) * max(r.num_pairs for r in batch) for batch in batches)
        return 1, len(batches), len(made), num_queries * width, num_pairs * width

    return plan.once(("cascade terms", width), count)


def dense_terms(plan: TreePlan, width: int) -> tuple[float, ...]:
    """Return 1, elements of queries, and pairs whether they are visible or not."""
    num_queries = len(plan) - plan.num_above
    return 1, num_queries * width, num_queries * len(plan) * width


COSTS = Costs(cascade=(260e3, 200e3, 11.1e3, 3.04, 0.130), dense=(250e3, 1.25, 0.0929))
"""Of float32 on two x86-64 cores; only their ratio matters."""


class Choice(NamedTuple):
    """A backend, why it is taken, and whether it makes an N x N mask that nobody asked for."""

    name: str
    why: str
    is_dense: bool = False


def choose(
    plan: TreePlan, q_HND: Tensor, *, has_softcap: bool = False, has_sinks: bool = False
) -> str:
    """Return the backend for these queries, and say so in the log, once for each reason."""
    num_heads, _, size = q_HND.shape
    choice = decide(
        plan,
        device=q_HND.device,
        dtype=q_HND.dtype,
        heads=(num_heads, size),
        has_softcap=has_softcap,
        has_sinks=has_sinks,
    )
    _tell(choice)
    return choice.name


def decide(
    plan: TreePlan,
    *,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int],
    has_softcap: bool = False,
    has_sinks: bool = False,
) -> Choice:
    """Return what is taken; heads: how many query heads, and their size."""
    is_plain = plan.window is None and not has_softcap
    if device.type == "cuda":
        is_half = dtype in (torch.float16, torch.bfloat16)
        is_plain = is_plain and heads[1] <= 256  # as far as PyTorch's flash attention goes
        if is_plain and is_half and not is_branched(plan):
            return Choice("cascade", "no row shares anything with another")
        problem = triton_problem(device, dtype, head_size=heads[1])
        if problem is None:
            return Choice("triton", "the kernels for CUDA")
        if is_plain and is_half:
            return Choice("cascade", problem)
        return Choice("reference", problem, is_dense=True)
    if has_softcap or (plan.window is not None and has_sinks):
        return Choice("reference", "on the CPU it alone knows all options", is_dense=True)
    if plan.window is not None:
        return Choice("sdpa", "on the CPU windows need a mask", is_dense=True)
    if has_sinks:
        return Choice("cascade", "on the CPU it is the fast one with sinks")
    if len(plan) > _MAX_DENSE_TOKENS:
        return Choice("cascade", f"a mask of more than {_MAX_DENSE_TOKENS} tokens is too large")
    width = heads[0] * heads[1]
    if COSTS.of_dense(plan, width) < COSTS.of_cascade(plan, width):
        return Choice("sdpa", "few tokens, or many short branches: a dense mask is faster")
    return Choice("cascade", "long branches: the mask's rectangles are faster than a dense one")


def is_branched(plan: TreePlan) -> bool:
    """Return whether any token has two children, so that rows share a prefix."""

    def look(plan: TreePlan) -> bool:
        starts = plan.segment_starts
        return bool((plan.host_end_N[starts[:-1]] > starts[1:]).any())

    return plan.once("is branched", look)


@lru_cache(maxsize=32)
def _tell(choice: Choice) -> None:
    level, cost = logging.INFO, ""
    if choice.is_dense:
        level, cost = logging.WARNING, "dense, O(N^2) memory: "
    _log.log(level, "tree_attention: backend 'auto' takes %r (%s%s)", choice.name, cost, choice.why)
