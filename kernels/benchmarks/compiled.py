"""What the compiler makes of the Triton kernels for a GPU that need not be there.

    python kernels/benchmarks/compiled.py                  # sm_90: H100, H200
    python kernels/benchmarks/compiled.py --head-size 64 --dtype fp16 --options

For each kernel: registers a thread, bytes spilled to memory, shared memory, and how many matrix
instructions of which kind. Many spills are a slow kernel, more shared memory than the GPU has is
one that does not start (exit code 1); both are seen here without spending time on a GPU.
`--options` compiles them with window, softcap and sinks. Needs torch and triton alone. Not here:
how fast they are (`gpu.py`).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: it would make no code

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from katgym_kernels.attention.triton_kernels import backward, forward
from katgym_kernels.attention.triton_kernels.configs import default_config
from katgym_kernels.edge_logprobs import triton_blocks as blocks
from katgym_kernels.triton_check import HEAD_SIZES

SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448}
"""Of one block at most, by architecture (CUDA C++ Programming Guide, compute capabilities)."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_FLOATS = ("lse", "delta", "dk", "dv", "parts", "z", "largest", "sum", "weighted", "logit",
           "entropy", "logprob", "rest", "grad_logprob", "grad_entropy")  # fmt: skip
_INPUTS = ("q", "k", "v", "out", "grad", "sinks", "dq", "found")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of one kernel."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    wgmma: int
    """Matrix instructions of Hopper, each by four warps."""
    mma: int
    """Older ones, by one warp."""

    def __str__(self) -> str:
        return (
            f"{self.name:16} {self.registers:4} registers, {self.spilled_bytes:5} bytes spilled,"
            f" {self.shared_bytes:7} bytes of shared memory, {self.wgmma} wgmma, {self.mma} mma"
        )


Kernel = tuple[str, Any, dict[str, Any], dict[str, int]]
"""Name, kernel, compile-time arguments, launch options."""


def kernels(size: int, dtype: str, *, shared_bytes: int, has_options: bool) -> Iterator[Kernel]:
    """Yield what is compiled."""
    config = default_config(size, DTYPES[dtype], shared_bytes=shared_bytes)
    padded = int(triton.next_power_of_2(size))
    heads = {"G": 4, "D": size, "BD": padded, "PRECISION": "ieee"}
    flags = {"HAS_WINDOW": has_options, "HAS_SOFTCAP": has_options}
    for name, kernel, chosen, more in (
        ("forward", forward.forward_kernel, config.forward, {"HAS_SINKS": has_options}),
        ("dK and dV", backward.keys_kernel, config.keys, {}),
        ("dQ", backward.queries_kernel, config.queries, {}),
    ):
        sizes = {"BM": chosen.block_m, "BN": chosen.block_n}
        run = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        yield name, kernel, {**heads, **flags, **sizes, **more}, run
    rows = {"D": size, "BD": padded}
    yield "delta", backward.delta_kernel, {**rows, "BM": 64}, {}
    yield "sum of parts", backward.sum_kernel, {**rows, "BN": config.keys.block_n}, {}
    edges = {"BLOCK": 2048, "HAS_SOFTCAP": has_options}
    yield "edges, forward", blocks.take_kernel, edges, {"num_warps": 8}
    backward_edges = {**edges, "HAS_ENTROPY": has_options}
    yield "edges, backward", blocks.gradient_kernel, backward_edges, {"num_warps": 8}


def compiled(
    name: str, kernel: Any, constants: dict[str, Any], run: dict[str, int], dtype: str, arch: int
) -> Compiled:
    """Compile one kernel; raises what triton raises."""
    left_out = {"sinks_ptr": "HAS_SINKS", "grad_entropy_ptr": "HAS_ENTROPY"}
    fixed = {
        **constants,
        **{name: None for name, flag in left_out.items() if not constants.get(flag, True)},
    }
    signature = {
        name: "constexpr" if name in fixed else _kind(name, kernel, dtype)
        for name in kernel.arg_names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, argument in enumerate(kernel.arg_names)
        if signature[argument].startswith("*") or re.fullmatch(r"[a-z]{1,2}", argument)
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=aligned)
    options = {**run, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    ptx = made.asm["ptx"]
    registers, spilled = _resources(made.asm["cubin"])
    return Compiled(
        name=name,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=made.metadata.shared,
        wgmma=ptx.count("wgmma.mma_async"),
        mma=ptx.count("mma.sync"),
    )


def _kind(argument: str, kernel: Any, dtype: str) -> str:
    """Return the type of a run-time argument, by its name."""
    stem = argument.removesuffix("_ptr")
    if stem == "inside":
        return "*i64"
    if argument.endswith("_ptr") and stem in _INPUTS:
        return f"*{dtype}"
    if argument.endswith("_ptr") and stem in _FLOATS:
        return f"*{dtype}" if kernel is backward.sum_kernel and stem == "sum" else "*fp32"
    if argument.endswith(("_ptr", "_offsets", "_keys", "_tiles")):
        return "*i32"
    return "fp32" if argument in ("scale", "softcap", "temperature") else "i32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return registers and bytes of stack a thread, as the assembler's report says."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernel.cubin"
        place.write_bytes(cubin)
        told = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", place],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def main() -> int:
    """Compile everything and print a line each; return 1 if one is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, default=90, choices=SHARED_BYTES)
    parser.add_argument("--head-size", type=int, default=128, choices=HEAD_SIZES)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--options", action="store_true", help="window, softcap and sinks")
    asked = parser.parse_args()
    is_bad = False
    limit = SHARED_BYTES[asked.arch]
    for name, kernel, constants, run in kernels(
        asked.head_size, asked.dtype, shared_bytes=limit, has_options=asked.options
    ):
        found = compiled(name, kernel, constants, run, asked.dtype, asked.arch)
        is_bad |= found.shared_bytes > limit
        print(found, flush=True)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
