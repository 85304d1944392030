"""What optimizers keep for a parameter, measured, and which models fit a GPU by that, computed.

    python trainer/benchmarks/memory.py --measured optimizer_memory.csv --computed model_memory.csv

Measured is what a trainer on the CPU holds after its second backward: weights, masters, gradients,
moments. Computed, not run on a GPU, is what a forest of N tokens needs at the most:

    B P + max(N a + 0.5 GiB, T) + 2 GiB,  a = 2 L D + 2 (8 D + 4 H h + 4 K h + 6 I)

B: the bytes measured; P: parameters; a: of each token the inputs of L layers of width D, kept for
activation checkpointing, and what one layer computed again needs, an estimate (H heads of queries
and K of keys, each h wide, MLPs of I). With should_offload_activations 4 D takes the place of
2 L D. 0.5 GiB are blocks of logits; T is float32 copies of the largest tensor while it is changed;
2 GiB are for CUDA. GB are 10^9 bytes. 8-bit AdamW needs torchao, and is left out without it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from katgym_trainer import Row, Trainer, forward_backward, loss, pack

KINDS: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16 stochastic": {"dtype": "bfloat16", "rounding": "stochastic"},
}
OPTIMIZERS = ("adamw", "muon", "adamw_8bit")
SHAPES: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    # L, D, H, K, h, I, tied
    "Qwen3-0.6B": (28, 1024, 16, 8, 128, 3072, True),
    "Llama-3.2-1B": (16, 2048, 32, 8, 64, 8192, True),
    "Qwen3-1.7B": (28, 2048, 16, 8, 128, 6144, True),
    "Llama-3.2-3B": (28, 3072, 24, 8, 128, 8192, True),
    "Qwen3-4B": (36, 2560, 32, 8, 128, 9728, True),
    "Llama-3.1-8B": (32, 4096, 32, 8, 128, 14336, False),
    "Qwen3-8B": (36, 4096, 32, 8, 128, 12288, False),
    "Qwen3-14B": (40, 5120, 40, 8, 128, 17408, False),
    "Qwen3-32B": (64, 5120, 64, 8, 128, 25600, False),
}
VOCABULARIES = {"Qwen3": 151_936, "Llama": 128_256}
GPUS_GB = (80, 141)
CUDA, LOGITS = 2 * 2**30, 2**29


def main() -> None:
    """Measure, compute, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=768, help="of the model measured (768)")
    parser.add_argument("--layers", type=int, default=6, help="of it (6)")
    parser.add_argument("--vocabulary", type=int, default=16384, help="of it (16384)")
    parser.add_argument("--measured", type=Path, required=True, help="the CSV of bytes")
    parser.add_argument("--computed", type=Path, required=True, help="the CSV of models")
    options = parser.parse_args()
    measured = []
    for name in OPTIMIZERS:
        for kind, more in KINDS.items():
            if name != "adamw_8bit" or find_spec("torchao"):
                model = make_model("Qwen3", options.vocabulary, options.layers, options.width)
                found = measure(model, {"optimizer": name, **more})
                measured.append({"optimizer": name, "kind": kind, **found})
                print(measured[-1], flush=True)
    write(options.measured, measured)
    write(options.computed, list(compute_all(measured)))


def make_model(
    family: str,
    vocabulary: int,
    num_layers: int,
    width: int,
    num_heads: int = 12,
    num_key_heads: int = 12,
    head_size: int = 64,
    mlp_width: int = 2304,
    is_tied: bool = True,
) -> Any:
    """Return a model of random weights, or of none on device "meta"."""
    config, make = {
        "Qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "Llama": (LlamaConfig, LlamaForCausalLM),
    }[family]
    sizes = {"num_hidden_layers": num_layers, "hidden_size": width, "vocab_size": vocabulary,
             "num_attention_heads": num_heads, "num_key_value_heads": num_key_heads,
             "head_dim": head_size, "intermediate_size": mlp_width}  # fmt: skip
    return make(config(**sizes, tie_word_embeddings=is_tied))


def measure(model: torch.nn.Module, settings: Mapping[str, str]) -> dict[str, float]:
    """Return what a trainer holds, in bytes a parameter."""
    num = sum(parameter.numel() for parameter in model.parameters())
    trainer = Trainer(model, "sft", args=dict(settings))
    rows = [Row([1, 2, 3], [0, 1, 1])]
    trainer.step_rows(rows)  # makes the moments
    forward_backward(model, pack(rows, max_tokens=8), loss("sft"))
    weights, masters = list(model.parameters()), [m for _, m in trainer._masters.named()]
    gradients = [each.grad for each in (*weights, *masters) if each.grad is not None]
    states = [part.state[p] for part in trainer._optimizer.parts for p in part.state]
    moments = [value for state in states for value in state.values()]
    trainer.close()
    sizes = {
        "weights": num_bytes(weights),
        "masters": num_bytes([*weights, *masters]) - num_bytes(weights),
        "gradients": num_bytes(gradients),
        "moments": num_bytes(moments),
    }
    found = {name: round(size / num, 2) for name, size in sizes.items()}
    return {**found, "sum": round(sum(sizes.values()) / num, 2), "parameters": num}


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory that tensors lie in; of 8-bit ones that of what they are made of."""
    plain: list[Tensor] = []
    for tensor in tensors:
        names = getattr(tensor, "tensor_attrs", None)
        plain += [tensor] if names is None else [getattr(tensor, name) for name in names]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in plain}
    return sum(storages.values())


def compute_all(measured: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, for models, settings and GPUs, the longest forest there is room for.

    Muon is left out: what it keeps depends on how much of a model is vocabulary.
    """
    chosen = [
        row for row in measured if row["optimizer"] != "muon" and row["kind"].startswith("bfloat16")
    ]
    for name, shape in SHAPES.items():
        family = name.partition("-")[0]
        with torch.device("meta"):
            model = make_model(family, VOCABULARIES[family], *shape)
        num = sum(parameter.numel() for parameter in model.parameters())
        for row in chosen:
            for gpu_gb in GPUS_GB:
                yield {"model": name, "parameters": num, **compute(name, num, row, gpu_gb)}


def compute(name: str, num: int, row: Mapping[str, Any], gpu_gb: int) -> dict[str, Any]:
    """Return the longest forest that a model's training by a measured setting has room for."""
    held = float(row["sum"]) * num
    num_copies = (row["kind"] != "bfloat16") + (row["optimizer"] == "adamw_8bit")
    changed = 4 * num_copies * VOCABULARIES[name.partition("-")[0]] * SHAPES[name][1]
    left = gpu_gb * 1e9 - CUDA - held
    longest = {}
    for column, is_offloaded in (("max_tokens", False), ("max_tokens_offloaded", True)):
        num_tokens = int((left - LOGITS) // token_bytes(SHAPES[name], is_offloaded))
        longest[column] = max(0, num_tokens) if left >= changed else 0
    return {
        "optimizer": row["optimizer"], "kind": row["kind"], "bytes": row["sum"],
        "gpu_gb": gpu_gb, "held_gb": round(held / 1e9, 1), **longest,
    }  # fmt: skip


def token_bytes(shape: tuple[int, ...], is_offloaded: bool) -> int:
    """Return the module's a: what activations of a token of a forest take."""
    layers, width, heads, key_heads, size, mlp, _ = shape
    kept = 4 * width if is_offloaded else 2 * layers * width
    return kept + 2 * (8 * width + 4 * heads * size + 4 * key_heads * size + 6 * mlp)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
