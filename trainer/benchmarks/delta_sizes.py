"""Sizes and times of weight deltas after real steps of AdamW, by learning rate and dtype.

    python trainer/benchmarks/delta_sizes.py --model FOLDER --out delta_sizes_cpu.csv

The model trains in float32 on the text of a file; what is compared is what a sync writes of it, in
bfloat16 or float32, one step apart. Every delta is applied, and the file has to come out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from timing import Rows, device_name

from katgym.vllm_server.weight_delta import apply_delta, write_delta

COLUMNS = (
    "model", "weights", "learning_rate", "step", "changed_share", "file_mb", "delta_mb",
    "share_of_file", "write_s", "apply_s",
)  # fmt: skip
NUM_TOKENS = 128


def train(model: Any, ids_1T: torch.Tensor, lr: float, num_steps: int) -> Iterator[int]:
    """Yield before the first step and after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    yield 0
    for step in range(1, num_steps + 1):
        place = step % (ids_1T.shape[1] // NUM_TOKENS)
        part_1T = ids_1T[:, place * NUM_TOKENS : (place + 1) * NUM_TOKENS]
        optimizer.zero_grad()
        model(input_ids=part_1T, labels=part_1T).loss.backward()
        optimizer.step()
        yield step


def changed_share(before: Path, after: Path) -> float:
    """Return the share of a file's numbers that are others."""
    old, new = load_file(before), load_file(after)
    num_changed = sum(int((old[name] != new[name]).sum()) for name in new)
    return num_changed / sum(tensor.numel() for tensor in new.values())


def measure(folder: Path, before: Path, after: Path) -> dict[str, float]:
    """Return the size of a delta and the times of making and applying it."""
    start = time.perf_counter()
    write_delta(before, after, folder / "delta")
    written = time.perf_counter()
    apply_delta(before, folder / "delta", folder / "made")
    applied = time.perf_counter()
    assert (folder / "made").read_bytes() == after.read_bytes()
    sizes = [(folder / name).stat().st_size / 1e6 for name in ("made", "delta")]
    return {
        "file_mb": round(sizes[0], 3),
        "delta_mb": round(sizes[1], 3),
        "share_of_file": round(sizes[1] / sizes[0], 5),
        "write_s": round(written - start, 3),
        "apply_s": round(applied - written, 3),
    }


def main() -> None:
    """Train, measure, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what it trains on")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="CSV, replaced")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ids_1T = torch.tensor([tokenizer.encode(options.text.read_text(encoding="utf-8"))])
    with (
        tempfile.TemporaryDirectory() as name,
        options.out.open("w", encoding="utf-8", newline="") as file,
    ):
        folder = Path(name)
        table = Rows(file, COLUMNS, {"device": device_name(torch.device("cpu"))})
        for lr in (1e-6, 1e-5, 1e-4):
            model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
            for step in train(model, ids_1T, lr, options.steps):
                for dtype in (torch.bfloat16, torch.float32):
                    kind = str(dtype).removeprefix("torch.")
                    before, after = folder / f"before-{kind}", folder / f"after-{kind}"
                    named = {n: p.detach().to(dtype).clone() for n, p in model.named_parameters()}
                    if after.exists():
                        after.replace(before)
                    save_file(named, after)
                    if step == options.steps and before.exists():
                        changed = changed_share(before, after)
                        row = {"model": options.model.name, "weights": kind, "learning_rate": lr}
                        row |= {"step": step, "changed_share": round(changed, 5)}
                        table.write({**row, **measure(folder, before, after)})
                        print(row, flush=True)
            for old in folder.iterdir():
                old.unlink()


if __name__ == "__main__":
    main()
