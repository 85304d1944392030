"""The order of rollouts: every one once an epoch, tasks together, the same from any step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.errors import UsageError
from katgym_trainer.runs.data_order import DataOrder

TASKS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=23)


@given(tasks=TASKS, size=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_every_rollout_once_and_tasks_together(
    tasks: list[str], size: int, seed: int, epoch: int
) -> None:
    order = DataOrder(tasks, batch_rollouts=size, seed=seed)
    num = order.steps_per_epoch
    batches = [order.batch(step) for step in range(epoch * num, (epoch + 1) * num)]
    flat = [place for batch in batches for place in batch]
    assert sorted(flat) == list(range(len(tasks)))
    assert [len(batch) for batch in batches[:-1]] == [size] * (num - 1) and batches[-1]
    seen = [tasks[place] for place in flat]
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes == len(set(tasks)) - 1


@given(tasks=TASKS, steps=st.permutations(range(6)))
def test_a_step_is_the_same_whatever_was_asked_before(tasks: list[str], steps: list[int]) -> None:
    one, other = (DataOrder(tasks, batch_rollouts=4, seed=3) for _ in range(2))
    in_order = [one.batch(step) for step in range(6)]
    assert [other.batch(step) for step in steps] == [in_order[step] for step in steps]


def test_epochs_and_seeds_order_differently() -> None:
    tasks = list(range(20))
    orders = [DataOrder(tasks, batch_rollouts=20, seed=seed) for seed in (0, 1)]
    found = [order.batch(epoch) for order in orders for epoch in (0, 1)]
    assert len({tuple(batch) for batch in found}) == 4


def test_a_cursor_says_where_the_order_stands() -> None:
    order = DataOrder(["a", "b", "c"], batch_rollouts=2, seed=7)
    assert order.steps_per_epoch == 2
    assert order.cursor(0) == {"epoch": 0, "place": 0, "seed": 7}
    assert order.cursor(5) == {"epoch": 2, "place": 1, "seed": 7}
    order.check({"epoch": 2, "place": 1, "seed": 7}, 5)
    with pytest.raises(UsageError, match=r"of step 5 stands at .*'place': 0.* it is of other data"):
        order.check({"epoch": 2, "place": 0, "seed": 7}, 5)


def test_no_rollouts_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no rollout to train on"):
        DataOrder([], batch_rollouts=2)
