"""How fast `edge_logprobs` is, and how much memory it takes, beside the whole softmax and peers.

    python kernels/benchmarks/edges.py --edges 32768 --vocabulary 151936 --size 128 \\
        --out kernels/benchmarks/edges_cpu.csv

`eager` is log_softmax over all logits, `gather` the targets' logits less a log-sum-exp of each row,
as TRL computes it (float32, without entropy). `cce` (cut-cross-entropy) and `liger` (liger-kernel)
are measured where they are installed and can run: on the CPU that is cce's torch.compile form, and
for both no entropy, which they do not give. Memory is what is held at most above the inputs,
gradients included: of the process on the CPU, each backend in one of its own; of the allocator on
CUDA. `--confident` prints how far the gradient of a confident token in bfloat16 is off instead. Not
here: whether the results are right (`check.py`).
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from timing import Rows, device_name, peak_mib
from torch import Tensor

from katgym_kernels import edge_logprobs

COLUMNS = ("backend", "edges", "vocabulary", "size", "forward_ms", "backward_ms", "peak_mib",
           "gradients_mib")  # fmt: skip
Compute = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One measurement's shape."""

    edges: int
    vocabulary: int
    size: int
    device: str
    dtype: torch.dtype
    repeats: int = 1

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden, weight and target."""
        rng = torch.Generator(self.device).manual_seed(0)

        def normal(num: int) -> Tensor:
            made = torch.empty(num, self.size, device=self.device, dtype=self.dtype)
            return made.normal_(std=self.size**-0.25, generator=rng).requires_grad_()

        hidden, weight = normal(self.edges), normal(self.vocabulary)
        target = torch.randint(self.vocabulary, (self.edges,), generator=rng, device=self.device)
        return hidden, weight, target  # fmt: skip


def ours(backend: str) -> Compute:
    """Return the sum of log-probs by one of our backends; the entropies are computed as well."""

    def compute(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return edge_logprobs(hidden, weight, target, backend=backend)[0].sum()

    return compute


def eager(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the same from all logits in the inputs' dtype, softmax in float32."""
    logp = (hidden @ weight.T).float().log_softmax(1)
    return logp.gather(1, target[:, None]).sum()


def gather(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the same from the target's logit and a log-sum-exp for each row."""
    logits = (hidden @ weight.T).float()
    lse = torch.stack([row.logsumexp(0) for row in logits])
    return (logits.gather(1, target[:, None])[:, 0] - lse).sum()


def cce(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the same from cut-cross-entropy."""
    from cut_cross_entropy import linear_cross_entropy

    impl = "cce" if hidden.is_cuda else "torch_compile"
    return -linear_cross_entropy(hidden, weight, target, reduction="sum", impl=impl)


def liger(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the same from liger-kernel."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return -liger_fused_linear_cross_entropy(hidden, weight, target, reduction="sum")


def backends(device: str) -> dict[str, Compute]:
    """Return what can be measured on a device."""
    found: dict[str, Compute] = {"torch": ours("torch"), "eager": eager, "gather": gather}
    if device == "cuda":
        found["triton"] = ours("triton")
    if find_spec("cut_cross_entropy"):
        found["cce"] = cce
    if find_spec("liger_kernel") and device == "cuda":
        found["liger"] = liger
    return found


def measure(name: str, size: Size) -> dict[str, object]:
    """Return one backend's row; on the CPU call it in a process of its own."""
    compute = backends(size.device)[name]
    hidden, weight, target = size.draw()
    compute(hidden[:64], weight, target[:64]).backward()  # compiles, and makes thread pools
    hidden.grad = weight.grad = None
    gc.collect()
    is_cuda = size.device == "cuda"
    forward, backward = [], []

    def play() -> None:
        for _ in range(size.repeats):
            hidden.grad = weight.grad = None
            started = _now(is_cuda)
            total = compute(hidden, weight, target)
            middle = _now(is_cuda)
            total.backward()
            forward.append((middle - started) * 1e3)
            backward.append((_now(is_cuda) - middle) * 1e3)

    peak = peak_mib(play)
    assert hidden.grad is not None and weight.grad is not None
    gradients = hidden.grad.nbytes + weight.grad.nbytes
    shape = asdict(size)
    return {
        **{key: shape[key] for key in ("edges", "vocabulary", "size")},
        "backend": name,
        "forward_ms": round(statistics.median(forward), 1),
        "backward_ms": round(statistics.median(backward), 1),
        "peak_mib": round(peak),
        "gradients_mib": round(gradients / 2**20),
    }


def _now(is_cuda: bool) -> float:
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def apart(name: str, size: Size) -> dict[str, object]:
    """Return one backend's row; on the CPU it is measured in a process of its own."""
    if size.device == "cuda":
        return measure(name, size)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, size))


def confident(device: str) -> dict[tuple[str, float], float]:
    """Return the relative error of a confident token's gradient, by backend and probability.

    The logits are (z, 0) in bfloat16, so that 1 - p is all the gradient there is.
    """
    found = {}
    for p in (0.9, 0.99, 0.999):
        z = torch.tensor(p / (1 - p), dtype=torch.float64).log().to(torch.bfloat16)
        wanted = float(torch.sigmoid(-z.double()))
        computes = dict(backends(device))
        computes["triton"] = ours("triton")
        if find_spec("liger_kernel"):
            computes["liger"] = liger
        for name, compute in computes.items():
            hidden = torch.ones(1, 1, dtype=torch.bfloat16, device=device, requires_grad=True)
            weight = torch.stack([z, torch.zeros_like(z)])[:, None].to(device).requires_grad_()
            compute(hidden, weight, torch.tensor([0], device=device)).backward()
            assert weight.grad is not None
            found[name, p] = abs(float(weight.grad[0, 0]) - wanted) / wanted
    return found


def main() -> None:
    """Measure, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=32_768)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--size", type=int, default=128, help="of the model (128)")
    parser.add_argument("--backend", action="append", help="may be given several times (all)")
    parser.add_argument("--confident", action="store_true")
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    if options.confident:
        for (name, p), error in confident("cpu").items():
            print(f"p={p:<6} {name:8} relative error of the gradient {error:.1e}")
        return
    size = Size(edges=options.edges, vocabulary=options.vocabulary, size=options.size,
                device="cpu", dtype=torch.float32)  # fmt: skip
    shared = {"device": device_name(torch.device("cpu")), "dtype": "float32"}
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        rows = Rows(file, COLUMNS, shared)
        for name in options.backend or backends("cpu"):
            row = apart(name, size)
            rows.write(row)
            print(table_line(row), flush=True)


def table_line(row: dict[str, object]) -> str:
    """Return a row for people."""
    return (
        f"{row['backend']:8} forward {row['forward_ms']:10} ms,"
        f" backward {row['backward_ms']:10} ms, {row['peak_mib']:6} MiB above the inputs,"
        f" {row['gradients_mib']} of them gradients"
    )


if __name__ == "__main__":
    main()
