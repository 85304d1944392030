"""Advantages of groups, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from katgym_trainer import group_advantages, step_advantages

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5]  # mean 0.5, deviations 0.5 -0.5 -0.5 0.5 0, variance 1 / 4


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("grpo", [1, -1, -1, 1, 0]),
        ("dr_grpo", [0.5, -0.5, -0.5, 0.5, 0]),
        ("rloo", [0.625, -0.625, -0.625, 0.625, 0]),  # 1 - (0 + 0 + 1 + 0.5) / 4, and so on
        ("reinforce", REWARDS),
    ],
)
def test_kinds(kind: str, wanted: list[float]) -> None:
    assert group_advantages(REWARDS, kind) == pytest.approx(np.array(wanted), abs=1e-5)
    # One that is not valid changes nothing, whatever its reward.
    for odd in (100.0, float("nan")):
        found = group_advantages([odd, *REWARDS], kind, is_valid_G=[False] + [True] * 5)
        assert found == pytest.approx(np.array([0, *wanted]), abs=1e-5)


def test_reinforce_plus_plus_compares_all_rollouts_of_a_step() -> None:
    rewards = [[1.0, 0.0], [1.0, 1.0, float("nan")], [0.0, 0.0]]  # mean 1 / 2, variance 3 / 10
    is_valid = [[True, True], [True, True, False], [True, True]]
    plain = step_advantages(rewards, "reinforce_plus_plus", is_valid=is_valid)
    high = 0.5 / 0.3**0.5
    wanted = [high, -high, high, high, 0, -high, -high]
    assert np.concatenate(plain) == pytest.approx(np.array(wanted), abs=1e-5)
    # Deviations from the group: 1/2, -1/2, and four times 0; variance 1 / 10.
    based = step_advantages(rewards, "reinforce_plus_plus_baseline", is_valid=is_valid)
    high = 0.5 / 0.1**0.5
    assert np.concatenate(based) == pytest.approx(np.array([high, -high, 0, 0, 0, 0, 0]), abs=1e-5)
    assert [len(group) for group in based] == [2, 3, 2]
    assert based[1].tolist() == [0.0] * 3  # exactly: such a group is not computed
    alone = group_advantages([3.0, 1.0], "reinforce_plus_plus")
    assert alone == pytest.approx(np.array([0.5**0.5, -(0.5**0.5)]), abs=1e-5)


@pytest.mark.parametrize(
    "kind", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_where_nothing_differs_nothing_is_learned(kind: str) -> None:
    assert group_advantages([0.1] * 7, kind).tolist() == [0.0] * 7
    assert group_advantages([5.0], kind).tolist() == [0.0]
    assert group_advantages([5.0, 1.0], kind, is_valid_G=[True, False]).tolist() == [0.0, 0.0]
    assert group_advantages([5.0, 1.0], kind, is_valid_G=[False, False]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], "ppo"), "unknown advantage 'ppo'; allowed: grpo, dr_grpo, rloo, reinforce"),
        (([], "grpo"), r"one reward for each rollout, got shape \(0,\)"),
        (([1.0, float("inf")], "grpo"), "the reward of rollout 1 is inf, and it is valid"),
        (([1.0], "grpo", [True, True]), r"is_valid_G has shape \(2,\), there are 1 rewards"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words) -> None:
    rewards, kind, *valid = arguments
    with pytest.raises(ValueError, match=words):
        group_advantages(rewards, kind, is_valid_G=valid[0] if valid else None)
