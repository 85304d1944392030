"""Pruned rows, against one trie worked out by hand and every closed choice of small ones.

At the end: compressed nodes of tries, against prefixes grouped by the rows through them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from counted_work import num_instructions
from hypothesis import assume, given
from hypothesis import strategies as st
from nodes_by_prefix import Node, Nodes, nodes_of

from katgym_trainer import Row
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.pruning.tree_pruning import Pruned, prune
from katgym_trainer.pruning.trie_nodes import TrieNodes, unique_tokens

NAN = float("nan")

# 1 2 3 4 (prompt) - 5 6 (A) - 7 8 (B)     row 0
#                \          \- 9 (C)       row 1
#                 10 11 12 (D)             row 2
ROWS = [
    Row([1, 2, 3, 4, 5, 6, 7, 8], [1, 0, 0, 0, 1, 1, 1, 1], advantages=1.0, group="g"),
    Row([1, 2, 3, 4, 5, 6, 9], [0, 0, 0, 0, 1, 1, 1], advantages=-2.0, group="g"),
    Row([1, 2, 3, 4, 10, 11, 12], [0, 0, 0, 0, 1, 1, 1], advantages=0.5, group="g"),
]
ENTROPIES = [
    [NAN, NAN, NAN, NAN, 0.2, 0.3, 0.6, 0.3],
    [9.0, 9.0, 9.0, 9.0, 0.4, 0.3, 0.9],
    [9.0, 9.0, 9.0, 9.0, 0.9, 0.0, 0.0],
]
# Scores: A 2/3 (0.3 + 0.3) = 0.4, of 2 tokens; B 1/3 0.9 = 0.3 of 2; C 0.3 of 1; D 0.3 of 3.
# C (0.3 a token) joins A, both (0.7 of 3) join the prompt (0.7 of 7), B (0.15) joins them (1 of 9),
# more than D (0.1) has: prompt, A, C, B, D.


def lengths(pruned: Pruned) -> dict[int, int]:
    return dict(zip(pruned.places.tolist(), map(len, pruned.rows), strict=True))


def test_the_best_nodes_stay_with_all_before_them(subtests: pytest.Subtests) -> None:
    for max_tokens, wanted in [
        (6, {0: 6, 1: 6}),  # A with the prompt; C would take 7
        (7, {0: 6, 1: 7}),
        (8, {0: 6, 1: 7}),
        (9, {0: 8, 1: 7}),
        (11, {0: 8, 1: 7}),  # D would take 12
        (12, {0: 8, 1: 7, 2: 7}),
        (10**9, {0: 8, 1: 7, 2: 7}),
    ]:
        with subtests.test(max_tokens=max_tokens):
            pruned = prune(ROWS, ENTROPIES, max_tokens=max_tokens)
            assert lengths(pruned) == wanted
            for place, row in zip(pruned.places, pruned.rows, strict=True):
                assert row.token_ids.tolist() == ROWS[place].token_ids[: len(row)].tolist()
                assert row.weight.tolist() == [1.0] * len(row)


def test_what_fits_less_is_passed_over() -> None:
    rows = [*ROWS, Row([2, 3], [0, 1], group="h")]
    # Of 2 tokens and score 0.01, worth least. Nothing else fits after A.
    entropies = [*ENTROPIES, [0.0, 0.01]]
    assert lengths(prune(rows, entropies, max_tokens=8)) == {0: 6, 1: 7}
    assert lengths(prune(rows, entropies, max_tokens=9)) == {0: 8, 1: 7}
    assert lengths(prune(rows, entropies, max_tokens=11)) == {0: 8, 1: 7, 3: 2}
    assert lengths(prune(rows, entropies, max_tokens=5)) == {3: 2}


def test_stats_count_what_is_left() -> None:
    stats = prune(ROWS, ENTROPIES, max_tokens=7).stats
    # Trained: 2 of 4, 3 of 3, 0 of 3. |A| H: 0.5 + 2 * 1.6 of 1.4 + 2 * 1.6 + 0.5 * 0.9.
    wanted = (7, 7 / 12, 5 / 10, 3.7 / 5.05)
    assert astuple(stats) == pytest.approx(wanted, rel=1e-12)
    assert astuple(prune(ROWS, ENTROPIES, max_tokens=12).stats) == (12, 1.0, 1.0, 1.0)
    certain = prune([Row([1, 2], [0, 1])], [[0.0, 0.0]], max_tokens=2).stats
    assert astuple(certain) == (2, 1.0, 1.0, 1.0)


def test_rows_are_cut_with_all_they_know_of_each_token() -> None:
    numbers = np.linspace(-0.8, -0.1, 8)
    row = ROWS[0].replace(
        advantages=numbers, weight=-numbers, policy_logprobs=numbers, proximal_logprobs=2 * numbers,
        ref_logprobs=3 * numbers, values=4 * numbers, returns=5 * numbers, extras=np.arange(8),
        rollout="r", context="c",
    )  # fmt: skip
    other = ROWS[1].replace(extras=np.arange(7), context="c")
    pruned = prune([row, other], ENTROPIES[:2], max_tokens=7)
    assert pruned.rows[1] is other
    found = pruned.rows[0]
    wanted = Row(
        [1, 2, 3, 4, 5, 6], [1, 0, 0, 0, 1, 1], numbers[:6], numbers[:6], -numbers[:6], "g",
        rollout="r", context="c", extras=range(6), proximal_logprobs=2 * numbers[:6],
        ref_logprobs=3 * numbers[:6], values=4 * numbers[:6], returns=5 * numbers[:6],
    )  # fmt: skip
    for name in Row.__slots__:
        left, right = getattr(found, name), getattr(wanted, name)
        assert type(left) is type(right) and np.array_equal(left, right), name


def keeping(rows: list[Row], kept: list[Any]) -> list[Row]:
    return [row.replace(is_kept=flags) for row, flags in zip(rows, kept, strict=True)]


def test_kept_tokens_stay_first() -> None:
    rows = keeping(ROWS, [None, None, [False] * 5 + [True, False]])
    pruned = prune(rows, ENTROPIES, max_tokens=7)  # D and the prompt: nothing else fits
    assert lengths(pruned) == {2: 7}
    assert pruned.rows[0].is_kept is not None and pruned.rows[0].is_kept.sum() == 1
    assert lengths(prune(rows, ENTROPIES, max_tokens=9)) == {0: 6, 1: 6, 2: 7}
    with pytest.raises(ValueError, match="what is_kept names takes 7 tokens with all before it"):
        prune(rows, ENTROPIES, max_tokens=6)
    prompt = keeping(ROWS, [np.arange(8) == 0, None, None])
    assert lengths(prune(prompt, ENTROPIES, max_tokens=7)) == {0: 6, 1: 7}


def test_what_teaches_nothing_goes_whatever_the_budget() -> None:
    rows = [
        Row([1, 2, 3, 4], [0, 1, 0, 0]),  # 3 4 after the last trained token
        Row([1, 2, 5], [0, 1, 0]),
        Row([1, 6], [1, 0]),  # trains nothing
    ]
    entropies = [[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0]]
    for options in ({}, {"mode": "sample", "seed": 0}):
        pruned = prune(rows, entropies, max_tokens=100, **options)
        assert lengths(pruned) == {0: 2, 1: 2}
        assert pruned.stats.kept_tokens == 2 / 6
        assert pruned.stats.kept_trained == 1.0
        kept = keeping(rows, [None, [False, False, True], [False, True]])
        assert lengths(prune(kept, entropies, max_tokens=100, **options)) == {0: 2, 1: 3}


def test_reach_is_of_the_group() -> None:
    # Both forks hold 1 nat in a token; that of the group of one is reached for sure.
    rows = [
        Row([1, 2], [0, 1], group="two"),
        Row([1, 3], [0, 1], group="two"),
        Row([4, 5], [0, 1], group="one"),
    ]
    entropies = [[0.0, 1.0]] * 3
    assert lengths(prune(rows, entropies, max_tokens=2)) == {2: 2}
    alone = [row.replace(group=None) for row in rows]
    # 1/3 each: a prompt that two share pays: 2/3 of 3 tokens, before 1/3 of 2.
    assert lengths(prune(alone, entropies, max_tokens=3)) == {0: 2, 1: 2}


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Row], list[list[float]]]:
    """Draw rows over few tokens with whole numbers as entropies."""
    rows, entropies = [], []
    for _ in range(draw(st.integers(1, 5))):
        tokens = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        num = len(tokens)
        mask = draw(st.lists(st.booleans(), min_size=num, max_size=num))
        entropy = draw(st.lists(st.integers(0, 3), min_size=num, max_size=num))
        group = draw(st.sampled_from(["g", "h", None]))
        advantage = draw(st.integers(-2, 2))
        rows.append(Row(tokens, mask, advantages=float(advantage), group=group))
        entropies.append([float(number) for number in entropy])
    assume(any(row.num_trained for row in rows))
    return rows, entropies


def chosen_nodes(nodes: Nodes, pruned: Pruned) -> frozenset[Node]:
    """Return the nodes that pruned rows go through, each of them whole."""
    left = {tuple(row.token_ids[: t + 1].tolist()) for row in pruned.rows for t in range(len(row))}
    found = frozenset(n for n, prefixes in nodes.prefixes.items() if prefixes[0] in left)
    assert {prefix for node in found for prefix in nodes.prefixes[node]} == left
    return found


def hull(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the corners of the upper concave hull from (0, 0) up to the highest point."""
    found: list[tuple[int, float]] = [(0, 0.0)]
    for x, y in sorted(points):
        if y <= found[-1][1] + 1e-9:
            continue
        while len(found) > 1:
            (x1, y1), (x2, y2) = found[-2:]
            if (y2 - y1) * (x - x2) > (y - y2) * (x2 - x1) + 1e-9:
                break
            found.pop()
        found.append((x, y))
    return found[1:]


@given(batch=batches())
def test_no_choice_beats_the_best_where_the_last_one_ended(
    batch: tuple[list[Row], list[list[float]]],
) -> None:
    rows, entropies = batch
    nodes = nodes_of(rows, entropies)
    score = {chosen: sum(nodes.score[node] for node in chosen) for chosen in nodes.closed()}
    for size, wanted in hull([(nodes.size(chosen), score[chosen]) for chosen in score]):
        found = chosen_nodes(nodes, prune(rows, entropies, max_tokens=size))
        assert score[found] == pytest.approx(wanted, rel=1e-9)


@given(batch=batches(), max_tokens=st.integers(1, 20))
def test_any_budget_is_kept_and_filled(
    batch: tuple[list[Row], list[list[float]]], max_tokens: int
) -> None:
    rows, entropies = batch
    nodes = nodes_of(rows, entropies)
    worthy = [node for node in nodes.prefixes if nodes.num_trained[node]]
    cost = {n: nodes.size(frozenset([n, *nodes.ancestors(n)])) for n in worthy}
    if max_tokens < min(cost.values()):
        with pytest.raises(ValueError, match=f"the shortest has {min(cost.values())} tokens"):
            prune(rows, entropies, max_tokens=max_tokens)
        return
    pruned = prune(rows, entropies, max_tokens=max_tokens)
    chosen = chosen_nodes(nodes, pruned)
    assert pruned.stats.num_tokens == nodes.size(chosen) <= max_tokens
    for node in worthy:
        missing = frozenset([node, *nodes.ancestors(node)]) - chosen
        assert not missing or nodes.size(chosen | missing) > max_tokens
    for place, row in enumerate(rows):
        left = [n for n in chosen if place in n]
        is_trained = row.loss_mask[1 : nodes.size(frozenset(left))].any()
        assert (place in pruned.places) == is_trained


@given(batch=batches(), max_tokens=st.integers(1, 12))
def test_draws_have_the_chances_that_their_weights_say(
    batch: tuple[list[Row], list[list[float]]], max_tokens: int
) -> None:
    rows, entropies = batch
    nodes = nodes_of(rows, entropies)
    chances = nodes.chances(max_tokens)
    for seed in range(5):
        pruned = prune(rows, entropies, max_tokens=max_tokens, mode="sample", seed=seed)
        for row in pruned.rows:
            for t, weight in enumerate(row.weight):
                prefix = tuple(row.token_ids[: t + 1].tolist())
                (node,) = (n for n, prefixes in nodes.prefixes.items() if prefix in prefixes)
                assert weight == pytest.approx(1 / chances[node], rel=1e-9)
                assert chances[node] > 0


WEIGHTED = [
    ROWS[0].replace(weight=0.5),
    ROWS[1].replace(weight=np.linspace(0.1, 0.7, 7)),
    ROWS[2],
    Row([20, 21], [0, 1], advantages=3.0, group="h"),
]
WEIGHTED_ENTROPIES = [*ENTROPIES, [0.0, 0.05]]
BUDGET = 8


def weighted_sum(rows: list[Row], places: list[int]) -> float:
    """Return the weighted sum of some function of each trained token of each row."""
    return sum(
        float(row.weight[t]) * math.sin(1 + 7 * place + t) * float(row.advantages[t])
        for place, row in zip(places, rows, strict=True)
        for t in range(1, len(row))
        if row.loss_mask[t]
    )


@pytest.mark.slow
def test_the_expectation_of_sums_over_a_draw_is_the_whole_sum() -> None:
    nodes = nodes_of(WEIGHTED, WEIGHTED_ENTROPIES)
    chances = nodes.chances(BUDGET)
    assert len({*chances.values()} - {1.0}) > 2  # a draw that is none would prove nothing
    num = 3000
    counts: Counter[frozenset[Node]] = Counter()
    sums: dict[frozenset[Node], float] = {}
    for seed in range(num):
        pruned = prune(WEIGHTED, WEIGHTED_ENTROPIES, max_tokens=BUDGET, mode="sample", seed=seed)
        # Nodes without trained tokens that are left alone are in no row: told by those that are.
        chosen = chosen_nodes(nodes, pruned)
        counts[chosen] += 1
        sums[chosen] = weighted_sum(pruned.rows, pruned.places.tolist())
    chance: Counter[frozenset[Node]] = Counter()
    size = 0.0
    for drawn in nodes.closed():
        p = nodes.chance_of(drawn, chances)
        size += p * nodes.size(drawn)
        is_bare = {n for n in drawn if not any(nodes.num_trained[o] for o in drawn if o <= n)}
        chance[drawn - is_bare] += p
    assert sum(chance.values()) == pytest.approx(1, rel=1e-12)
    assert size == pytest.approx(BUDGET, rel=1e-9)
    assert set(counts) == {drawn for drawn, p in chance.items() if p > 0}
    for drawn, p in chance.items():
        assert abs(counts[drawn] - num * p) <= 4.5 * (num * p * (1 - p)) ** 0.5
    expected = sum(p * sums[drawn] for drawn, p in chance.items() if p > 0)
    assert expected == pytest.approx(weighted_sum(WEIGHTED, [0, 1, 2, 3]), rel=1e-9)


def test_a_budget_for_everything_draws_everything() -> None:
    pruned = prune(WEIGHTED, WEIGHTED_ENTROPIES, max_tokens=14, mode="sample", seed=0)
    assert lengths(pruned) == {0: 8, 1: 7, 2: 7, 3: 2}
    assert [r.weight.tolist() for r in pruned.rows] == [r.weight.tolist() for r in WEIGHTED]


def test_kept_tokens_are_in_every_draw_at_their_own_weight() -> None:
    rows = keeping(ROWS, [None, None, [False] * 5 + [True, False]])
    seen = set()
    for seed in range(50):
        pruned = prune(rows, ENTROPIES, max_tokens=9, mode="sample", seed=seed)
        seen.add(tuple(lengths(pruned).items()))
        assert pruned.rows[-1].token_ids.tolist() == ROWS[2].token_ids.tolist()
        assert pruned.rows[-1].weight.tolist() == [1.0] * 7
    # A is in as likely as C, which is worth more: with A, C always is.
    assert seen == {((2, 7),), ((0, 6), (1, 7), (2, 7)), ((0, 8), (1, 7), (2, 7))}
    with pytest.raises(ValueError, match="what is kept takes all of max_tokens=7: nothing is left"):
        prune(rows, ENTROPIES, max_tokens=7, mode="sample", seed=0)


def test_the_same_seed_draws_the_same() -> None:
    def draw(first: int) -> list[dict[int, int]]:
        seeds = range(first, first + 20)
        pruned = [prune(ROWS, ENTROPIES, max_tokens=5, mode="sample", seed=s) for s in seeds]
        return [lengths(each) for each in pruned]

    assert draw(0) == draw(0) != draw(20)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"mode": "sample", "seed": 1}])
def test_four_times_the_nodes_are_four_times_the_work(options) -> None:
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for number in range(1_800):
        parent = rows[rng.integers(number)].token_ids if number else np.zeros(9, np.int64)
        tail = rng.integers(0, 50_000, 5)
        tokens = np.concatenate([parent[: rng.integers(1, len(parent) + 1)], tail])
        rows.append(Row(tokens, np.arange(len(tokens)) % 3 > 0, group=number % 50))
    entropies = [rng.random(len(row)) for row in rows]
    nodes, work = [], []
    for num in (450, 1_800):
        trie = TokenTrie.build(rows[:num])
        max_tokens = trie.num_tokens // 3
        cut = functools.partial(
            prune, rows[:num], entropies[:num], max_tokens=max_tokens, **options
        )
        assert 0.9 < cut().stats.num_tokens / max_tokens < 1.1
        nodes.append(len(TrieNodes.build(trie).parent_K))
        work.append(num_instructions(cut))
    assert nodes[1] / nodes[0] == pytest.approx(4, abs=0.1)
    assert 3 < work[1] / work[0] < 5


def test_what_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    for options, words in [
        ({"mode": "worst"}, "unknown mode 'worst'; allowed: best, sample"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"max_tokens": 2.5}, r"max_tokens is an int >= 1, got 2\.5"),
        ({"seed": 3}, "seed is for mode 'sample' alone, got 3 for mode 'best'"),
        ({"mode": "sample"}, "mode 'sample' needs a seed, an int >= 0, got None"),
        ({"mode": "sample", "seed": -1}, "mode 'sample' needs a seed, an int >= 0, got -1"),
        ({"max_tokens": 5}, "max_tokens=5 holds no path to a trained token besides what is_kept"),
        ({"entropies": ENTROPIES[:2]}, "entropies of 2 rows, there are 3 rows"),
        ({"entropies": [*ENTROPIES[:2], [0.0] * 6]}, r"entropies\[2\] has shape \(6,\), its row"),
        ({"entropies": [*ENTROPIES[:2], [NAN] * 7]}, r"entropies\[2\]\[4\] is nan, allowed are"),
        ({"entropies": [*ENTROPIES[:2], [-1.0] * 7]}, r"entropies\[2\]\[4\] is -1\.0, allowed"),
        ({"rows": [], "entropies": []}, "there are no rows to prune"),
        ({"rows": [Row([1, 2], [1, 0])], "entropies": [[0, 0]]}, "no row trains a token: there"),
    ]:
        with subtests.test(options=options):
            arguments = {"rows": ROWS, "entropies": ENTROPIES, "max_tokens": 9, **options}
            with pytest.raises(ValueError, match=words):
                prune(arguments.pop("rows"), arguments.pop("entropies"), **arguments)


def build(*token_lists: list[int]) -> tuple[TokenTrie, TrieNodes]:
    trie = TokenTrie.build([Row(tokens, [0] * len(tokens)) for tokens in token_lists])
    return trie, TrieNodes.build(trie)


def test_one_small_trie_field_by_field() -> None:
    _, nodes = build([7, 8, 9], [7, 8, 5, 6], [7, 8], [4], [7, 8, 5, 6])
    # In order: 4; 7 8; 7 8 5 6 twice; 7 8 9.
    assert nodes.start_K.tolist() == [0, 0, 2, 2]
    assert nodes.end_K.tolist() == [1, 2, 4, 3]
    assert nodes.parent_K.tolist() == [-1, -1, 1, 1]
    assert nodes.node_R.tolist() == [0, 1, 2, 2, 3]
    assert nodes.length_K.tolist() == [1, 2, 2, 1]
    # Tokens 4 | 7 8 | 5 6 | 9.
    assert nodes.sums(np.array([1.0, 2, 3, 4, 5, 6])).tolist() == [1, 5, 9, 6]
    assert nodes.upward(np.array([1.0, 5, 9, 6]), operator.add).tolist() == [1, 20, 9, 6]
    assert nodes.upward(np.array([1.0, 5, 9, 6]), max).tolist() == [1, 9, 9, 6]


def test_a_node_is_split_above_and_below() -> None:
    # Node 1..5 of the first row is split at 4, then its upper part at 2.
    _, nodes = build([1, 1, 1, 1, 1], [1, 1, 1, 1, 2], [1, 1, 2], [2])
    assert nodes.start_K.tolist() == [0, 2, 4, 4, 2, 0]
    assert nodes.end_K.tolist() == [2, 4, 5, 5, 3, 1]
    assert nodes.parent_K.tolist() == [-1, 0, 1, 1, 0, -1]
    assert nodes.node_R.tolist() == [2, 3, 4, 5]


def test_a_single_token_and_rows_that_extend_each_other() -> None:
    _, one = build([3])
    assert (one.parent_K.tolist(), one.start_K.tolist(), one.end_K.tolist()) == ([-1], [0], [1])
    _, chain = build(*([0] * n for n in range(1, 64)))
    assert chain.parent_K.tolist() == list(range(-1, 62))
    assert chain.length_K.tolist() == [1] * 63
    assert chain.node_R.tolist() == list(range(63))


def test_rows_of_other_contexts_have_nodes_of_their_own() -> None:
    rows = [Row([1, 2], [0, 1], context=name) for name in ("a", "b", "a")]
    nodes = TrieNodes.build(TokenTrie.build(rows))
    assert nodes.parent_K.tolist() == [-1, -1] and nodes.node_R.tolist() == [0, 0, 1]


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(token_lists=st.lists(TOKENS, min_size=1, max_size=9))
def test_nodes_are_where_the_rows_through_a_prefix_change(token_lists: list[list[int]]) -> None:
    trie, nodes = build(*token_lists)
    through: list[set[int]] = [set() for _ in nodes.parent_K]
    for place, k in zip(trie.order_R.tolist(), nodes.node_R.tolist(), strict=True):
        while k >= 0:
            through[k].add(place)
            k = int(nodes.parent_K[k])
    wanted = nodes_of(trie.rows, [[0.0] * len(row) for row in trie.rows])
    found = {
        frozenset(rows): (start, end)
        for rows, start, end in zip(
            through, nodes.start_K.tolist(), nodes.end_K.tolist(), strict=True
        )
    }
    assert found == {
        node: (len(prefixes[0]) - 1, len(prefixes[-1]))
        for node, prefixes in wanted.prefixes.items()
    }
    for k, parent in enumerate(nodes.parent_K.tolist()):
        assert parent < k
        assert nodes.start_K[k] == (nodes.end_K[parent] if parent >= 0 else 0)


@given(token_lists=st.lists(TOKENS, min_size=1, max_size=9))
def test_rows_share_the_numbers_of_the_tokens_they_share(token_lists: list[list[int]]) -> None:
    trie, nodes = build(*token_lists)
    prefix_of: dict[int, tuple[int, ...]] = {}
    node_N = np.repeat(np.arange(len(nodes.parent_K)), nodes.length_K)
    for leaf, path in enumerate(unique_tokens(trie)):
        tokens = token_lists[trie.order_R[leaf]]
        for t, number in enumerate(path.tolist()):
            assert prefix_of.setdefault(number, tuple(tokens[: t + 1])) == tuple(tokens[: t + 1])
            assert nodes.start_K[node_N[number]] <= t < nodes.end_K[node_N[number]]
        assert node_N[path[-1]] == nodes.node_R[leaf]
    assert len(set(prefix_of.values())) == len(prefix_of) == trie.num_tokens
