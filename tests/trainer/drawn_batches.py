"""Rows drawn by hypothesis with log-probs and advantages of their own, and the paths of forests.

Not here: rows of several contexts (`drawn_rows.py`).
"""

from __future__ import annotations

from hypothesis import strategies as st

from katgym_trainer import PackedForest, Row


@st.composite
def row_lists(draw: st.DrawFn, max_rows: int = 8) -> list[Row]:
    """Draw rows over few tokens, so that many prefixes are shared."""
    rows = []
    for number in range(draw(st.integers(1, max_rows))):
        tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        mask = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        logprobs = [-0.01 * (number + 1) * t for t in range(len(tokens))]
        rows.append(Row(tokens, mask, logprobs, advantages=number + 0.5, weight=1 + number))
    return rows


def paths(forest: PackedForest) -> list[list[int]]:
    """Return each packed token's ancestors and itself, by the rule of visibility alone."""
    end = forest.end.tolist()
    return [[j for j in range(i + 1) if i < end[j]] for i in range(len(end))]
