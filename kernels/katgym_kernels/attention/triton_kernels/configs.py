"""Tiles, warps and stages of the Triton kernels: measured where a table has them, else by default.

`tuned_kernels.json` holds what `benchmarks/gpu.py` found fastest on a GPU; it is empty until one
was measured. Not here: the kernels.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import triton

KERNELS = ("forward", "keys", "queries")
"""Fields of `TritonConfig` that are tuned."""
TABLE = Path(__file__).with_name("tuned_kernels.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Sizes of one kernel's tiles, and how many warps and stages run it."""

    block_m: int
    """Queries a tile."""
    block_n: int
    """Keys a tile."""
    num_warps: int = 8
    num_stages: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonConfig:
    """The configurations of the three large kernels."""

    forward: KernelConfig
    keys: KernelConfig
    """dK and dV."""
    queries: KernelConfig
    """dQ."""
    max_query_tiles: int = 64
    """Query tiles of a key tile from which on its range is split among programs of dK/dV."""
    max_extra_parts: int = 1024
    """Parts that splitting may add, of all key heads: a few for each processor of a large GPU."""


LARGE_SHARED_BYTES = 160_000
"""Shared memory of a block from which on the large tiles fit: A100, H100 and later."""


def default_config(
    size: int, dtype: torch.dtype, *, shared_bytes: int = LARGE_SHARED_BYTES
) -> TritonConfig:
    """Return the configuration for a head size and dtype.

    shared_bytes: what a block may have at most on the device. What becomes of each configuration is
        told by `benchmarks/compiled.py`, how fast it is by `benchmarks/gpu.py`.
    """
    if dtype is torch.float32:  # no matrix unit is exact: plain multiplications
        block = 32 if size <= 128 else 16
        plain = KernelConfig(block_m=block, block_n=block, num_warps=8, num_stages=1)
        return TritonConfig(forward=plain, keys=plain, queries=plain)
    if shared_bytes < LARGE_SHARED_BYTES and size > 256:
        small = KernelConfig(block_m=16, block_n=16, num_warps=4, num_stages=1)
        return TritonConfig(forward=small, keys=small, queries=small)
    if shared_bytes < LARGE_SHARED_BYTES:
        tight = KernelConfig(block_m=64, block_n=32, num_warps=4, num_stages=1)
        block_n = 64 if size <= 128 else 32
        keys = KernelConfig(block_m=32, block_n=block_n, num_warps=4, num_stages=1)
        return TritonConfig(forward=tight, keys=keys, queries=tight)
    if size > 256:
        narrow = KernelConfig(block_m=64, block_n=32, num_warps=8, num_stages=1)
        keys = KernelConfig(block_m=32, block_n=32, num_warps=8, num_stages=1)
        return TritonConfig(forward=narrow, keys=keys, queries=narrow)
    if size > 128:
        return TritonConfig(
            forward=KernelConfig(block_m=128, block_n=32, num_warps=8, num_stages=2),
            keys=KernelConfig(block_m=32, block_n=64, num_warps=8, num_stages=2),
            queries=KernelConfig(block_m=64, block_n=32, num_warps=8, num_stages=2),
        )
    return TritonConfig(
        forward=KernelConfig(block_m=128, block_n=64, num_warps=8, num_stages=3),
        keys=KernelConfig(block_m=64, block_n=128, num_warps=8, num_stages=2),
        queries=KernelConfig(block_m=128, block_n=64, num_warps=8, num_stages=2),
    )


@lru_cache(maxsize=64)
def choose_config(device: torch.device, size: int, dtype: torch.dtype) -> TritonConfig:
    """Return the configuration that was measured on such a device, or the default for it."""
    if device.type != "cuda":
        return default_config(size, dtype)
    measured = read_table(TABLE).get(table_key(device, size, dtype))
    if measured is not None:
        return measured
    index = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)
    return default_config(size, dtype, shared_bytes=int(found["max_shared_mem"]))


def table_key(device: torch.device, size: int, dtype: torch.dtype) -> str:
    """Return the table's name for a device, head size and dtype: "NVIDIA H200 128 bfloat16"."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name} {size} {str(dtype).removeprefix('torch.')}"


def read_table(path: Path) -> dict[str, TritonConfig]:
    """Return a table's configurations."""
    table = json.loads(path.read_text("utf-8"))
    found = {}
    for key, row in table.items():
        forward, keys, queries = (KernelConfig(**row[kernel]) for kernel in KERNELS)
        found[key] = TritonConfig(forward=forward, keys=keys, queries=queries)
    return found


def write_table(path: Path, table: dict[str, TritonConfig]) -> None:
    """Write a table as `read_table` takes it."""
    rows = {
        key: {kernel: dataclasses.asdict(getattr(config, kernel)) for kernel in KERNELS}
        for key, config in table.items()
    }
    path.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
