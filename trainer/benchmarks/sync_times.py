"""Times weight syncs into a real vLLM server, by their parts.

    python trainer/benchmarks/sync_times.py --model FOLDER --out weight_sync_cpu.csv

The server is idle, so `stalled` is what a sync costs those who wait: pause, update and resume.
Every sync is probed, and nothing is written when one is off. The server takes all weights, then
adapters, so its probe samples. `--way nccl`, `nccl_m2n` or `ipc` goes from GPU to GPU, with vLLM
beside the trainer: the model is on the first GPU, the server on the second, for `ipc` on the first
as well. Those have not been run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from timing import Rows, device_name, quantiles

from katgym.vllm_server import VllmServer, VllmServerConfig
from katgym.vllm_server.config import TransferBackend
from katgym_trainer.models.adapters import add_adapters
from katgym_trainer.trainer_config import TrainerConfig
from katgym_trainer.weight_sync.lora_sync import LoraSync
from katgym_trainer.weight_sync.reload_sync import ReloadSync
from katgym_trainer.weight_sync.weight_sync import SyncTimes, WeightSync

COLUMNS = ("model", "way", "part", "p20_ms", "p50_ms", "p80_ms", "difference", "repeats")
PARTS = ("prepare", "pause", "update", "resume", "stalled", "probe")


def shake(model: Any, seed: int) -> None:
    """Change what is trained, as a step does."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 1e-3)


async def measure(sync: WeightSync, model: Any, *, first: int, repeats: int) -> list[SyncTimes]:
    """Return the times of syncs, the first one, which warms up, left out."""
    found = []
    for number in range(repeats + 1):
        shake(model, number)
        found.append(await sync.sync_weights(model, first + number))
    return found[1:]


async def measure_all(
    url: str, folder: Path, model: Any, repeats: int
) -> dict[str, list[SyncTimes]]:
    """Return the times of both ways; the adapter's last, since it changes the model."""
    reload_sync = ReloadSync([url], "bench", folder=folder / "weights")
    found = {"reload": await measure(reload_sync, model, first=0, repeats=repeats)}
    adapted = add_adapters(model, TrainerConfig(lora_rank=16))
    lora_sync = LoraSync([url], "adapter", folder=folder / "adapters")
    found["lora r=16"] = await measure(lora_sync, adapted, first=1000, repeats=repeats)
    await reload_sync.aclose()
    await lora_sync.aclose()
    return found


async def measure_transfer(url: str, way: str, model: Any, repeats: int) -> list[SyncTimes]:
    """Return the times of a way from GPU to GPU."""
    from katgym_trainer.weight_sync.transfer_sync import TransferSync  # imports vLLM

    sync = TransferSync([url], "bench", backend=TransferBackend(way))
    try:
        return await measure(sync, model, first=0, repeats=repeats)
    finally:
        await sync.aclose()


def part_ms(times: SyncTimes, part: str) -> float:
    """Return one part of a sync in milliseconds."""
    if part == "stalled":
        return times.stalled_s * 1e3
    return float(asdict(times)[f"{part}_s"]) * 1e3


def main() -> None:
    """Start a server, sync, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--dtype", default="float32")
    ways = ("files", *(backend.value for backend in TransferBackend if backend))
    parser.add_argument("--way", default="files", choices=ways)
    parser.add_argument("--out", type=Path, help="CSV, replaced; none without it")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    ).eval()
    device = torch.device("cpu" if options.way == "files" else "cuda:0")
    model.to(device)
    parameters = sum(p.numel() for p in model.parameters())
    config = VllmServerConfig(
        model=str(options.model),
        served_name="bench",
        python=os.environ.get("KATGYM_VLLM_PYTHON", ""),
        dtype=options.dtype,
        max_model_len=512,
        has_lora=options.way == "files",
        max_lora_rank=16,
        has_rl_routes=True,
        weight_transfer=options.way if options.way != "files" else "",
        devices={"files": "", "ipc": "0"}.get(options.way, "1"),
        extra_args=("--enforce-eager", *["--gpu-memory-utilization=0.3"] * (options.way == "ipc")),
    )
    with VllmServer(config) as server, tempfile.TemporaryDirectory() as folder:
        if options.way == "files":
            found = asyncio.run(measure_all(server.url, Path(folder), model, options.repeats))
        else:
            measured = measure_transfer(server.url, options.way, model, options.repeats)
            found = {options.way: asyncio.run(measured)}
    shared = {
        "parameters": parameters,
        "device": device_name(device),
        "dtype": options.dtype,
    }
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for way, syncs in found.items():
            for part in PARTS:
                spread = quantiles([part_ms(times, part) for times in syncs])
                worst = max(times.difference for times in syncs)
                name = options.model.name
                row = {"model": name, "way": way, "part": part, **spread}
                table.write({**row, "difference": f"{worst:.1e}", "repeats": len(syncs)})
                print(f"{way:10} {part:8} {spread['p50_ms']:10} ms")


if __name__ == "__main__":
    main()
