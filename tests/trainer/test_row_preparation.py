"""Rows before a step: entropies of the model as it is, and groups' advantages scaled."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import TinyModel
from tiny_model_rows import row_outputs, sample_rows

from katgym_trainer import Row, entropy_scaled, pass_rate_scaled
from katgym_trainer.row_preparation import row_entropies, scale_by_entropy, scale_by_pass_rate


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
