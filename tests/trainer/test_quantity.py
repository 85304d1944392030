"""What runs of leaves hold, beside sets of prefixes."""

from __future__ import annotations

from drawn_rows import counted, row_lists
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer import Row
from katgym_trainer.packing.quantity import Edges, Quantity, Run
from katgym_trainer.packing.token_trie import TokenTrie


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
        Row([7, 8], [0, 1]),
        Row([7, 8, 9], [0, 0, 1]),
        Row([7, 8, 9], [0, 1, 1]),
        Row([7, 9], [1, 1]),
    ]
    trie = TokenTrie.build(rows)
    assert trie.order_R.tolist() == [0, 1, 2, 3]
    edges = Edges.of(trie)
    assert [edges.of_runs_from(first).tolist() for first in range(4)] == [
        [1, 2, 2, 3],
        [1, 2, 3],
        [2, 3],
        [1],
    ]
    assert Quantity.trained(trie).of_runs_from(0).tolist() == [1, 2, 4, 5]
    # 1 + 2, then the third token, nothing, and the second of a new branch.
    assert Quantity.pairs(trie).of_runs_from(0).tolist() == [3, 6, 6, 8]
    assert Quantity.tokens(trie).of_runs_from(0).tolist() == [2, 3, 3, 4]
