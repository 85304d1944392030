"""Tiles, warps and stages of each Triton kernel by themselves: which are fastest on this GPU.

`compile_share` compiles a share of what is tried, on a tiny forest, so that many processes do it at
once; `tune` then times each kernel's candidates with the other two as they are, and writes the
winners as `tuned_kernels.json`. Not here: stages (`gpu.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterator

from attention import FLOPS, MAX_ERROR, Shape, Work, tree_work
from stages import Bench
from timing import in_turns
from torch import Tensor
from triton.errors import TritonError

from katgym_kernels import TreePlan
from katgym_kernels.attention.triton_kernels.configs import (
    KERNELS,
    TABLE,
    KernelConfig,
    TritonConfig,
    choose_config,
    read_table,
    table_key,
    write_table,
)
from katgym_kernels.attention.triton_kernels.launch import triton_attention

COLUMNS = ("kernel", "block_m", "block_n", "num_warps", "num_stages", "p50_ms", "tflops", "error")
NUM_SHARES = 16


def candidates(is_small: bool) -> Iterator[tuple[str, KernelConfig]]:
    """Yield kernels with what is tried of each."""
    for kernel, ms, ns in (
        ("forward", (64, 128), (32, 64, 128)),
        ("keys", (32, 64, 128), (64, 128)),
        ("queries", (64, 128), (32, 64, 128)),
    ):
        stages = (1,) if is_small else (1, 2, 3) if kernel != "forward" else (2, 3, 4)
        for m, n, warps, num_stages in itertools.product(ms, ns, (4, 8), stages):
            if not is_small or (m, n, warps) == (64, 64, 4):
                yield (
                    kernel,
                    KernelConfig(block_m=m, block_n=n, num_warps=warps, num_stages=num_stages),
                )


def setting(bench: Bench, shape: Shape, num_tokens: int) -> tuple[TreePlan, list[Tensor]]:
    """Return the forest and inputs: eight answers to a prompt that is half of all tokens."""
    answer = num_tokens // 16
    ends = [16 * answer] * (8 * answer)
    ends += [8 * answer + answer * (i + 1) for i in range(8) for _ in range(answer)]
    *leaves, grad = shape.draw(len(ends))
    plan = TreePlan.build(ends, device=bench.device)
    return plan, [*(t.requires_grad_() for t in leaves), grad]


def work_of(plan: TreePlan, inputs: list[Tensor], config: TritonConfig) -> Work:
    """Return what a configuration does."""
    scale = inputs[0].shape[-1] ** -0.5
    return tree_work(functools.partial(triton_attention, scale=scale, config=config), inputs, plan)


def compile_share(bench: Bench, shape: Shape, share: int) -> None:
    """Compile every sixteenth candidate; what does not fit the GPU is left to `tune`."""
    plan, inputs = setting(bench, shape, 64 if bench.is_small else 512)
    base = choose_config(bench.device, shape.head_size, shape.dtype)
    for kernel, config in itertools.islice(candidates(bench.is_small), share, None, NUM_SHARES):
        with contextlib.suppress(RuntimeError, TritonError):
            work_of(plan, inputs, dataclasses.replace(base, **{kernel: config})).gradients()


def tune(bench: Bench, shape: Shape) -> None:
    """Time all candidates, and write the table with the best so far."""
    plan, inputs = setting(bench, shape, 64 if bench.is_small else 16_384)
    base = choose_config(bench.device, shape.head_size, shape.dtype)
    first = work_of(plan, inputs, base)
    wanted = [first.out, *first.gradients()]
    winners, best_ms = base, dict.fromkeys(KERNELS, math.inf)
    key = table_key(bench.device, shape.head_size, shape.dtype)
    for kernel, config in [(k, getattr(base, k)) for k in KERNELS] + [*candidates(bench.is_small)]:
        pass_name = "forward" if kernel == "forward" else "backward"
        try:
            work = work_of(plan, inputs, dataclasses.replace(base, **{kernel: config}))
            found = [work.out, *work.gradients()]
            times = in_turns(
                {kernel: getattr(work, pass_name)}, bench.device,
                repeats=1 if bench.is_small else 5, limit_s=0.5,
            )  # fmt: skip
        except (RuntimeError, TritonError) as e:  # too large for the shared memory
            print(f"{kernel} {config}: {type(e).__name__}: {e!s:.80}", flush=True)
            continue
        error = max(
            float((x.float() - y.float()).norm() / y.float().norm())
            for x, y in zip(found, wanted, strict=True)
        )
        median_ms = statistics.median(times[kernel])
        flops = FLOPS[pass_name] * shape.heads * shape.head_size * plan.num_pairs
        sizes = dataclasses.asdict(config)
        bench.add("tune", {
            "kernel": kernel, **sizes, "p50_ms": round(median_ms, 3),
            "tflops": round(flops / median_ms / 1e9, 1), "error": f"{error:.1e}",
        })  # fmt: skip
        if not error <= 2 * MAX_ERROR[shape.dtype]:
            bench.fail(f"{kernel} {config} is wrong: relative error {error:.1e}")
        elif median_ms < best_ms[kernel]:
            best_ms[kernel] = median_ms
            winners = dataclasses.replace(winners, **{kernel: config})
            write_table(bench.out / TABLE.name, {**read_table(TABLE), key: winners})
