"""All that is measured on a GPU: first whether every backend is right, then how fast it is.

    make bench-gpu                                    # or: python kernels/benchmarks/gpu.py
    python kernels/benchmarks/gpu.py --small          # the same with tiny inputs, also on a CPU

Needs torch and triton alone, and takes less than eight minutes on an H200. A backend that is wrong
is named and not timed, and the exit code is 1. Writes `attention_gpu.csv` and `edges_gpu.csv` into
`--out` row by row. `--tune` times other tile sizes of the Triton kernels as well; `--flash FA3` has
PyTorch take another FlashAttention for `cascade` and `flat`, where that is installed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attention
import edges
import torch
from check import check_attention, check_edges
from families import FAMILIES, Family
from timing import Rows, device_name, in_turns, versions
from triton.errors import TritonError

from katgym_kernels import TreePlan
from katgym_kernels.attention.triton_attention import (
    KernelConfig,
    TritonConfig,
    default_config,
    triton_attention,
)

AIMS = {"forward": 400.0, "backward": 280.0}
"""TFLOP/s on visible pairs of the Triton kernels on an H200."""


def main() -> int:
    """Check, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny inputs, on a CPU if need be")
    parser.add_argument("--tune", action="store_true", help="time other tile sizes as well")
    parser.add_argument("--flash", choices=("FA3", "FA4"), help="instead of PyTorch's own")
    parser.add_argument("--out", type=Path, help="a folder (this one; with --small a new one)")
    options = parser.parse_args()
    if options.flash is not None:
        torch.nn.attention.activate_flash_attention_impl(options.flash)
    is_cuda = torch.cuda.is_available()
    if not is_cuda and not options.small:
        print("no CUDA device is there; --small plays it on the CPU", file=sys.stderr)
        return 2
    started = time.monotonic()
    device = torch.device("cuda" if is_cuda else "cpu")
    print(device_name(device), versions())
    names = ["triton", "cascade", *(["flex"] if is_cuda else [])]
    wrong = check_attention(device, names)
    bad_edges = check_edges(device)
    backends = [name for name in names if name not in wrong]
    shape = attention.Shape(
        device=device, dtype=torch.bfloat16 if is_cuda else torch.float32,
        heads=32 if is_cuda else 2, key_heads=8 if is_cuda else 1,
        head_size=128 if is_cuda else 16,
    )  # fmt: skip
    shared = {
        "flash": options.flash or "torch",
        "device": device_name(device),
        "dtype": str(shape.dtype).removeprefix("torch."),
        "heads": f"{shape.heads}:{shape.key_heads}:{shape.head_size}",
    }
    folder: Path = options.out or _folder(is_small=options.small)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "edges_gpu.csv").open("w", encoding="utf-8", newline="") as file:
        if bad_edges is None:
            _edges(Rows(file, edges.COLUMNS, shared), device, is_small=options.small)
    measured = []
    with (folder / "attention_gpu.csv").open("w", encoding="utf-8", newline="") as file:
        rows = Rows(file, attention.COLUMNS, shared)
        families = FAMILIES[:1] + FAMILIES[-1:] if options.small else FAMILIES
        measured = attention.run(
            list(families), backends, shape, rows, shrink=256 if options.small else 1,
            repeats=20, limit_s=2.0,
        )  # fmt: skip
    _compare(measured, families)
    if options.tune:
        _tune(shape, is_small=options.small)
    for name, why in wrong.items():
        print(f"WRONG: backend {name!r} of tree_attention: {why}")
    if bad_edges is not None:
        print(f"WRONG: edge_logprobs: {bad_edges}")
    print(f"{time.monotonic() - started:.0f} s in all")
    return 1 if wrong or bad_edges else 0


def _folder(*, is_small: bool) -> Path:
    """Return where the files go: rows of a play never replace those of a measurement."""
    folder = Path(tempfile.mkdtemp(prefix="bench-gpu-")) if is_small else Path(__file__).parent
    print(f"rows are written to {folder}")
    return folder


def _edges(rows: Rows, device: torch.device, *, is_small: bool) -> None:
    sizes = [(64, 500, 32)] if is_small else [(32_768, 151_936, 1024), (8_192, 151_936, 4096)]
    for num_edges, vocabulary, size in sizes:
        asked = edges.Size(
            edges=num_edges, vocabulary=vocabulary, size=size, device=device.type,
            dtype=torch.bfloat16, repeats=3,
        )  # fmt: skip
        for name in edges.backends(device.type):
            if name == "eager" and num_edges * vocabulary * 12 > 100e9:
                continue  # its logits, in three copies, do not fit
            row = edges.measure(name, asked)
            rows.write(row)
            print(edges.table_line(row), flush=True)


def _compare(measured: list[dict[str, object]], families: tuple[Family, ...]) -> None:
    """Print what the Triton kernels reach of what is aimed at."""
    found = {(str(r["family"]), str(r["pass"]), str(r["backend"])): r for r in measured}
    for family, (pass_name, aim) in itertools.product(families, AIMS.items()):
        ours = found.get((family.name, pass_name, "triton"))
        if ours is None:
            continue
        text = f"{float(str(ours['tflops'])):6.0f} of {aim:.0f} TFLOP/s"
        flex = found.get((family.name, pass_name, "flex"))
        if flex is not None:
            ratio = float(str(flex["p50_ms"])) / float(str(ours["p50_ms"]))
            text += f", {ratio:5.2f} times as fast as flex"
        print(f"{family.name:44} {pass_name:8} triton: {text}")


def _configs(default: TritonConfig) -> Iterator[tuple[str, TritonConfig]]:
    yield "default", default
    for block_m, block_n, warps, stages in itertools.product(
        (64, 128), (32, 64, 128), (4, 8), (2, 3, 4)
    ):
        one = KernelConfig(block_m=block_m, block_n=block_n, num_warps=warps, num_stages=stages)
        yield (
            f"{block_m} x {block_n}, {warps} warps, {stages} stages",
            TritonConfig(forward=one, keys=one, queries=one),
        )


def _tune(shape: attention.Shape, *, is_small: bool, limit_s: float = 300) -> None:
    """Print what each tile size takes, forward and backward, on one group of answers."""
    prompt, answer = (40, 10) if is_small else (8192, 2048)
    num = prompt + 8 * answer
    leaves = [prompt + answer * (i + 1) for i in range(8) for _ in range(answer)]
    plan = TreePlan.build([num] * prompt + leaves, device=shape.device)
    q, k, v, grad = shape.draw(num)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    started = time.monotonic()
    for name, config in _configs(default_config(shape.head_size, shape.dtype)):
        if time.monotonic() - started > limit_s:
            print("no time for the other tile sizes")
            break
        try:
            out = triton_attention(q, k, v, plan, scale=shape.head_size**-0.5, config=config)
            work = {
                "forward": lambda c=config: triton_attention(  # type: ignore[misc]
                    q, k, v, plan, scale=shape.head_size**-0.5, config=c
                ),
                "backward": lambda o=out: torch.autograd.grad(  # type: ignore[misc]
                    o, (q, k, v), grad, retain_graph=True
                ),
            }
            times = in_turns(work, shape.device, repeats=5, limit_s=1.0)
        except (RuntimeError, TritonError) as e:  # too large for the shared memory
            print(f"tiles {name:32} {type(e).__name__}: {e!s:.80}")
            continue
        told = []
        for pass_name, values in times.items():
            flops = attention.FLOPS[pass_name] * shape.heads * shape.head_size * plan.num_pairs
            best = sorted(values)[len(values) // 2]
            told.append(f"{pass_name} {best:8.2f} ms {flops / best / 1e9:7.1f} TFLOP/s")
        print(f"tiles {name:32} {', '.join(told)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
