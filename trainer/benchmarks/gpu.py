"""Second part of what is measured on a GPU: training steps, optimizers, a hand-over of weights, RL.

    make bench-gpu PART=2                       # after PART=1, which looks at the kernels
    python trainer/benchmarks/gpu.py --small    # the same with tiny inputs, also on a CPU

Needs torch, triton, numpy and transformers; LoRA is measured where peft is, RL where katgym is
installed. 8 minutes at most (`--budget-s`), each stage a process of its own
(`kernels/benchmarks/stages.py`). Whatever is wrong, fails, or has no time left is named, and the
exit code is 1; what is not there is named too. Writes `steps_gpu.csv` and `trainer_gpu.csv`. Not
here: the kernels by themselves (`kernels/benchmarks/gpu.py`).
"""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import importlib.util
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
import bare_core  # noqa: F401 - before the trainer is imported
import steps
from families import FAMILIES
from stages import Bench, Stage, play
from timing import peak_mib, quantiles, timed

from katgym_trainer import Trainer, TrainerConfig
from katgym_trainer.gradients.forward_backward import as_tree_model
from katgym_trainer.models.pretrained import checkpoint_activations

COLUMNS = ("what", "way", "parameters", "num_flat", "p20_ms", "p50_ms", "p80_ms", "peak_mib",
           "gb_per_s", "repeats")  # fmt: skip
FAMILY_NAMES = (
    "grpo n=8 prompt 0.5k answers 1k",
    "grpo n=16 prompt 4k answers 1k",
    "40 steps, compaction every 10",
    "8 rows, nothing shared",
)


def make_model(bench: Bench) -> Any:
    """Return a Qwen3 of the shape of Qwen3-0.6B with random weights."""
    if bench.is_small:
        return steps.make_model(1, 128, 100, device=bench.device.type)
    return steps.random_model(
        device="cuda", dtype=torch.bfloat16, vocab_size=151_936, hidden_size=1024,
        intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip


def make_hybrid(bench: Bench) -> Any:
    """Return a Qwen3.5 of the shape of its 0.8B: three Gated DeltaNet layers, one of attention."""
    if bench.is_small:
        return steps.make_hybrid(4, 128, 100, device=bench.device.type)
    return steps.random_model(
        "Qwen3_5TextConfig", device="cuda", dtype=torch.bfloat16, vocab_size=248_320,
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
        tie_word_embeddings=True,
    )  # fmt: skip


def rows_of(bench: Bench, model: Any, name: str) -> list[steps.Row]:
    """Return a family's rows, of tokens the model has."""
    (family,) = (f for f in FAMILIES if f.name == name)
    tree = family.make(random.Random(0)).shrunk(128 if bench.is_small else 1)
    return steps.make_rows(tree, model.config.vocab_size)


def measure_steps(bench: Bench, model: Any, name: str, *, max_rows: int | None = None) -> None:
    """Time steps on rows alone, behind one another, and on their forest; compare gradients."""
    checkpoint_activations(model)
    for row in steps.measure(
        name, model, rows_of(bench, model, name)[:max_rows], ("rows", "varlen", "forest"),
        max_tokens=40_000, repeats=2, limit_s=20, fail=bench.fail,
    ):  # fmt: skip
        bench.add("steps", {"model": type(model).__name__, **row})


def measure_hybrid(bench: Bench) -> None:
    """As `measure_steps`, where the trainer takes hybrid models."""
    model = make_hybrid(bench)
    try:
        as_tree_model(model)
    except ValueError as e:
        bench.leave_out(f"hybrid models: {e}")
        return
    measure_steps(bench, model, FAMILY_NAMES[1], max_rows=2 if bench.is_small else None)


def measure_trainer(bench: Bench, **settings: Any) -> None:
    """Time `Trainer.step_rows` with some settings, and its peak memory from the second step on."""
    model = make_model(bench)
    num = sum(p.numel() for p in model.parameters())
    rows = [
        row.replace(policy_logprobs=[-math.log(model.config.vocab_size)] * len(row))
        for row in rows_of(bench, model, FAMILY_NAMES[1])
    ]
    config = TrainerConfig(
        max_tokens=40_000, should_checkpoint_activations=True, learning_rate=1e-6,
        dtype=str(model.dtype).removeprefix("torch."), **settings,
    )  # fmt: skip
    trainer = Trainer(model, "grpo", args=config)
    losses = []

    def step() -> None:
        losses.append(trainer.step_rows(rows)["train/loss"])

    step()
    peak = peak_mib(step)
    values = [timed(step, bench.device) for _ in range(3)]
    if not all(abs(x) < 1e6 for x in losses):  # nan is not
        bench.fail(f"losses {losses}")
    bench.add("trainer", {
        "what": "Trainer.step_rows", "way": " ".join(f"{k}={v}" for k, v in settings.items()),
        "parameters": num, "num_flat": sum(map(len, rows)), **quantiles(values),
        "peak_mib": round(peak), "repeats": len(values),
    })  # fmt: skip


def take_weights(pipe: Any) -> None:
    """Copy what another process shares into memory of this one; tell the sum of each tensor."""
    while (tensors := pipe.recv()) is not None:
        copies = [tensor.clone() for tensor in tensors]
        if copies[0].is_cuda:
            torch.cuda.synchronize()
        pipe.send("copied")
        pipe.send([float(copy.double().sum()) for copy in copies])
        del tensors, copies


def measure_hand_over(bench: Bench) -> None:
    """Time all weights' way into another process on the same GPU, by handles of memory."""
    named = [(n, p.detach().contiguous()) for n, p in make_model(bench).named_parameters()]
    is_cuda = bench.device.type == "cuda"
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=take_weights, args=(theirs,), daemon=True)
    process.start()
    values = []
    for number in range(6):
        for _, tensor in named:
            tensor.add_(number)
        wanted = [float(tensor.double().sum()) for _, tensor in named]
        started = time.perf_counter()
        # As torch sends them: handles of a GPU's memory, as vLLM's `ipc` does, or shared memory.
        ours.send([t if is_cuda else t.clone() for _, t in named])
        if not ours.poll(60):
            raise TimeoutError("the other process does not answer")
        ours.recv()
        values.append((time.perf_counter() - started) * 1e3)
        if ours.recv() != wanted:
            bench.fail("the other process has other weights")
    ours.send(None)
    process.join(30)
    num_bytes = sum(t.nbytes for _, t in named)
    bench.add("trainer", {
        "what": "hand-over of weights", "way": "ipc" if is_cuda else "shared memory",
        "parameters": sum(t.numel() for _, t in named), **quantiles(values[1:]),
        "gb_per_s": round(num_bytes / statistics.median(values[1:]) / 1e6, 3),
        "repeats": len(values) - 1,
    })  # fmt: skip


def measure_transfers(bench: Bench) -> None:
    """Sync weights into real servers over vLLM's engines, where it is beside the trainer."""
    if not (importlib.util.find_spec("vllm") and torch.cuda.is_available()):
        bench.leave_out("weights over vLLM's engines: they need vLLM and GPUs")
        return
    ways = ("ipc", "nccl", "nccl_m2n") if torch.cuda.device_count() > 1 else ("ipc",)
    with tempfile.TemporaryDirectory() as folder:
        make_model(bench).save_pretrained(folder)
        script = [sys.executable, Path(__file__).with_name("sync_times.py"), "--model", folder]
        for way in ways:
            with bench.passing_over(f"weights by {way}"):
                file = Path(folder) / f"{way}.csv"
                more = ["--way", way, "--dtype", "bfloat16", "--out", file, "--repeats", "3"]
                subprocess.run([*script, *more], check=True)
                for row in csv.DictReader(file.open()):
                    told = {"what": f"weights: {row['part']}", "way": way}
                    bench.add("trainer", told | {name: row[name] for name in COLUMNS if name in row
                                                 and name not in told})  # fmt: skip


def measure_rl(bench: Bench) -> None:
    """Time the training demo's quick run: new models imitate, play and learn from it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "katgym", "demo", "train", "--quick"]
        value = timed(lambda: subprocess.run(command, cwd=folder, check=True), torch.device("cpu"))
    row = {"what": "katgym demo train", "way": "--quick", "p50_ms": round(value)}
    bench.add("trainer", {**row, "repeats": 1})


def stages() -> list[Stage]:
    """Return all that is played here; the same in every process."""
    has_gpu = torch.cuda.is_available()
    found = [
        Stage(
            name=f"steps: {name}",
            run=lambda bench, name=name: measure_steps(bench, make_model(bench), name),
            limit_s=100,
        )
        for name in (FAMILY_NAMES if has_gpu else FAMILY_NAMES[:1])
    ]  # fmt: skip
    for settings in ({"optimizer": "adamw"}, {"optimizer": "muon"}, {"lora_rank": 16}):
        if "lora_rank" not in settings or importlib.util.find_spec("peft"):
            name = " ".join(f"{k}={v}" for k, v in settings.items())
            run = functools.partial(measure_trainer, **settings)
            found.append(Stage(name=name, run=run, limit_s=60))
    found.append(Stage(name="hand-over of weights", run=measure_hand_over, limit_s=60))
    found.append(Stage(name="weights over vLLM's engines", run=measure_transfers, limit_s=200))
    found.append(Stage(name="hybrid", run=measure_hybrid, limit_s=150 if has_gpu else 600))
    try:
        importlib.metadata.distribution("katgym")
    except importlib.metadata.PackageNotFoundError:
        pass  # without it no environment is registered
    else:
        found.append(Stage(name="demo", run=measure_rl, limit_s=150))
    return found


if __name__ == "__main__":
    chosen = stages()
    left_out = sorted({"lora_rank=16", "demo"} - {stage.name for stage in chosen})
    tables = {"steps": ("model", *steps.COLUMNS), "trainer": COLUMNS}
    sys.exit(play(chosen, tables, __doc__, left_out=left_out))
