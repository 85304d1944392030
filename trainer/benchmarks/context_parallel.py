"""What context parallel would send and hold: trees of 262,144 tokens cut into parts over 8 ranks.

    python trainer/benchmarks/context_parallel.py --out trainer/benchmarks/context_parallel.csv

Counts of a plan, of a model of 36 layers, 4,096 wide, with 8 key heads of 128 in bfloat16; nothing
is run. Ranks take parts, dearest first, to whoever has least. Not here: what is built
(`docs/guides/many-ranks.md`).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import Node, Tree
from steps import make_rows
from timing import Rows

from katgym_trainer import pack

NUM_RANKS, NUM_LAYERS, WIDTH = 8, 36, 4096
KV_BYTES = 2 * 8 * 128 * 2
"""Of a token's keys and values in a layer."""
COLUMNS = (
    "tree", "tokens", "parts", "pair_balance", "received_mib_layer", "own_kv_gib",
    "own_kv_gradient_gib", "own_inputs_gib", "alone_kv_gib", "alone_kv_gradient_gib",
)  # fmt: skip


def group(num: int, prompt: int, answer: int) -> Tree:
    """Return answers to one prompt."""
    root = Node(prompt)
    for _ in range(num):
        root.add(answer, num_rows=1)
    return Tree(root)


def plan(tree: Tree, max_part: int) -> dict[str, object]:
    """Return what a plan of parts on ranks costs the rank that has most of each."""
    (forest,) = pack(make_rows(tree, 1000), max_tokens=max_part, should_split=True)
    pairs = [float((part.position_ids + 1).sum()) for part in forest.parts]
    load, ranks = [0.0] * NUM_RANKS, [0] * len(pairs)
    for number in sorted(range(len(pairs)), key=lambda i: -pairs[i]):
        ranks[number] = min(range(NUM_RANKS), key=lambda rank: load[rank])
        load[ranks[number]] += pairs[number]
    received, own = [0] * NUM_RANKS, [0] * NUM_RANKS
    for rank in range(NUM_RANKS):
        mine = [p for p, owner in zip(forest.parts, ranks, strict=True) if owner == rank]
        above = {
            token
            for part in mine
            for token in zip(part.path_part.tolist(), part.path_token.tolist(), strict=True)
            if ranks[token[0]] != rank
        }
        received[rank], own[rank] = len(above), sum(len(part.input_ids) for part in mine)
    num = len(forest.input_ids)
    gib = NUM_LAYERS / 2**30
    return {
        "tokens": num,
        "parts": len(pairs),
        "pair_balance": f"{max(load) * NUM_RANKS / sum(load):.2f}",
        "received_mib_layer": f"{max(received) * KV_BYTES / 2**20:.0f}",
        "own_kv_gib": f"{max(own) * KV_BYTES * gib:.1f}",
        "own_kv_gradient_gib": f"{max(own) * 2 * KV_BYTES * gib:.1f}",  # float32
        "own_inputs_gib": f"{max(own) * 2 * WIDTH * gib:.1f}",
        "alone_kv_gib": f"{num * KV_BYTES * gib:.1f}",
        "alone_kv_gradient_gib": f"{num * 2 * KV_BYTES * gib:.1f}",
    }


def main() -> None:
    """Count, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shrink", type=int, default=1, help="divides all lengths (1)")
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    small = options.shrink
    trees = {
        "one chain": group(1, 2**17 // small, 2**17 // small),
        "8 answers of 24k to 64k": group(8, 2**16 // small, 24576 // small),
        "32 answers of 7k to 32k": group(32, 2**15 // small, 7168 // small),
    }
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, {})
        for name, tree in trees.items():
            for num_parts in (8, 16, 64):
                row = {"tree": name, **plan(tree, 2**18 // small // num_parts)}
                table.write(row)
                print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
