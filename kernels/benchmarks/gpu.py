"""First part of what is measured on a GPU: whether every backend is right, and how fast it is.

    make bench-gpu PART=1                     # PYTHONPATH=kernels python kernels/benchmarks/gpu.py
    python kernels/benchmarks/gpu.py --small  # the same with tiny inputs, also on a CPU

Needs torch, triton and numpy alone, and takes 8 minutes at most (`--budget-s`). Each stage is a
process of its own (`stages.py`): first exactness, all side by side since they compile; then tiles
of the Triton kernels, four families of attention, memory of long chains, edge log-probs. Whatever
is wrong, fails, or has no time left is named, and the exit code is 1. Writes `checks_gpu.csv`,
`tune_gpu.csv`, `attention_gpu.csv`, `edges_gpu.csv` and `tuned_kernels.json`, which the library
reads once it is in `katgym_kernels/attention/triton_kernels/`. FlashAttention 3 and 4 are measured
where they can be imported. Not here: training steps (`trainer/benchmarks/gpu.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import random
import sys

import attention
import check
import edges
import torch
import tune
from attention import Shape, by_backend
from families import FAMILIES, Family
from stages import Bench, Stage, play
from timing import peak_mib

from katgym_kernels import TreePlan
from katgym_kernels.attention.triton_kernels.configs import TABLE, read_table, table_key
from katgym_kernels.attention.triton_kernels.launch import triton_attention

TABLES = {
    "checks": check.COLUMNS,
    "tune": tune.COLUMNS,
    "attention": attention.COLUMNS,
    "edges": edges.COLUMNS,
}
CHOSEN = [
    family
    for family in FAMILIES
    if family.name
    in (
        "grpo n=8 prompt 0.5k answers 1k",
        "grpo n=16 prompt 4k answers 1k",
        "8 rollouts x 20 step rows",
        "8 rows, nothing shared",
    )
]
"""That share little, much, deeply, and nothing."""
UNKNOWN = {
    "cascade": ("float32", "window", "options", "size 512"),
    "flex": ("float32", "size 512"),
    "fa4": ("float32", "options", "size 80", "size 192", "size 512"),
}
"""Groups of cases that have what a backend does not know."""
FLASHES = {"FA3": "flash_attn_interface", "FA4": "flash_attn.cute"}
"""FlashAttentions that PyTorch can take, and where they are imported from."""


def can_import(module: str) -> bool:
    """Return whether a module is there, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what it lies in
        return False


def shape_of(bench: Bench) -> Shape:
    """Return heads, head size and dtype."""
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    heads, key_heads, head_size = (2, 1, 16) if bench.is_small else (32, 8, 128)
    return Shape(
        device=bench.device, dtype=dtype, heads=heads, key_heads=key_heads, head_size=head_size
    )


def measure_attention(bench: Bench, family: Family, flash: str = "") -> None:
    """Time a family's attention; flash: the FlashAttention PyTorch takes instead of its own."""
    shape = shape_of(bench)
    runs = {f"cascade {flash}".strip(): by_backend(check.activate(f"cascade {flash}"))}
    flats = [f"flat {flash}".strip()]
    if not flash:
        runs["triton"] = by_backend("triton")
        tuned = bench.out / TABLE.name
        table = read_table(tuned) if tuned.exists() else {}
        config = table.get(table_key(bench.device, shape.head_size, shape.dtype))
        if config is not None:
            scale = shape.head_size**-0.5
            runs["triton tuned"] = functools.partial(triton_attention, scale=scale, config=config)
        if bench.device.type == "cuda":
            runs["flex"] = by_backend("flex")
            if can_import(FLASHES["FA4"]):
                runs["fa4"] = by_backend("fa4")
            flats.append("cudnn")
    tree = family.make(random.Random(0)).shrunk(256 if bench.is_small else 1)
    for row in attention.measure(
        tree, runs, shape, repeats=20, limit_s=2, flat_names=flats, passing_over=bench.passing_over
    ):
        bench.add("attention", {"family": family.name, **row})


def measure_memory(bench: Bench) -> None:
    """Measure what the backward of long chains takes above what is held before it."""
    shape = shape_of(bench)
    for num in (600,) if bench.is_small else (131_072, 262_144):
        with bench.passing_over(f"chain of {num}"):
            plan = TreePlan.build([num] * num, device=bench.device)
            *leaves, grad = shape.draw(num)
            leaves = [t.requires_grad_() for t in leaves]
            work = attention.tree_work(by_backend("triton"), [*leaves, grad], plan)
            row = {"family": f"chain of {num}", "backend": "triton", "pass": "backward"}
            sizes = {"n_tree": num, "pairs_tree": plan.num_pairs}
            bench.add("attention", {**row, **sizes, "peak_mib": round(peak_mib(work.backward))})


def measure_edges(bench: Bench) -> None:
    """Time edge log-probs and their peers."""
    sizes = [(64, 500, 32)] if bench.is_small else [(32_768, 151_936, 1024), (8_192, 151_936, 4096)]
    for num_edges, vocabulary, size in sizes:
        asked = edges.Size(
            edges=num_edges, vocabulary=vocabulary, size=size, device=bench.device.type,
            dtype=torch.bfloat16, repeats=3,
        )  # fmt: skip
        for name in edges.backends(bench.device.type):
            if name in ("eager", "gather") and num_edges * vocabulary * 12 > 100e9:
                continue  # its logits, in three copies, do not fit
            with bench.passing_over(name):
                bench.add("edges", edges.measure(name, asked))


def stages() -> list[Stage]:
    """Return all that is played here; the same in every process."""
    is_cuda = torch.cuda.is_available()
    backends = ["triton", "cascade", *["flex"] * is_cuda]
    flashes = [name for name, module in FLASHES.items() if is_cuda and can_import(module)]
    backends += [f"cascade {flash}" for flash in flashes] + ["fa4"] * ("FA4" in flashes)
    groups = check.groups(torch.device("cuda" if is_cuda else "cpu"))
    found = [
        Stage(
            name=f"{backend}: {group}",
            run=functools.partial(check.check_attention, backend=backend, group=group),
            is_timed=False, limit_s=200,
        )
        for group in groups
        for backend in backends
        if group not in UNKNOWN.get(backend.split()[0], ())
    ]  # fmt: skip
    found.append(Stage(name="edge log-probs", run=check.check_edges, is_timed=False))
    found += [
        Stage(
            name=f"compile {share}",
            run=lambda bench, share=share: tune.compile_share(bench, shape_of(bench), share),
            is_timed=False, limit_s=200,
        )
        for share in range(tune.NUM_SHARES if is_cuda else 1)
    ]  # fmt: skip
    found.append(Stage(name="tune", run=lambda bench: tune.tune(bench, shape_of(bench))))
    for flash in ("", *flashes):
        found += [
            Stage(
                name=f"attention {flash}: {family.name}",
                run=functools.partial(measure_attention, family=family, flash=flash),
                limit_s=90,
            )
            for family in (CHOSEN if is_cuda else CHOSEN[:1])
        ]
    found.append(Stage(name="memory of chains", run=measure_memory, limit_s=60))
    found.append(Stage(name="edges", run=measure_edges, limit_s=60))
    return found


if __name__ == "__main__":
    flashes = [name for name, module in FLASHES.items() if not can_import(module)]
    sys.exit(play(stages(), TABLES, __doc__, left_out=flashes))
