"""Rows packed into forests: every path is there once, within the budget, with few tokens.

Then what runs of leaves hold, beside sets of prefixes; then forests cut into parts.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from counted_work import num_instructions
from drawn_rows import counted, paths, row_lists
from hypothesis import given
from hypothesis import strategies as st

from katgym_kernels import TreePlan
from katgym_trainer import PackedForest, Row, pack
from katgym_trainer.gradients.split_backward import depth_first
from katgym_trainer.packing.quantity import Edges, Quantity, Run
from katgym_trainer.packing.token_trie import TokenTrie


def num_unique(rows: list[Row]) -> int:
    return len({tuple(row.token_ids[: t + 1]) for row in rows for t in range(len(row))})


def check_forest(rows: list[Row], forest: PackedForest) -> None:
    """Every trained token of every row is an occurrence whose path spells the row's prefix."""
    tokens = forest.input_ids.tolist()
    seen = paths(forest)
    assert forest.position_ids.tolist() == [len(path) - 1 for path in seen]
    TreePlan.build(forest.end, depth_N=forest.position_ids)  # raises for what is no forest
    found = []
    for m in range(len(forest.occ_edge)):
        row = rows[forest.rows[forest.occ_row[m]]]
        at = int(forest.occ_position[m])
        edge = forest.occ_edge[m]
        spelled = [tokens[j] for j in seen[int(forest.edge_pred[edge])]]
        assert [*spelled, int(forest.edge_target[edge])] == row.token_ids[: at + 1].tolist()
        assert forest.occ_policy_logprob[m] == row.policy_logprobs[at]
        assert forest.occ_advantage[m] == row.advantages[at]
        assert forest.occ_weight[m] == row.weight[at]
        found.append((int(forest.rows[forest.occ_row[m]]), at))
    wanted = [
        (int(place), t)
        for place in forest.rows
        for t in range(1, len(rows[place]))
        if rows[place].loss_mask[t]
    ]
    assert sorted(found) == sorted(wanted)
    edges = list(zip(forest.edge_pred.tolist(), forest.edge_target.tolist(), strict=True))
    assert len(set(edges)) == len(edges) == forest.stats.num_edges
    assert forest.stats == counted([rows[place] for place in forest.rows])
    assert forest.stats.num_tree == len(tokens) and forest.stats.num_pairs == sum(map(len, seen))
    assert forest.multiplicity.sum() == forest.stats.num_flat


@given(rows=row_lists(), budget=st.integers(8, 40))
def test_every_row_is_packed_once_and_its_prefixes_are_kept_once(
    rows: list[Row], budget: int
) -> None:
    forests = pack(rows, max_tokens=budget)
    assert sorted(int(place) for f in forests for place in f.rows) == list(range(len(rows)))
    for forest in forests:
        check_forest(rows, forest)
        assert forest.stats.num_tree <= budget


@given(rows=row_lists(), budget=st.integers(36, 60), trained=st.integers(8, 12))
def test_pairs_and_trained_tokens_are_bounded_too(
    rows: list[Row], budget: int, trained: int
) -> None:
    forests = pack(rows, max_tokens=10**6, max_pairs=budget, max_trained=trained)
    assert sorted(int(place) for f in forests for place in f.rows) == list(range(len(rows)))
    for forest in forests:
        check_forest(rows, forest)
        assert forest.stats.num_pairs <= budget and forest.stats.num_trained <= trained


def test_one_small_forest_field_by_field() -> None:
    rows = [
        Row([7, 8, 9], [0, 1, 1], [0, -0.1, -0.2], advantages=1.0),
        Row([7, 8, 5, 6], [0, 1, 0, 1], [0, -0.3, -0.4, -0.5], advantages=[0, 2, 0, 4], weight=0.5),
        Row([7, 8], [1, 0]),
    ]
    (forest,) = pack(rows, max_tokens=5)
    assert forest.input_ids.tolist() == [7, 8, 5, 6, 9]
    assert forest.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert forest.end.tolist() == [5, 5, 4, 4, 5]
    assert forest.multiplicity.tolist() == [3, 3, 1, 1, 1]
    assert forest.rows.tolist() == [2, 1, 0]
    assert forest.edge_pred.tolist() == [0, 2, 1]
    assert forest.edge_target.tolist() == [8, 6, 9]
    assert forest.occ_edge.tolist() == [0, 1, 0, 2]
    assert forest.occ_row.tolist() == [1, 1, 2, 2]
    assert forest.occ_position.tolist() == [1, 3, 1, 2]
    assert forest.occ_policy_logprob.tolist() == [-0.3, -0.5, -0.1, -0.2]
    assert forest.occ_advantage.tolist() == [2, 4, 1, 1]
    assert forest.occ_weight.tolist() == [0.5, 0.5, 1.0, 1.0]
    assert forest.row_group.tolist() == forest.row_rollout.tolist() == [2, 1, 0]
    assert (forest.stats.num_flat, forest.stats.num_tree) == (9, 5)
    assert forest.stats.por == 1 - 5 / 9


def test_what_changes_the_forward_is_not_shared() -> None:
    def count(*rows: Row) -> int:
        (forest,) = pack(rows, max_tokens=100)
        check = len(forest.input_ids)
        assert check == forest.stats.num_tree
        return check

    mask = [0, 1, 1]
    plain = Row([1, 2, 3], mask)
    assert count(plain, plain) == 3
    assert count(plain, Row([1, 2, 3], mask, context="adapter")) == 6
    assert count(plain, Row([1, 2, 3], mask, extras=[0, 0, 0])) == 3
    assert count(plain, Row([1, 2, 3], mask, extras=[0, -1, 0])) == 5
    rows = [Row([1, 2, t], mask, extras=[0, e, 0]) for t in (3, 4) for e in (-5, 0, 7)]
    assert count(*rows, Row([1, 2, 9], mask)) == 1 + 3 + 7


def test_cuts_lie_where_least_is_shared_and_small_forests_are_merged() -> None:
    one = [[1] * 6 + [10 + i] * 4 for i in range(3)]  # 18 tokens together
    two = [[2] * 6 + [10 + i] * 4 for i in range(3)]
    small = [[3, 4], [5, 6]]
    rows = [Row(tokens, [0] * (len(tokens) - 1) + [1]) for tokens in (*one, *two, *small)]
    random.Random(0).shuffle(rows)
    forests = pack(rows, max_tokens=22)
    assert sorted(f.stats.num_tree for f in forests) == [18, 22]
    assert sum(f.stats.num_tree for f in forests) == num_unique(rows)


def best_of_all(rows: list[Row], budget: int) -> int:
    """Return the fewest tokens of any way to cut the sorted rows into runs."""
    ordered = sorted(rows, key=lambda row: row.token_ids.tolist())
    num = len(ordered)
    best = [0] + [10**9] * num
    for last in range(num):
        for first in range(last + 1):
            held = num_unique(ordered[first : last + 1])
            if held <= budget:
                best[last + 1] = min(best[last + 1], best[first] + held)
    return best[num]


@given(rows=row_lists(), budget=st.integers(8, 20))
def test_no_other_cuts_leave_fewer_tokens(rows: list[Row], budget: int) -> None:
    packed = sum(f.stats.num_tree for f in pack(rows, max_tokens=budget))
    assert packed <= best_of_all(rows, budget)


def test_tokens_of_a_large_batch_are_not_sorted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 50_000, 16_000)
    rows = []
    for number in range(160):
        shared = 4_000 + 70 * number % 11_000
        tail = rng.integers(0, 50_000, 8_200 - shared % 4_000)
        rows.append(Row(np.concatenate([base[:shared], tail]), np.ones(shared + len(tail), bool)))
    assert sum(map(len, rows)) > 1_300_000
    trie = TokenTrie.build(rows)
    assert trie.num_tokens < trie.num_flat
    assert num_instructions(lambda: TokenTrie.build(rows)) < 400 * len(rows)


def test_a_budget_that_is_too_small_names_the_row(subtests: pytest.Subtests) -> None:
    rows = [Row([1, 2], [0, 1]), Row([1, 2, 3, 4, 5, 6], [1] * 6)]
    for options, words in [
        ({"max_tokens": 5}, "row 1 has 6 tokens by itself, the budget is 5: raise the budget"),
        ({"max_tokens": 9, "max_pairs": 20}, "row 1 has 21 pairs by itself, the budget is 20"),
        ({"max_tokens": 9, "max_trained": 2}, "row 1 has 5 trained tokens by itself"),
        ({"max_tokens": 0}, "max_tokens is an int >= 1, got 0"),
        ({"max_tokens": 9, "max_pairs": 1.5}, r"max_pairs is an int >= 1, or None, got 1\.5"),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=words):
            pack(rows, **options)
    with pytest.raises(ValueError, match="there are no rows to pack"):
        pack([], max_tokens=5)


def test_rows_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for arguments, options, words in [
        (([], []), {}, "token_ids is empty"),
        (([1.5], [0]), {}, r"token_ids is a list of integers, got shape \(1,\) of float64"),
        (([[1]], [0]), {}, r"token_ids is a list of integers, got shape \(1, 1\)"),
        (([1, -2], [0, 1]), {}, "token_ids holds -2, allowed is 0 to 2147483647"),
        (([1, 2], [1]), {}, r"loss_mask has shape \(1,\), token_ids has 2 entries"),
        (([1, 2], [0, 2]), {}, "loss_mask holds true and false"),
        (([1, 2], [0, 1], [0.0]), {}, r"policy_logprobs has shape \(1,\), token_ids has 2"),
        (([1, 2], [0, 1], [0, float("nan")]), {}, r"policy_logprobs\[1\] is nan"),
        (
            ([1, 2], [0, 1], [0, -np.inf]),
            {},
            r"\[1\] is -inf, and the .*: give a finite number, or",
        ),
        (([1, 2], [0, 1], [0, 0.5]), {}, r"policy_logprobs\[1\] is 0.5, a log-prob is at most 0"),
        (([1, 2], [0, 1]), {"advantages": float("inf")}, r"advantages\[1\] is inf"),
        (([1, 2], [0, 1]), {"advantages": [1, 2, 3]}, r"advantages has shape \(3,\)"),
        (([1, 2], [0, 1]), {"advantages": ["a", "b"]}, "advantages is a list of numbers"),
        (([1, 2], [0, 1]), {"weight": -1.0}, r"weight\[1\] is -1\.0, a weight is at least 0"),
        (([1, 2], [0, 1]), {"extras": [1]}, "extras has 1 entries, token_ids has 2"),
        (([1, 2], [0, 1]), {"is_kept": [1]}, r"is_kept has shape \(1,\), token_ids has 2 entries"),
        (([1, 2], [0, 1]), {"returns": [0, float("nan")]}, r"returns\[1\] is nan"),
        (([1, 2], [0, 1]), {"ref_logprobs": [0, 0.5]}, r"ref_logprobs\[1\] is 0\.5, a log-prob is"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            Row(*arguments, **options)


def test_what_is_not_trained_may_be_unknown() -> None:
    row = Row([1, 2, 3], [1, 0, 1], [float("nan"), float("nan"), -1.0], advantages=[0, np.nan, 1])
    assert row.num_trained == 1 and len(row) == 3
    with pytest.raises(ValueError, match="read-only"):
        row.token_ids[0] = 5


@given(rows=row_lists(), budget=st.integers(1, 7))
def test_rows_beyond_the_budget_are_packed_in_parts_if_asked_for(
    rows: list[Row], budget: int
) -> None:
    forests = pack(rows, max_tokens=budget, should_split=True)
    assert sorted(int(place) for f in forests for place in f.rows) == list(range(len(rows)))
    for forest in forests:
        check_forest(rows, forest)
        longest = max(len(rows[place]) for place in forest.rows)
        assert bool(forest.parts) == (longest > budget)
        sizes = [len(part.input_ids) for part in forest.parts] or [forest.stats.num_tree]
        assert max(sizes) <= budget


def test_what_shares_little_with_a_long_row_is_packed_by_itself() -> None:
    long = Row([1, 2, 3, 4, 5, 6, 7], [0] * 6 + [1])
    near, far = Row([1, 2, 3, 4, 9], [0, 0, 0, 0, 1]), Row([1, 2, 8], [0, 0, 1])
    forests = pack([far, near, long], max_tokens=5, should_split=True)
    assert [sorted(forest.rows.tolist()) for forest in forests] == [[0], [1, 2]]
    assert not forests[0].parts and len(forests[1].parts) == 2
    with pytest.raises(ValueError, match=r"row 2 has 7 tokens .* parts \(should_split=True\)"):
        pack([far, near, long], max_tokens=5)
    with pytest.raises(ValueError, match="row 2 has 28 pairs by itself, the budget is 20"):
        pack([far, near, long], max_tokens=5, max_pairs=20, should_split=True)


@given(rows=row_lists(is_plain=False))
def test_runs_hold_what_their_prefixes_do(rows: list[Row]) -> None:
    trie = TokenTrie.build(rows)
    ordered = [rows[place] for place in trie.order_R]
    tokens, pairs, trained = map_quantities(trie)
    for first in range(len(rows)):
        wanted = [counted(ordered[first : last + 1]) for last in range(first, len(rows))]
        assert tokens.of_runs_from(first).tolist() == [s.num_tree for s in wanted]
        assert pairs.of_runs_from(first).tolist() == [s.num_pairs for s in wanted]
        assert trained.of_runs_from(first).tolist() == [s.num_trained for s in wanted]
        assert Edges.of(trie).of_runs_from(first).tolist() == [s.num_edges for s in wanted]
        assert tokens.of_run(Run(first, len(rows) - 1)) == wanted[-1].num_tree


@given(rows=row_lists(), drawn=st.data())
def test_runs_apart_share_what_lies_between_them(rows: list[Row], drawn: st.DataObject) -> None:
    trie = TokenTrie.build(rows)
    chosen = drawn.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    wanted = counted([rows[trie.order_R[leaf]] for leaf in chosen])
    runs = [Run(leaf, leaf) for leaf in sorted(chosen)]
    found = [quantity.of_all(runs) for quantity in map_quantities(trie)]
    assert found == [wanted.num_tree, wanted.num_pairs, wanted.num_trained]


def map_quantities(trie: TokenTrie) -> list[Quantity]:
    return [Quantity.tokens(trie), Quantity.pairs(trie), Quantity.trained(trie)]


def test_a_token_is_an_edge_of_a_run_from_the_first_leaf_that_trains_it() -> None:
    # In depth-first order: 7 8 | 7 8 9 | 7 8 9 | 7 9; token 8 is trained by the first and third.
    rows = [
        Row([7, 8], [0, 1]), Row([7, 8, 9], [0, 0, 1]), Row([7, 8, 9], [0, 1, 1]),
        Row([7, 9], [1, 1]),
    ]  # fmt: skip
    trie = TokenTrie.build(rows)
    assert trie.order_R.tolist() == [0, 1, 2, 3]
    edges = Edges.of(trie)
    found = [edges.of_runs_from(first).tolist() for first in range(4)]
    assert found == [[1, 2, 2, 3], [1, 2, 3], [2, 3], [1]]
    assert Quantity.trained(trie).of_runs_from(0).tolist() == [1, 2, 4, 5]
    # 1 + 2, then the third token, nothing, and the second of a new branch.
    assert Quantity.pairs(trie).of_runs_from(0).tolist() == [3, 6, 6, 8]
    assert Quantity.tokens(trie).of_runs_from(0).tolist() == [2, 3, 3, 4]


def owners(forest: PackedForest) -> list[list[int]]:
    """Return each part's tokens as places in the forest, by spelling their paths."""
    tokens, seen = forest.input_ids.tolist(), paths(forest)
    place = {tuple(tokens[j] for j in path): i for i, path in enumerate(seen)}
    spelled: list[list[tuple[int, ...]]] = []
    for part in forest.parts:
        above = [
            spelled[number][token][-1]
            for number, token in zip(part.path_part.tolist(), part.path_token.tolist(), strict=True)
        ]
        ids, end = part.input_ids.tolist(), part.end.tolist()
        spelled.append(
            [(*above, *(ids[j] for j in range(i + 1) if i < end[j])) for i in range(len(ids))]
        )
    return [[place[path] for path in part] for part in spelled]


@given(rows=row_lists(), budget=st.integers(1, 12))
def test_parts_hold_every_token_and_edge_once_within_the_budget(
    rows: list[Row], budget: int
) -> None:
    (whole,) = pack(rows, max_tokens=1000)
    forest = whole.in_parts(budget)
    held = owners(forest)
    assert sorted(itertools.chain.from_iterable(held)) == list(range(len(whole.input_ids)))
    depth = whole.position_ids.tolist()
    edges = []
    for number, (part, tokens) in enumerate(zip(forest.parts, held, strict=True)):
        assert 1 <= len(tokens) <= budget
        assert part.position_ids.tolist() == [depth[token] for token in tokens]
        above = torch.arange(len(part.path_part))
        end = torch.cat([torch.full_like(above, len(above) + len(tokens)), part.end + len(above)])
        depths = torch.cat([above, part.position_ids])
        TreePlan.build(end, depth_N=depths)  # raises for what is no forest
        assert all(child > number for child in part.children)
        for edge, pred, target in zip(part.edges, part.edge_pred, part.edge_target, strict=True):
            assert tokens[pred] == whole.edge_pred[edge] and target == whole.edge_target[edge]
        edges += part.edges.tolist()
    assert sorted(edges) == list(range(whole.stats.num_edges))


@given(rows=row_lists(max_rows=3), budget=st.integers(1, 6))
def test_there_are_no_more_parts_than_any_cutting_needs(rows: list[Row], budget: int) -> None:
    """Against all ways to cut edges of the tree such that no piece is beyond the budget."""
    rows = [Row([9, *row.token_ids[:5]], [0, *row.loss_mask[:5]]) for row in rows]
    (whole,) = pack(rows, max_tokens=1000)
    parents = [path[-2] if len(path) > 1 else -1 for path in paths(whole)]
    num = len(parents)
    if num > 13:
        return
    fewest = num
    for cut in itertools.product((False, True), repeat=num - 1):
        piece = list(range(num))
        sizes = [0] * num
        for token in range(num):
            if token and not cut[token - 1]:
                piece[token] = piece[parents[token]]
            sizes[piece[token]] += 1
        if max(sizes) <= budget:
            fewest = min(fewest, 1 + sum(cut))
    assert len(whole.in_parts(budget).parts) <= fewest


def test_one_small_forest_in_parts_field_by_field() -> None:
    rows = [Row([7, 8, 9, 1, 2], [0, 0, 0, 0, 1]), Row([7, 8, 5, 6], [0, 1, 0, 1])]
    (forest,) = pack(rows, max_tokens=100)
    assert forest.input_ids.tolist() == [7, 8, 5, 6, 9, 1, 2]
    top, left, right = forest.in_parts(3).parts
    assert top.input_ids.tolist() == [7] and top.children == (1,)
    assert left.input_ids.tolist() == [8, 5, 6] and left.path_token.tolist() == [0]
    assert left.children == (2,) and left.path_part.tolist() == [0]
    assert right.input_ids.tolist() == [9, 1, 2] and right.end.tolist() == [3, 3, 3]
    assert right.path_part.tolist() == [0, 1] and right.path_token.tolist() == [0, 0]
    assert right.position_ids.tolist() == [2, 3, 4]
    assert [part.edge_target.tolist() for part in (top, left, right)] == [[8], [6], [2]]
    assert list(depth_first(forest.in_parts(3).parts)) == [
        (0, True), (1, True), (2, False), (1, False), (0, False),
    ]  # fmt: skip


def test_pieces_that_hang_off_one_token_are_put_together() -> None:
    rows = [Row([1, 2, 3, 4, i], [0, 0, 0, 0, 1]) for i in range(10, 19)]
    (forest,) = pack(rows, max_tokens=100)
    parts = forest.in_parts(4).parts
    assert [part.input_ids.tolist() for part in parts] == [
        [1, 2, 3], [4, 10, 11, 12], [13, 14, 15, 16], [17, 18],
    ]  # fmt: skip
    assert parts[1].children == (2, 3)
    with pytest.raises(ValueError, match="max_tokens is an int >= 1, got 0"):
        forest.in_parts(0)
