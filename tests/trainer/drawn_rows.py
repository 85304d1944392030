"""Rows drawn by hypothesis, what they hold together, and the paths of forests, counted slowly.

Not here: what a trie makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from katgym_trainer import ForestStats, PackedForest, Row


@st.composite
def row_lists(draw: st.DrawFn, max_rows: int = 8, *, is_plain: bool = True) -> list[Row]:
    """Draw rows over few tokens, so that many prefixes are shared; plain: all of one context.

    Log-probs and advantages are each row's own.
    """
    rows = []
    for number in range(draw(st.integers(1, max_rows))):
        tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        mask = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        names = st.sampled_from([None, "one", "two"])
        rollout, group = draw(names), draw(names)
        context = None if is_plain else draw(names)
        logprobs = [-0.01 * (number + 1) * t for t in range(len(tokens))]
        row = Row(tokens, mask, logprobs, advantages=number + 0.5, weight=1 + number)
        rows.append(row.replace(rollout=rollout, group=group, context=context))
    return rows


def prefixes(row: Row) -> list[tuple[object, ...]]:
    """Return what each token of a row is the end of."""
    return [(row.context, *row.token_ids[: t + 1].tolist()) for t in range(len(row))]


def counted(rows: Sequence[Row]) -> ForestStats:
    """Return what a forest of some rows holds, from sets of prefixes."""
    unique = {prefix for row in rows for prefix in prefixes(row)}
    trained = [
        prefix
        for row in rows
        for t, prefix in enumerate(prefixes(row))
        if t > 0 and row.loss_mask[t]
    ]
    return ForestStats(
        num_rows=len(rows),
        num_flat=sum(map(len, rows)),
        num_tree=len(unique),
        num_pairs=sum(len(prefix) - 1 for prefix in unique),
        num_trained=len(trained),
        num_edges=len(set(trained)),
    )


def paths(forest: PackedForest) -> list[list[int]]:
    """Return each packed token's ancestors and itself, by the rule of visibility alone."""
    end = forest.end.tolist()
    return [[j for j in range(i + 1) if i < end[j]] for i in range(len(end))]
