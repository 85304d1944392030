"""How evenly a step's rows are shared out to ranks, and what preparing them takes a rank.

    python trainer/benchmarks/rank_shares.py --out rank_shares.csv

One process does what each rank would: nothing is sent, no model is there. Costs are those of the
shape of Qwen3-8B, so that balance is of operations, not of seconds on a GPU.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES
from steps import make_rows

from katgym_trainer import Row, pack
from katgym_trainer.losses.objective import Normaliser
from katgym_trainer.losses.scope import Scope
from katgym_trainer.minibatches import busy_places, is_trained, share, split_groups
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.ranks.shares import share_places

QWEN3_8B = CostModel.of_shape(
    num_parameters=6_950_000_000, num_layers=36, num_heads=32, head_size=128, flops_per_s=4e14,
    num_head_parameters=620_000_000,
)  # fmt: skip
MAX_TOKENS = 32_768
FIELDS = ("rows", "num_rows", "num_ranks", "balance", "share_s", "split_s", "pack_s", "prepare_s")


def grouped_rows(num_rollouts: int, *, group_size: int = 16) -> list[Row]:
    """Return rollouts of a prompt of 256 tokens and answers of about 768, groups side by side."""
    rng = random.Random(0)
    found = []
    for number in range(num_rollouts):
        if number % group_size == 0:
            prompt = [rng.randrange(150_000) for _ in range(256)]
        num = max(16, int(rng.lognormvariate(6.5, 0.5)))
        ids = prompt + random.Random(number).choices(range(150_000), k=num)
        group, mask = number // group_size, [0] * 256 + [1] * num
        found.append(Row(ids, mask, advantages=1.0, group=group, rollout=number))
    return found


def measure(
    name: str, rows: list[Row], num_ranks: int, *, should_pack_all: bool
) -> dict[str, object]:
    """Return the row of one step; CPU seconds are of the rank that takes longest."""
    began = time.process_time()
    (busy,) = split_groups(rows, 1, rng=None)  # type: ignore[arg-type]  # one part draws nothing
    busy = [busy[place] for place in busy_places(busy)]
    assert is_trained(busy) and share(busy, rows, Normaliser.TOKENS) > 0
    split_s = time.process_time() - began
    began = time.process_time()
    places = share_places(busy, num_ranks, cost=QWEN3_8B)
    share_s = time.process_time() - began
    costs, pack_s = [], 0.0
    for mine in places if should_pack_all else places[:1]:
        began = time.process_time()
        forests = (
            pack([busy[place] for place in mine], max_tokens=MAX_TOKENS, should_split=True)
            if mine
            else []
        )
        if forests:
            Scope.of(forests)
        pack_s = max(pack_s, time.process_time() - began)
        costs.append(sum(QWEN3_8B.of(forest.stats) for forest in forests))
    balance = max(costs) * num_ranks / sum(costs) if should_pack_all else float("nan")
    seconds = (share_s, split_s, pack_s, split_s + share_s + pack_s)
    numbers = (f"{balance:.3f}", *(f"{each:.2f}" for each in seconds))
    return dict(zip(FIELDS, (name, len(rows), num_ranks, *numbers), strict=True))


def steps(num_rollouts: int) -> Iterator[dict[str, object]]:
    """Yield all rows of the table."""
    for family in FAMILIES:
        rows = make_rows(family.make(random.Random(0)), 150_000)
        for num_ranks in (2, 4, 16):
            if len(rows) >= 4 * num_ranks:
                yield measure(family.name, rows, num_ranks, should_pack_all=True)
    rows = grouped_rows(num_rollouts)
    yield measure(f"{num_rollouts} rollouts of about 1k", rows, 16, should_pack_all=True)


def main() -> None:
    """Print the table and write it."""
    torch.set_num_threads(1)  # CPU seconds are then seconds
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("rank_shares.csv"))
    parser.add_argument("--num-rollouts", type=int, default=65_536)
    args = parser.parse_args()
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in steps(args.num_rollouts):
            writer.writerow(row)
            print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
