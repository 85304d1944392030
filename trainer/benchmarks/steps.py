"""How fast a training step is on forests, beside every row by itself, family by family.

    python trainer/benchmarks/steps.py --shrink 16 --out trainer/benchmarks/steps_cpu.csv
    python trainer/benchmarks/steps.py --prefix         # 16 answers of 64 tokens to 1,024

Both give the gradient of the same loss, which is compared before anything is timed; they take
turns. `flat` is the model as transformers runs it, a row at a time, log-probs of trained tokens
alone; `forest` is `pack` and `forward_backward`. The ceiling is the ratio of the floating-point
operations that both must do. Not here: what the families are (`kernels/benchmarks/families.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES, Node, Tree
from timing import Rows, device_name, in_turns, quantiles

from katgym_trainer import PackedForest, Row, forward_backward, loss, pack

COLUMNS = ("family", "method", "rows", "num_flat", "num_tree", "por", "forests", "max_tokens",
           "p20_ms", "p50_ms", "p80_ms", "tokens_per_s", "speedup", "ceiling", "of_ceiling",
           "repeats")  # fmt: skip


def make_model(layers: int, width: int, vocabulary: int) -> Any:
    """Return a Qwen3-shaped model with random weights."""
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=width // 64, num_key_value_heads=width // 128,
        head_dim=64, max_position_embeddings=65_536, attn_implementation="sdpa",
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(config).train()


def make_rows(tree: Tree, vocabulary: int, *, seed: int = 0) -> list[Row]:
    """Return a tree's rows over random tokens; what each row adds last is trained."""
    rng = random.Random(seed)
    tokens = [rng.randrange(vocabulary) for _ in tree.end()]
    rows = []
    for runs in tree.rows():
        ids = [tokens[i] for start, stop in runs for i in range(start, stop)]
        num_last = runs[-1][1] - runs[-1][0]
        mask = [0] * (len(ids) - num_last) + [1] * num_last
        rows.append(Row(ids, mask, advantages=rng.gauss(0, 1)))
    return rows


def prefix_tree() -> Tree:
    """Return 16 answers of 64 tokens to a prompt of 1,024."""
    root = Node(1024)
    for _ in range(16):
        root.add(64, num_rows=1)
    return Tree(root)


def flat_step(model: Any, rows: list[Row]) -> None:
    """Add the gradient of the mean -log-prob, each row by itself."""
    num_trained = sum(row.num_trained for row in rows)
    for row in rows:
        ids = torch.from_numpy(row.token_ids.copy())
        at = torch.from_numpy(row.loss_mask.copy()).nonzero()[:, 0]
        at = at[at > 0]
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        logits = model.lm_head(hidden[at - 1]).float()
        logp = logits.log_softmax(-1).gather(1, ids[at][:, None])
        (-logp.sum() / num_trained).backward()


def operations(model: Any, num_tokens: int, num_pairs: int, num_edges: int) -> float:
    """Return the floating-point operations of forward and backward.

    6 for each weight a token goes through, 14 for each pair, head and element of a head (4 forward,
    10 backward), 6 for each weight of the head and each edge.
    """
    config = model.config
    body = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
    attention = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    head = config.vocab_size * config.hidden_size
    return 6.0 * body * num_tokens + 14.0 * attention * num_pairs + 6.0 * head * num_edges


def ceiling(model: Any, rows: list[Row], forests: list[PackedForest]) -> float:
    """Return the operations of all rows over those of the whole trie."""
    flat = operations(
        model, sum(map(len, rows)), sum(n * (n + 1) // 2 for n in map(len, rows)),
        sum(row.num_trained for row in rows),
    )  # fmt: skip
    (whole,) = pack(rows, max_tokens=sum(map(len, rows)))
    stats = whole.stats
    return flat / operations(model, stats.num_tree, stats.num_pairs, stats.num_edges)


def gradient(model: Any, step: Callable[[], object]) -> Tensor:
    """Return the gradient a step leaves, in one piece."""
    model.zero_grad()
    step()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def measure(
    name: str, model: Any, rows: list[Row], *, max_tokens: int, repeats: int
) -> list[dict[str, object]]:
    """Return a row of numbers for each method; raises if their gradients differ."""
    forests = pack(rows, max_tokens=max_tokens)

    def flat() -> None:
        model.zero_grad()
        flat_step(model, rows)

    def forest() -> None:
        model.zero_grad()
        forward_backward(model, pack(rows, max_tokens=max_tokens), loss("sft"))

    wanted, found = (gradient(model, step) for step in (flat, forest))
    error = float((found - wanted).norm() / wanted.norm())
    if not error < 1e-4:
        raise SystemExit(f"{name}: the gradients differ by {error:.1e}")
    times = in_turns(
        {"flat": flat, "forest": forest}, torch.device("cpu"), repeats=repeats, limit_s=600
    )
    best = ceiling(model, rows, forests)
    num_flat = sum(map(len, rows))
    shared = {
        "family": name, "rows": len(rows), "num_flat": num_flat,
        "num_tree": sum(f.stats.num_tree for f in forests), "forests": len(forests),
        "max_tokens": max_tokens, "ceiling": round(best, 2),
    }  # fmt: skip
    measured = []
    for method, values in times.items():
        speedup = statistics.median(times["flat"]) / statistics.median(values)
        measured.append(
            {
                **shared, "method": method, **quantiles(values),
                "por": round(1 - float(str(shared["num_tree"])) / num_flat, 3),
                "tokens_per_s": round(num_flat / statistics.median(values) * 1e3),
                "speedup": round(speedup, 2), "of_ceiling": round(speedup / best, 3),
                "repeats": len(values),
            }
        )  # fmt: skip
    return measured


def main() -> None:
    """Measure, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", action="store_true", help="the case of one prompt alone")
    parser.add_argument("--family", default="", help="those with this in their name alone")
    parser.add_argument("--shrink", type=int, default=16, help="divides all lengths (16)")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--width", type=int, default=512, help="of the model (512)")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--max-tokens", type=int, default=8192, help="of a forest (8192)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    model = make_model(options.layers, options.width, options.vocabulary)
    num = sum(p.numel() for p in model.parameters())
    chosen = [family for family in FAMILIES if options.family in family.name]
    if not chosen:
        parser.error(f"no family has {options.family!r} in its name")
    trees = {f.name: f.make(random.Random(0)).shrunk(options.shrink) for f in chosen}
    if options.prefix:
        trees = {"16 answers of 64 to 1,024": prefix_tree()}
    shared = {
        "parameters": num, "shrink": 1 if options.prefix else options.shrink,
        "device": device_name(torch.device("cpu")), "dtype": "float32",
    }  # fmt: skip
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, shared)
        for name, tree in trees.items():
            rows = make_rows(tree, options.vocabulary)
            for row in measure(
                name, model, rows, max_tokens=options.max_tokens, repeats=options.repeats
            ):
                table.write(row)
                print(
                    f"{name:44} {row['method']:7} {row['p50_ms']:9} ms {row['tokens_per_s']:7}"
                    f" tokens/s {row['speedup']:6}x of {row['ceiling']}x ({row['of_ceiling']:.0%})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
