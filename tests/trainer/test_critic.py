"""Advantages from a critic by hand; the critic's gradients are those of every row by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from nightly import some_of
from tiny_families import make
from tiny_model import TinyModel
from tiny_model_rows import check_equal, gradients, sample_rows
from torch import Tensor

from katgym_trainer import Critic, Row, pack, with_gae

ROW = Row([4, 5, 6, 7, 8], [1, 1, 0, 1, 1])
"""The first token never is trained, the third is the env's: three steps."""


def test_advantages_by_hand() -> None:
    (row,) = with_gae(
        [ROW], [[0.5, 0.25, 1.0]], rewards=[2.0], gamma=0.5, lam=0.5, is_whitened=False
    )
    # deltas: 0.5 * 0.25 - 0.5 = -0.375; 0.5 * 1 - 0.25 = 0.25; 2 - 1 = 1
    last, middle = 1.0, 0.25 + 0.25 * 1.0
    first = -0.375 + 0.25 * middle
    assert row.advantages.tolist() == [0, first, 0, middle, last]
    assert row.returns.tolist() == [0, first + 0.5, 0, middle + 0.25, last + 1.0]
    assert row.values.tolist() == [0, 0.5, 0, 0.25, 1.0]


def test_without_discount_every_return_is_the_reward() -> None:
    rows = [ROW, Row([1, 2], [0, 1])]
    found = with_gae(rows, [[0.1, 0.2, 0.3], [0.4]], rewards=[1.0, 0.0], is_whitened=False)
    assert found[0].returns[[1, 3, 4]] == pytest.approx([1.0, 1.0, 1.0])
    assert found[1].returns[1] == 0 and found[1].advantages[1] == -0.4


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_all_rows() -> None:
    rows = [ROW, Row([1, 2], [0, 1])]
    found = with_gae(rows, [[0.1, 0.2, 0.3], [0.4]], rewards=[1.0, 0.0])
    advantages = np.array([*found[0].advantages[[1, 3, 4]], found[1].advantages[1]])
    plain = np.array([0.9, 0.8, 0.7, -0.4])
    assert advantages == pytest.approx((plain - plain.mean()) / plain.std(ddof=1))
    (alone,) = with_gae([rows[1]], [[0.4]], rewards=[1.0])
    assert alone.advantages.tolist() == [0, 0.6]


def test_what_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    for values, rewards, options, words in [
        ([[0, 0, 0]], [1.0], {"gamma": 1.5}, r"gamma is a number from 0 to 1, got 1\.5"),
        ([[0, 0, 0]], [1.0], {"lam": -1}, "lam is a number from 0 to 1, got -1"),
        ([[0, 0, 0]], [], {}, "1 rows, 1 values, 0 rewards"),
        ([[0, 0, 0]], [float("nan")], {}, "the reward of row 0 is nan"),
        ([[0, 0]], [1.0], {}, r"3 tokens are trained, got shape \(2,\)"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            with_gae([ROW], values, rewards=rewards, **options)


def row_values(critic: Critic, model: TinyModel, row: Row) -> Tensor:
    """Return the values before a row's trained tokens, the row by itself."""
    ids = torch.from_numpy(row.token_ids.copy())
    hidden = model.run(ids, torch.arange(len(ids)), None)[:-1]
    return critic.head(hidden)[:, 0][torch.tensor(row.loss_mask[1:].tolist())]


def trained_critic(kind: str) -> tuple[Critic, TinyModel, list[Row]]:
    """Return a critic whose head is not zero, and rows with its values, moved on since."""
    model = TinyModel()
    critic = Critic(model)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.head.weight)
    rows = sample_rows(model, kind)
    forests = pack(rows, max_tokens=1000)
    values = critic.values(forests)
    for place, row in enumerate(rows):
        exact = row_values(critic, model, row).detach()
        assert torch.allclose(values[place], exact, rtol=0, atol=1e-12)
    rewards = [float(i % 2) for i in range(len(rows))]
    rows = with_gae(rows, [values[i].numpy() for i in range(len(rows))], rewards=rewards)
    torch.nn.init.normal_(critic.head.weight, std=1.2)
    return critic, model, rows


@pytest.mark.parametrize(
    ("kind", "clip"), some_of(itertools.product(["group", "steps"], [0.3, None]), 2)
)
def test_value_loss_and_gradients_are_those_of_the_rows(kind: str, clip: float | None) -> None:
    critic, model, rows = trained_critic(kind)
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for row in rows:
        at = np.flatnonzero(row.loss_mask[1:]) + 1
        value = row_values(critic, model, row)
        old, wanted = torch.tensor(row.values[at]), torch.tensor(row.returns[at])
        error = (value - wanted) ** 2
        if clip is not None:
            held = torch.clamp(value, old - clip, old + clip)
            error = torch.maximum(error, (held - wanted) ** 2)
        total = total + row.weight[0] * error.sum() / 2
        weight += row.weight[0] * len(at)
    (total / weight).backward()
    oracle = gradients(critic)
    for budget in (10_000, 30):
        forests = pack(rows, max_tokens=budget)
        for these in (forests, [forest.in_parts(4) for forest in forests]):
            metrics = critic.forward_backward(these, clip=clip)
            assert metrics["value_loss"] == pytest.approx(float(total.detach()) / weight, rel=1e-10)
            check_equal(gradients(critic), oracle, 1e-10)


def test_a_critic_learns_what_returns_to_expect() -> None:
    model = TinyModel()
    critic = Critic(model)
    rows = sample_rows(model, "nothing shared")
    forests = pack(rows, max_tokens=1000)
    assert all(not values.any() for values in critic.values(forests).values())  # it starts at 0
    zeros = [[0.0] * row.num_trained for row in rows]
    rows = with_gae(rows, zeros, rewards=[0.0, 1.0, 0.0, 1.0])
    forests = pack(rows, max_tokens=1000)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
    first = critic.forward_backward(forests, clip=None)
    assert first["explained_variance"] <= 0
    for _ in range(60):
        optimizer.step()
        optimizer.zero_grad()
        last = critic.forward_backward(forests, clip=None)
    assert last["value_loss"] < first["value_loss"] / 10 and last["explained_variance"] > 0.9


def test_values_of_several_packs_are_not_mixed_up() -> None:
    forests = [*pack([ROW], max_tokens=9), *pack([ROW], max_tokens=9)]
    with pytest.raises(ValueError, match="row 0 is in two forests"):
        Critic(TinyModel()).values(forests)


def test_rows_that_know_no_returns_are_refused() -> None:
    critic = Critic(TinyModel())
    (forest,) = pack([ROW], max_tokens=9)
    with pytest.raises(ValueError, match="row 0 has no returns, which a critic is trained on"):
        critic.forward_backward([forest])
    (forest,) = pack([ROW.replace(returns=0.0)], max_tokens=9)
    with pytest.raises(ValueError, match="row 0 has no values"):
        critic.forward_backward([forest])
    critic.forward_backward([forest], clip=None)
    with pytest.raises(ValueError, match="clip is a number > 0, or infinity, or None, got 0"):
        critic.forward_backward([forest], clip=0)
    with pytest.raises(ValueError, match="there are no forests"):
        critic.forward_backward([])


def test_a_critic_takes_a_residual_that_is_wider_than_its_weights() -> None:
    """Mamba's is float32 in a model of bfloat16."""
    critic = Critic(make("Mamba2").bfloat16())
    torch.nn.init.ones_(critic.head.weight)
    (values,) = critic.values(pack([ROW], max_tokens=64)).values()
    assert values.shape == (3,) and values.abs().min() > 0
