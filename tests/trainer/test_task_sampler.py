"""Tasks drawn by their posterior, and groups taken by their rewards."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer.task_sampler import GroupFilter, TaskSampler

NAN = float("nan")


def test_pass_rates_are_means_of_the_posterior() -> None:
    sampler = TaskSampler(["a", "b"], prior=(1.0, 3.0), seed=0)
    assert sampler.pass_rate("a") == 0.25
    sampler.update("a", 2, 8)
    assert sampler.pass_rate("a") == 3 / 12
    sampler.update("a", 4, 4)
    assert (sampler.pass_rate("a"), sampler.pass_rate("b")) == (7 / 16, 0.25)


def test_decay_forgets_at_each_update_that_saw_something() -> None:
    sampler = TaskSampler(["a"], decay=0.5, seed=0)
    sampler.update("a", 0, 8)  # 0 passed, 8 failed
    sampler.update("a", 4, 4)  # 4 passed, 4 failed
    assert sampler.pass_rate("a") == 5 / 10
    sampler.update("a", 0, 0)
    assert sampler.pass_rate("a") == 5 / 10
    sampler.update("a", 4, 4)  # 6 passed, 2 failed
    assert sampler.pass_rate("a") == 7 / 10


def successive(weights: list[float], num: int) -> dict[tuple[int, ...], float]:
    """Return the chance of each draw, one after the other by the weights of those left."""
    found = {}
    for draw in itertools.permutations(range(len(weights)), num):
        chance, left = 1.0, sum(weights)
        for place in draw:
            chance, left = chance * weights[place] / left, left - weights[place]
        found[draw] = chance
    return found


def test_draws_have_the_chances_of_their_weights() -> None:
    sampler = TaskSampler(["a", "b", "c"], floor=0.05, seed=7)
    sampler.update("a", 3, 6)  # Beta(4, 4): 16 / (8 * 9)
    sampler.update("b", 6, 6)  # Beta(7, 1): 7 / (8 * 9)
    weights = [16 / 72 + 0.05, 7 / 72 + 0.05, 1 / 6 + 0.05]  # c: Beta(1, 1): 1 / (2 * 3)
    num = 20_000
    for num_tasks in (1, 2):
        counts = Counter(tuple(sampler.sample(num_tasks)) for _ in range(num))
        for draw, chance in successive(weights, num_tasks).items():
            count = counts[tuple("abc"[place] for place in draw)]
            assert abs(count - num * chance) < 4.5 * (num * chance * (1 - chance)) ** 0.5


def test_without_a_floor_settled_tasks_are_rare() -> None:
    sampler = TaskSampler(["easy", "open", "hard"], floor=0.0, seed=0)
    for task_id, num_passed in (("easy", 1000), ("open", 500), ("hard", 0)):
        sampler.update(task_id, num_passed, 1000)
    counts = Counter(sampler.sample(1)[0] for _ in range(1000))  # weights 0.001, 0.25, 0.001
    assert counts["open"] > 970


def test_all_tasks_can_be_had_at_once_each_once() -> None:
    names = [f"task-{i}" for i in range(101)]
    sampler = TaskSampler(names, seed=0)
    draws = [sampler.sample(101) for _ in range(2)]
    assert sorted(draws[0]) == sorted(names) and draws[0] != draws[1]
    assert TaskSampler(["only"], seed=0).sample(1) == ["only"]


def test_the_same_seed_draws_the_same() -> None:
    one, other = (TaskSampler([*"abcdefg"], seed=3) for _ in range(2))
    assert [one.sample(3) for _ in range(9)] == [other.sample(3) for _ in range(9)]
    another = TaskSampler([*"abcdefg"], seed=4)
    assert [one.sample(3) for _ in range(9)] != [another.sample(3) for _ in range(9)]


@given(
    updates=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.integers(0, 9))),
    num=st.integers(1, 5),
)
def test_a_state_goes_through_json_and_the_same_draws_follow(
    updates: list[tuple[str, int, int]], num: int
) -> None:
    one = TaskSampler([*"abcde"], decay=0.9, seed=0)
    for task_id, num_passed, num_failed in updates:
        one.update(task_id, num_passed, num_passed + num_failed)
        one.sample(num)
    text = json.dumps(one.state_dict())
    other = TaskSampler([*"abcde"], decay=0.9, seed=99)
    other.load_state_dict(json.loads(text))
    assert json.dumps(other.state_dict()) == text
    for _ in range(3):
        assert other.sample(num) == one.sample(num)
        one.update("a", 1, 3)
        other.update("a", 1, 3)
    assert other.pass_rate("a") == one.pass_rate("a")


def test_a_state_is_a_copy() -> None:
    sampler = TaskSampler(["a"], seed=0)
    state = sampler.state_dict()
    sampler.update("a", 1, 1)
    assert state["passed"] == [0.0]
    sampler.load_state_dict(state)
    sampler.update("a", 1, 1)
    assert state["passed"] == [0.0]


def test_states_that_do_not_fit_are_refused_and_change_nothing(subtests: pytest.Subtests) -> None:
    for changes, words in [
        ({"task_ids": ["a", "c"]}, r"the state is of other tasks, or in another order: \['b', 'c"),
        ({"task_ids": ["b", "a"]}, r"the state is of other tasks, or in another order: \[\]"),
        ({"passed": [1.0]}, "passed and failed of a state are counts >= 0, one for each"),
        ({"passed": [1.0, -1.0]}, "passed and failed of a state are counts >= 0, one for each"),
        ({"failed": [1.0, NAN]}, "passed and failed of a state are counts >= 0, one for each"),
        ({"rng": "{}"}, "rng of a state is what state_dict gave, got '{}'"),
        ({"rng": "["}, "rng of a state is what state_dict gave, got '\\['"),
        ({"seed": 1}, r"a state has the keys \['failed', 'passed', 'rng', 'task_ids'\], got "),
    ]:
        with subtests.test(changes=changes):
            sampler = TaskSampler(["a", "b"], seed=0)
            before = sampler.state_dict()
            with pytest.raises(ValueError, match=words):
                sampler.load_state_dict({**before, **changes})
            assert sampler.state_dict() == before


def test_samplers_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for options, words in [
        ({"task_ids": []}, "there are no tasks to sample from"),
        ({"task_ids": ["a", "b", "a"]}, "task 'a' is there more than once"),
        ({"floor": -0.1}, r"floor is a number >= 0, got -0\.1"),
        ({"prior": (0.0, 1.0)}, r"prior is two finite numbers > 0, got \(0\.0, 1\.0\)"),
        ({"decay": 0.0}, r"decay is a number > 0 and <= 1, got 0\.0"),
        ({"decay": 1.1}, r"decay is a number > 0 and <= 1, got 1\.1"),
        ({"seed": None}, "seed is an int >= 0, got None"),
        ({"seed": -1}, "seed is an int >= 0, got -1"),
    ]:
        with subtests.test(options=options), pytest.raises(ValueError, match=words):
            TaskSampler(**{"task_ids": ["a"], "seed": 0, **options})


def test_calls_that_do_not_fit_are_refused() -> None:
    sampler = TaskSampler(["task-1", "task-2"], seed=0)
    with pytest.raises(ValueError, match="cannot sample 3 different tasks, there are 2"):
        sampler.sample(3)
    with pytest.raises(ValueError, match="num is an int >= 1, got 0"):
        sampler.sample(0)
    with pytest.raises(ValueError, match=r"unknown task 'tsk-1'. Did you mean 'task-1'\?"):
        sampler.pass_rate("tsk-1")
    with pytest.raises(ValueError, match="unknown task 'x' among 2"):
        sampler.update("x", 1, 1)
    for num_passed, num_valid in ((3, 2), (-1, 2), (0, -1)):
        with pytest.raises(ValueError, match=rf"{num_passed} of {num_valid} rollouts passed"):
            sampler.update("task-1", num_passed, num_valid)
    assert sampler.pass_rate("task-1") == 0.5


def test_groups_are_taken_if_two_valid_rewards_differ(subtests: pytest.Subtests) -> None:
    for rewards, is_valid, wanted in [
        ([0.0, 1.0], None, True),
        ([1.0, 1.0, 1.0], None, False),
        ([0.1] * 7, None, False),  # whose mean is not 0.1
        ([0.0, 0.0, 1e-9], None, True),
        ([1.0], None, False),
        ([0.0, 1.0, 1.0], [False, True, True], False),
        ([NAN, 0.0, 1.0], [False, True, True], True),
        ([0.0, 1.0], [True, False], False),
        ([0.0, 1.0], [False, False], False),
    ]:
        with subtests.test(rewards=rewards):
            groups = GroupFilter(2, max_offered=9)
            assert groups.offer(rewards, is_valid) is wanted
            assert (groups.num_missing, groups.num_refused) == ((1, 0) if wanted else (2, 1))


def test_a_filter_is_full_with_as_many_groups_as_it_waits_for() -> None:
    groups = GroupFilter(2, max_offered=3)
    assert [groups.offer([0, 1]), groups.offer([1, 1]), groups.is_full] == [True, False, False]
    assert groups.offer([0, 1]) and groups.is_full and groups.num_missing == 0
    with pytest.raises(ValueError, match="all 2 groups are there; start another GroupFilter"):
        groups.offer([0, 1])


def test_a_filter_that_can_not_be_filled_says_so(subtests: pytest.Subtests) -> None:
    for last, missing, refused in [([0, 1], 1, 1), ([1, 1], 2, 2)]:
        with subtests.test(last=last):
            groups = GroupFilter(3, max_offered=3)
            groups.offer([0, 1])
            groups.offer([1, 1])
            words = f"{missing} of 3 groups are missing after 3 were offered: {refused} had"
            for offered in (last, [0, 1]):
                with pytest.raises(RuntimeError, match=words):
                    groups.offer(offered)
                assert (groups.num_missing, groups.num_refused) == (missing, refused)


def test_filters_and_offers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="num_groups is an int >= 1, got 0"):
        GroupFilter(0, max_offered=3)
    with pytest.raises(ValueError, match="max_offered is an int >= num_groups=3, got 2"):
        GroupFilter(3, max_offered=2)
    groups = GroupFilter(1, max_offered=1)
    with pytest.raises(ValueError, match="the reward of rollout 1 is nan, and it is valid"):
        groups.offer([0.0, NAN])
    assert groups.offer(np.array([0.0, 1.0])) and groups.is_full
