"""Advantages, shaped rewards and scaled advantages against numbers worked out by hand.

At the end: entropies of the model as it is, and rows' advantages scaled by them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import TinyModel
from tiny_model_rows import row_outputs, sample_rows

from katgym_trainer import Row, group_advantages, step_advantages
from katgym_trainer.advantages.entropy_scaling import (
    entropy_of_rollout,
    entropy_scaled,
    estimate_entropy_of_rollout,
    pass_rate_scaled,
)
from katgym_trainer.advantages.reward_shaping import overlong_penalty
from katgym_trainer.row_preparation import row_entropies, scale_by_entropy, scale_by_pass_rate

NAN = float("nan")
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5]  # mean 0.5, deviations 0.5 -0.5 -0.5 0.5 0, variance 1 / 4


def test_kinds(subtests: pytest.Subtests) -> None:
    for kind, wanted in {
        "grpo": [1, -1, -1, 1, 0],
        "dr_grpo": [0.5, -0.5, -0.5, 0.5, 0],
        "rloo": [0.625, -0.625, -0.625, 0.625, 0],  # 1 - (0 + 0 + 1 + 0.5) / 4, and so on
        "reinforce": REWARDS,
    }.items():
        with subtests.test(kind=kind):
            assert group_advantages(REWARDS, kind) == pytest.approx(np.array(wanted), abs=1e-5)
            # One that is not valid changes nothing, whatever its reward.
            for odd in (100.0, NAN):
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


def test_where_nothing_differs_nothing_is_learned(subtests: pytest.Subtests) -> None:
    compared = ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
    for kind in compared:
        with subtests.test(kind=kind):
            assert group_advantages([0.1] * 7, kind).tolist() == [0.0] * 7
            assert group_advantages([5.0], kind).tolist() == [0.0]
            for is_valid in ([True, False], [False, False]):
                assert group_advantages([5.0, 1.0], kind, is_valid_G=is_valid).tolist() == [0, 0]


def test_rewards_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for rewards, kind, is_valid, words in [
        ([1.0], "ppo", None, "unknown advantage 'ppo'; allowed: grpo, dr_grpo, rloo, reinforce"),
        ([], "grpo", None, r"got shape \(0,\)"),
        ([1.0, float("inf")], "grpo", None, "the reward of rollout 1 is inf"),
        ([1.0], "grpo", [True, True], r"is_valid_G has shape \(2,\), there are 1 rewards"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            group_advantages(rewards, kind, is_valid_G=is_valid)


def test_the_overlong_penalty_grows_over_the_buffer() -> None:
    wanted = {
        0: 0.0, 16_384: 0.0,  # 20,480 - 4,096: the paper's numbers
        16_385: -1 / 4096, 18_432: -0.5, 20_479: -4095 / 4096, 20_480: -1.0, 10**9: -1.0,
    }  # fmt: skip
    for factor in (1.0, 0.5):
        found = {
            num: overlong_penalty(num, max_tokens=20_480, buffer_tokens=4096, factor=factor)
            for num in wanted
        }
        assert found == {num: factor * penalty for num, penalty in wanted.items()}
    # A buffer of everything, and of one token.
    found = [overlong_penalty(t, max_tokens=4, buffer_tokens=4) for t in range(6)]
    assert found == [0.0, -0.25, -0.5, -0.75, -1.0, -1.0]
    assert [overlong_penalty(t, max_tokens=4, buffer_tokens=1) for t in (3, 4, 5)] == [0, -1, -1]


@given(
    max_tokens=st.integers(1, 1000),
    share=st.floats(0, 1),
    num_tokens=st.integers(0, 2000),
    factor=st.floats(0, 10),
)
def test_it_is_the_paper_s_three_cases(
    max_tokens: int, share: float, num_tokens: int, factor: float
) -> None:
    buffer_tokens = max(1, round(share * max_tokens))
    if num_tokens <= max_tokens - buffer_tokens:
        wanted = 0.0
    elif num_tokens <= max_tokens:
        wanted = ((max_tokens - buffer_tokens) - num_tokens) / buffer_tokens
    else:
        wanted = -1.0
    found = overlong_penalty(
        num_tokens, max_tokens=max_tokens, buffer_tokens=buffer_tokens, factor=factor
    )
    assert found == pytest.approx(factor * wanted, rel=1e-12, abs=1e-300)


def test_penalties_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    arguments = {"num_tokens": 5, "max_tokens": 10, "buffer_tokens": 2}
    for name, value, words in [
        ("num_tokens", -1, "an int >= 0, got -1"),
        ("num_tokens", 1.5, r"an int >= 0, got 1\.5"),
        ("max_tokens", 0, "an int >= 1, got 0"),
        ("buffer_tokens", 0, "an int >= 1, got 0"),
        ("buffer_tokens", 11, "11, at most max_tokens=10"),
        ("factor", -1.0, r"a number >= 0, got -1\.0"),
        ("factor", NAN, "a number >= 0, got nan"),
    ]:
        changed = {**arguments, name: value}
        with subtests.test(words=words), pytest.raises(ValueError, match=f"{name} is {words}"):
            overlong_penalty(changed.pop("num_tokens"), **changed)


def test_rollouts_of_high_entropy_weigh_more() -> None:
    # Entropies over their mean 2: 0.5, 1, 1.5. Sizes 1 1 2 become 0.5 1 3: 4 of 4.5.
    found = entropy_scaled([1.0, -1.0, 2.0], [1.0, 2.0, 3.0])
    assert found == pytest.approx(np.array([0.5, -1.0, 3.0]) * 4 / 4.5, rel=1e-14)
    # Squared: 0.25, 1, 2.25, of which 0.25 and 2.25 are clipped. Sizes 0.5 1 4: 4 of 5.5.
    found = entropy_scaled([1.0, -1.0, 2.0], [1.0, 2.0, 3.0], power=2.0)
    assert found == pytest.approx(np.array([0.5, -1.0, 4.0]) * 4 / 5.5, rel=1e-14)
    # Bounds 0.8 and 1.25: sizes 0.8 1 2.5: 4 of 4.3.
    found = entropy_scaled([1.0, -1.0, 2.0], [1.0, 2.0, 3.0], max_scale=1.25)
    assert found == pytest.approx(np.array([0.8, -1.0, 2.5]) * 4 / 4.3, rel=1e-14)


def test_rollouts_that_are_not_valid_change_nothing() -> None:
    wanted = entropy_scaled([1.0, -1.0, 2.0], [1.0, 2.0, 3.0])
    for odd in (0.0, 100.0, NAN):
        found = entropy_scaled(
            [1.0, odd, -1.0, 2.0], [1.0, odd, 2.0, 3.0], is_valid_G=[True, False, True, True]
        )
        assert found.tolist() == [wanted[0], 0.0, wanted[1], wanted[2]]
    assert entropy_scaled([3.0, 1.0], [1.0, 2.0], is_valid_G=[False, False]).tolist() == [0.0, 0.0]


def test_where_nothing_is_to_be_told_apart_advantages_are_exactly_as_they_were(
    subtests: pytest.Subtests,
) -> None:
    for advantages, entropies, power in [
        ([0.0, 0.0, 0.0], [0.1, 0.7, 3.0], 1.0),
        ([0.1, -0.3, 0.7], [0.0, 0.0, 0.0], 1.0),
        ([0.1, -0.3, 0.7], [-1e-4, -1e-9, 0.0], 1.0),  # rounded below 0
        ([0.1, -0.3, 0.7], [0.3, 0.3, 0.3], 5.0),
        ([0.1, -0.3, 0.7], [0.1, 0.7, 3.0], 0.0),
        ([-0.3], [0.7], 1.0),
    ]:
        with subtests.test(advantages=advantages, entropies=entropies):
            assert entropy_scaled(advantages, entropies, power=power).tolist() == advantages
    for groups, rates in [
        ([[0.1, -0.3], [0.7]], [0.0, 1.0]),
        ([[0.1, -0.3], [0.7]], [0.3, 0.3]),
        ([[0.0, 0.0], [0.0]], [0.5, 0.1]),
        ([[0.1, -0.3]], [0.3]),
    ]:
        with subtests.test(groups=groups, rates=rates):
            assert [group.tolist() for group in pass_rate_scaled(groups, rates)] == groups


def test_extreme_numbers_stay_numbers() -> None:
    # 0 and 2 times the mean, to the 10,000th: clipped to 1/3 and 3.
    found = entropy_scaled([1.0, -1.0], [0.0, 2.0], power=10_000.0, max_scale=3.0)
    assert found == pytest.approx(np.array([0.2, -1.8]), rel=1e-14)
    assert entropy_scaled([5e-324, 0.0], [5e-324, 0.0]).tolist() == [5e-324, 0.0]


SIZES = st.floats(1e-6, 1e6)
ROLLOUT = st.tuples(st.one_of(st.just(0.0), SIZES, SIZES.map(lambda x: -x)), st.floats(0, 12))


@given(
    rollouts=st.lists(ROLLOUT, min_size=1, max_size=9),
    power=st.floats(0, 4),
    max_scale=st.floats(1, 8),
)
def test_sizes_sum_to_what_they_did_and_signs_stay(
    rollouts: list[tuple[float, float]], power: float, max_scale: float
) -> None:
    advantages, entropies = np.array(rollouts).T
    found = entropy_scaled(advantages, entropies, power=power, max_scale=max_scale)
    assert np.sign(found).tolist() == np.sign(advantages).tolist()
    assert np.abs(found).sum() == pytest.approx(np.abs(advantages).sum(), rel=1e-12)
    some = advantages != 0
    factor = found[some] / advantages[some]
    assert (factor <= max_scale**2 * (1 + 1e-9)).all()
    assert (factor >= max_scale**-2 * (1 - 1e-9)).all()
    assert (np.diff(factor[np.argsort(entropies[some])]) >= -1e-9 * max_scale**2).all()
    # The unit of entropy plays no part.
    in_bits = entropy_scaled(advantages, entropies / np.log(2), power=power, max_scale=max_scale)
    assert in_bits == pytest.approx(found, rel=1e-9)


def test_groups_of_open_outcome_weigh_more() -> None:
    # 4p(1-p): 1, 0.75, 0.36; over their mean 2.11 / 3; sizes sum to 2, 1 and 4.
    found = pass_rate_scaled([[1.0, -1.0], [0.25, -0.75], [-2.0, 2.0, 0.0]], [0.5, 0.25, 0.9])
    scale = np.array([1.0, 0.75, 0.36]) * 3 / 2.11
    back = 7 / (2 * scale[0] + scale[1] + 4 * scale[2])
    for group, wanted in zip(
        found,
        [scale[0] * np.array([1, -1]), scale[1] * np.array([0.25, -0.75]),
         scale[2] * np.array([-2, 2, 0])],
        strict=True,
    ):  # fmt: skip
        assert group == pytest.approx(wanted * back, rel=1e-14)


def test_the_scale_of_groups_is_clipped() -> None:
    # 4p(1-p): 1, 0, 0, 0, over their mean 4, 0, 0, 0: clipped to 2 and 1/2. 4 of 2 + 3/2.
    found = pass_rate_scaled([[1.0], [-1.0], [1.0], [1.0]], [0.5, 0.0, 1.0, 0.0])
    wanted = np.array([2, -0.5, 0.5, 0.5]) * 4 / 3.5
    assert np.concatenate(found) == pytest.approx(wanted, rel=1e-14)


@given(
    groups=st.lists(
        st.tuples(st.lists(st.floats(-9, 9), min_size=1, max_size=5), st.floats(0, 1)),
        min_size=1,
        max_size=6,
    )
)
def test_sizes_of_all_groups_together_sum_to_what_they_did(
    groups: list[tuple[list[float], float]],
) -> None:
    advantages = [group for group, _ in groups]
    found = pass_rate_scaled(advantages, [rate for _, rate in groups])
    assert [len(group) for group in found] == [len(group) for group in advantages]
    flat, scaled = np.concatenate(advantages), np.concatenate(found)
    assert np.abs(scaled).sum() == pytest.approx(np.abs(flat).sum(), rel=1e-12)
    assert (np.sign(scaled) == np.sign(flat))[np.abs(flat) > 1e-300].all()


def test_the_entropy_of_a_rollout_is_the_mean_over_trained_tokens_of_all_its_rows() -> None:
    rows = [
        Row([5, 6, 7, 8], [1, 1, 0, 1], [NAN, -0.5, NAN, -1.5]),
        Row([5, 6, 9], [0, 0, 1], [NAN, NAN, -4.0]),
        Row([5], [1], [-9.0]),  # trains nothing: the first token never is
    ]
    exact = entropy_of_rollout(rows, [[NAN, 0.25, NAN, 1.0], [9.0, 9.0, 1.0], [NAN]])
    assert exact == 2.25 / 3
    assert estimate_entropy_of_rollout(rows) == 6.0 / 3


def test_the_estimate_s_expectation_is_the_entropy() -> None:
    chances = np.array([0.5, 0.25, 0.125, 0.125])  # 1.75 bits
    expected = sum(
        p * estimate_entropy_of_rollout([Row([0, token], [0, 1], [0.0, float(np.log(p))])])
        for token, p in enumerate(chances)
    )
    assert expected == pytest.approx(1.75 * np.log(2), rel=1e-14)


def test_entropies_that_round_below_zero_count_as_zero() -> None:
    row = Row([5, 6], [0, 1], [0.0, 5e-4])
    assert estimate_entropy_of_rollout([row]) == 0.0
    assert entropy_of_rollout([row], [[0.0, -5e-4]]) == 0.0


def test_what_cannot_be_scaled_is_refused(subtests: pytest.Subtests) -> None:
    for advantages, entropies, options, words in [
        ([], [], {}, r"a group has one advantage for each rollout, got \(0,\)"),
        ([1.0], [1.0, 2.0], {}, r"entropies_G has shape \(2,\), there are 1 advantages"),
        ([1.0], [1.0], {"is_valid_G": [True] * 2}, r"is_valid_G has shape \(2,\), there are 1"),
        ([1.0, NAN], [1.0, 1.0], {}, r"advantages_G\[1\] is nan, allowed are finite numbers"),
        ([1.0], [-0.01], {}, r"entropies_G\[0\] is -0\.01, allowed are finite numbers >= 0"),
        ([1.0], [np.inf], {}, r"entropies_G\[0\] is inf"),
        ([1.0], [1.0], {"power": -1.0}, r"power is a number >= 0, got -1\.0"),
        ([1.0], [1.0], {"power": NAN}, "power is a number >= 0, got nan"),
        ([1.0], [1.0], {"max_scale": 0.5}, r"max_scale is a number >= 1, got 0\.5"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            entropy_scaled(advantages, entropies, **options)
    for groups, rates, options, words in [
        ([], [], {}, "there are no groups to scale"),
        ([[1.0]], [0.5, 0.5], {}, r"pass_rates has shape \(2,\), there are 1 groups"),
        ([[1.0]], [1.5], {}, r"pass_rates\[0\] is 1\.5, allowed is 0 to 1"),
        ([[1.0]], [NAN], {}, r"pass_rates\[0\] is nan, allowed is 0 to 1"),
        ([[1.0], []], [0.5, 0.5], {}, r"group 1 has advantages of shape \(0,\)"),
        ([[1.0, NAN]], [0.5], {}, r"advantages_by_group\[0\]\[1\] is nan"),
        ([[1.0]], [0.5], {"max_scale": np.inf}, "max_scale is a number >= 1, got inf"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            pass_rate_scaled(groups, rates, **options)


def test_entropies_that_do_not_fit_their_rows_are_refused() -> None:
    row = Row([5, 6], [0, 1])
    with pytest.raises(ValueError, match="entropies of 1 rows, there are 2 rows"):
        entropy_of_rollout([row, row], [[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"entropies\[0\] has shape \(1,\), its row has 2 tokens"):
        entropy_of_rollout([row], [[1.0]])
    with pytest.raises(ValueError, match=r"entropies\[0\]\[1\] is nan, allowed are finite"):
        entropy_of_rollout([row], [[0.0, NAN]])
    with pytest.raises(ValueError, match=r"rows\[0\] has no policy_logprobs to estimate"):
        estimate_entropy_of_rollout([row])
    for rows in ([], [Row([5, 6], [1, 0], [0.0, 0.0])]):
        with pytest.raises(ValueError, match="the rollout trains no token: there is no entropy"):
            estimate_entropy_of_rollout(rows)
        with pytest.raises(ValueError, match="the rollout trains no token"):
            entropy_of_rollout(rows, [[0.0, 0.0]] * len(rows))


def test_entropies_are_those_of_every_row_by_itself() -> None:
    model = TinyModel()
    rows = sample_rows(model, "steps")
    found = row_entropies(model, rows, max_tokens=12, temperature=0.7)
    for row, entropies in zip(rows, found, strict=True):
        exact = row_outputs(model, row, temperature=0.7)[1].detach().numpy()
        trained = row.loss_mask[1:]
        assert entropies[1:][trained] == pytest.approx(exact[trained], abs=1e-12)
        assert not entropies[1:][~trained].any() and entropies[0] == 0


def rollout(name: str, group: str, advantage: float, num: int = 1) -> list[Row]:
    return [
        Row([1, 2, 3], [0, 1, 1], advantages=advantage, group=group, rollout=name)
        for _ in range(num)
    ]


def test_groups_are_scaled_apart_and_rollouts_as_a_whole() -> None:
    rows = [
        *rollout("a", "x", 1.0, num=2), *rollout("b", "x", -1.0), *rollout("c", "y", 2.0),
        *rollout("d", "y", -2.0), *rollout("e", "y", 0.0),
    ]  # fmt: skip
    entropies = [np.array([0.0, h, h]) for h in (1.0, 3.0, 1.0, 0.5, 1.5, 1.0)]
    found = scale_by_entropy(rows, entropies, max_scale=3.0)
    x = entropy_scaled([1.0, 1.0], [2.0, 1.0], max_scale=3.0)  # rollout a: the mean of its rows
    y = entropy_scaled([2.0, 2.0, 0.0], [0.5, 1.5, 1.0], max_scale=3.0)
    wanted = [x[0], x[0], -x[1], y[0], -y[1], 0.0]
    assert [row.advantages[1] for row in found] == pytest.approx(wanted)
    assert x[0] + x[1] == pytest.approx(2.0) and x[0] == pytest.approx(2 * x[1])


def test_groups_are_scaled_by_their_pass_rate() -> None:
    rows = [*rollout("a", "x", 1.0), *rollout("b", "x", -1.0), *rollout("c", "y", 3.0)]
    found = scale_by_pass_rate(rows, {"x": 0.5, "y": 0.9}, max_scale=4.0)
    x, y = pass_rate_scaled([[1.0, 1.0], [3.0]], [0.5, 0.9], max_scale=4.0)
    assert [row.advantages[1] for row in found] == pytest.approx([x[0], -x[1], y[0]])
    with pytest.raises(ValueError, match="row 0 is of group 'x', which has no pass rate"):
        scale_by_pass_rate(rows, {"y": 0.5})


def test_rows_that_train_nothing_stay_as_they_are() -> None:
    rows = [Row([1, 2], [0, 0], advantages=5.0, group="x"), *rollout("a", "x", 1.0)]
    found = scale_by_entropy(rows, [np.zeros(2), np.ones(3)])
    assert found[0] is rows[0] and found[1].advantages.tolist() == [1.0, 1.0, 1.0]
    found = scale_by_pass_rate(rows[:1], {"x": 0.5})
    assert found == rows[:1]
