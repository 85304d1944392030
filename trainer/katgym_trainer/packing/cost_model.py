"""Time of a forest's forward and backward, predicted from its counts.

    cost = CostModel.of_shape(
        num_parameters=7_000_000_000, num_layers=36, num_heads=32, head_size=128, flops_per_s=4e14
    )
    cost.of(forest.stats)  # seconds

Not here: what is balanced by it (`ranks.py`), how forests are timed (`../benchmarks/costs.py`).

Letters: F measured forests, C costs, R runs of leaves.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from katgym_trainer.config.rules import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    check_fields,
    check_value,
)
from katgym_trainer.packing.packed_forest import ForestStats
from katgym_trainer.row import Floats, Ints

_NAMES = ("forest_s", "token_s", "pair_s", "edge_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds, each at least 0, not all 0.

        forest_s + token_s num_tree + pair_s num_pairs + edge_s num_edges

    Example:
        CostModel(forest_s=0.004, token_s=1.2e-4, pair_s=5e-9, edge_s=2e-5)
    """

    forest_s: NotNegative
    """For each forest, whatever it holds."""
    token_s: NotNegative
    """For each packed token."""
    pair_s: NotNegative
    """For each visible (query, key) pair."""
    edge_s: NotNegative
    """For each unique trained token."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not any(getattr(self, name) for name in _NAMES):
            raise ValueError("all costs are 0, which tells no forests apart; one is above 0")

    @classmethod
    def of_shape(
        cls,
        *,
        num_parameters: int,
        num_layers: int,
        num_heads: int,
        head_size: int,
        flops_per_s: float,
        num_head_parameters: int = 0,
    ) -> CostModel:
        """Return the costs by floating-point operations alone, for a machine not measured yet.

            token_s = 6 num_parameters / flops_per_s
            pair_s = 3.5 * 4 num_layers num_heads head_size / flops_per_s
            edge_s = 6 num_head_parameters / flops_per_s

        A weight takes 2 operations forward and 4 backward (arXiv 2001.08361, section 2.1); a pair
        takes two products of 2 head_size in each head, and 2.5 times that backward, which computes
        the scores again (arXiv 2307.08691, section 4.1).

        num_parameters: weights that every token goes through: without embeddings and head, of
            experts those that a token is sent to.
        num_heads: of queries.
        flops_per_s: that the machine reaches.
        num_head_parameters: of the matrix that gives logits, which trained tokens go through alone.
        """
        shape = {
            "num_parameters": num_parameters,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "head_size": head_size,
        }
        for name, value in shape.items():
            check_value(name, value, Count)
        check_value("num_head_parameters", num_head_parameters, CountOrZero)
        check_value("flops_per_s", flops_per_s, Positive)
        return cls(
            forest_s=0.0,
            token_s=6 * num_parameters / flops_per_s,
            pair_s=14 * num_layers * num_heads * head_size / flops_per_s,
            edge_s=6 * num_head_parameters / flops_per_s,
        )

    @classmethod
    def fit(cls, measured: Sequence[tuple[ForestStats, float]]) -> CostModel:
        """Return the costs with the least sum of squared relative errors, none below 0.

            sum over forests of (cost.of(stats) / seconds - 1) ** 2

        measured: counts of forests and the seconds that they took.

        Raises `ValueError` for seconds that are no positive numbers, and for forests that do not
        tell the costs apart: fewer than 4, or always in the same proportion.
        """
        for number, (_, seconds) in enumerate(measured):
            if not 0 < seconds < math.inf:
                raise ValueError(
                    f"forest {number} took {seconds!r} s; allowed is finite and above 0"
                )
        # Columns of one length: a token's seconds and a pair's are thousands apart.
        counts = [(1, s.num_tree, s.num_pairs, s.num_edges) for s, _ in measured]
        terms_FC = np.array(counts, dtype=np.float64).reshape(-1, len(_NAMES))
        relative_FC = terms_FC / np.array([s for _, s in measured], dtype=np.float64)[:, None]
        length_C = np.linalg.norm(relative_FC, axis=0)
        scaled_FC = relative_FC / np.where(length_C > 0, length_C, 1)
        rank = int(np.linalg.matrix_rank(scaled_FC)) if len(measured) else 0
        if rank < len(_NAMES):
            raise ValueError(
                f"{len(measured)} forests tell {rank} of the costs {', '.join(_NAMES)} apart:"
                " measure forests whose tokens, pairs and edges are in other proportions"
            )
        costs_C = _non_negative(scaled_FC) / length_C
        return cls(**dict(zip(_NAMES, costs_C.tolist(), strict=True)))

    def of(self, stats: ForestStats) -> float:
        """Return the seconds of one forest."""
        return (
            self.forest_s
            + self.token_s * stats.num_tree
            + self.pair_s * stats.num_pairs
            + self.edge_s * stats.num_edges
        )

    def of_counts(self, tokens_R: Ints, pairs_R: Ints, edges_R: Ints) -> Floats:
        """Return the seconds of many forests, which do not fall where no count does."""
        seconds: Floats = (
            self.forest_s + self.token_s * tokens_R + self.pair_s * pairs_R + self.edge_s * edges_R
        )
        return seconds

    def save(self, path: str | Path) -> None:
        """Write the costs as JSON, over what is there."""
        text = json.dumps(dataclasses.asdict(self), indent=2)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Return costs that `save` wrote; `ValueError` names the file and what it lacks."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as e:
            raise ValueError(f"{str(path)!r} is not JSON: {e}") from e
        if not isinstance(found, dict) or found.keys() != set(_NAMES):
            got = sorted(found) if isinstance(found, dict) else found
            wanted = ", ".join(_NAMES)
            raise ValueError(f"{str(path)!r} is a JSON object of {wanted}, got {got!r}")
        try:
            return cls(**found)
        except ValueError as e:
            raise ValueError(f"{str(path)!r}: {e}") from e


def _non_negative(terms_FC: Floats) -> Floats:
    """Return x >= 0 with the least |terms x - 1|, for columns that are independent.

    The best x is the plain least squares of the columns where it is above 0; all subsets of them
    are tried.
    """
    num_rows, num_columns = terms_FC.shape
    ones_F = np.ones(num_rows)
    best_C, least = np.zeros(num_columns), math.inf
    for is_in in itertools.product([True, False], repeat=num_columns):
        columns = np.flatnonzero(is_in)
        found_C = np.zeros(num_columns)
        found_C[columns] = np.linalg.lstsq(terms_FC[:, columns], ones_F, rcond=None)[0]
        error = float(np.linalg.norm(terms_FC @ found_C - ones_F))
        if (found_C >= 0).all() and error < least:
            best_C, least = found_C, error
    return best_C
