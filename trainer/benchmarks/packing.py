"""How many tokens packing leaves, beside simpler ways of filling forests, and how long it takes.

    python trainer/benchmarks/packing.py --out trainer/benchmarks/packing.csv

`pack` is ours; `first fit` puts each row, in the order of its rollout, into the first forest with
room, shared prefixes counted once; `shuffled` does so in random order; `flat` shares nothing.
Several trees of a family make a batch. Not here: what the families are
(`kernels/benchmarks/families.py`).
"""

from __future__ import annotations

import argparse
import bisect
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from steps import make_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from families import FAMILIES
from timing import Rows

from katgym_trainer import Row, pack
from katgym_trainer.packing.token_trie import TokenTrie

COLUMNS = ("family", "trees", "rows", "max_tokens", "num_flat", "num_unique", "pack", "first_fit",
           "shuffled", "forests", "forests_first_fit", "trie_ms", "pack_ms")  # fmt: skip


class Bins:
    """Forests being filled one row after another."""

    def __init__(self, trie: TokenTrie, max_tokens: int) -> None:
        self._trie = trie
        self._max_tokens = max_tokens
        self._leaves: list[list[int]] = []
        self.sizes: list[int] = []

    def add(self, leaf: int) -> None:
        """Put a leaf into the first forest with room."""
        length = int(self._trie.length_R[leaf])
        for number, leaves in enumerate(self._leaves):
            new = length - self._shared(leaf, leaves)
            if self.sizes[number] + new <= self._max_tokens:
                bisect.insort(leaves, leaf)
                self.sizes[number] += new
                return
        self._leaves.append([leaf])
        self.sizes.append(length)

    def _shared(self, leaf: int, leaves: list[int]) -> int:
        """Return the longest prefix a leaf shares with others, which its neighbours have."""
        lcp = self._trie.lcp_R
        place = bisect.bisect(leaves, leaf)
        found = 0
        if place > 0:
            found = int(lcp[leaves[place - 1] + 1 : leaf + 1].min())
        if place < len(leaves):
            found = max(found, int(lcp[leaf + 1 : leaves[place] + 1].min()))
        return found


def first_fit(trie: TokenTrie, places: list[int], max_tokens: int) -> Bins:
    """Return forests filled with rows in an order of their places."""
    leaf_of = np.empty(len(places), dtype=np.int64)
    leaf_of[trie.order_R] = np.arange(len(places))
    bins = Bins(trie, max_tokens)
    for place in places:
        bins.add(int(leaf_of[place]))
    return bins


def main() -> None:
    """Pack, write the CSV, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", type=int, default=4, help="of a family in one batch (4)")
    parser.add_argument("--max-tokens", type=int, default=65_536, help="of a forest (65536)")
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = parser.parse_args()
    with (options.out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, {})
        for family in FAMILIES:
            rng = random.Random(0)
            rows: list[Row] = []
            for number in range(options.trees):
                rows += make_rows(family.make(rng), 50_000, seed=number)
            budget = max(options.max_tokens, max(map(len, rows)))
            trie_ms = _median_ms(TokenTrie.build, rows)
            pack_ms = _median_ms(partial(pack, max_tokens=budget), rows)
            trie = TokenTrie.build(rows)
            forests = pack(rows, max_tokens=budget)
            places = list(range(len(rows)))
            grouped = first_fit(trie, places, budget)
            shuffled = first_fit(trie, rng.sample(places, len(places)), budget)
            packed = sum(f.stats.num_tree for f in forests)
            table.write(
                {
                    "family": family.name, "trees": options.trees, "rows": len(rows),
                    "max_tokens": budget, "num_flat": trie.num_flat, "num_unique": trie.num_tokens,
                    "pack": packed, "first_fit": sum(grouped.sizes),
                    "shuffled": sum(shuffled.sizes), "forests": len(forests),
                    "forests_first_fit": len(grouped.sizes), "trie_ms": round(trie_ms, 1),
                    "pack_ms": round(pack_ms, 1),
                }
            )  # fmt: skip
            unique = trie.num_tokens
            print(
                f"{family.name:44} flat {trie.num_flat / unique:5.2f}x, shuffled"
                f" {sum(shuffled.sizes) / unique:5.2f}x, first fit"
                f" {sum(grouped.sizes) / unique:5.3f}x ({len(grouped.sizes)}), pack"
                f" {packed / unique:5.3f}x ({len(forests)}); trie {trie_ms:5.0f} ms,"
                f" pack {pack_ms:5.0f} ms",
                flush=True,
            )


def _median_ms(work: Callable[[list[Row]], object], rows: list[Row]) -> float:
    found = []
    for _ in range(3):
        started = time.perf_counter()
        work(rows)
        found.append((time.perf_counter() - started) * 1e3)
    return statistics.median(found)


if __name__ == "__main__":
    main()
