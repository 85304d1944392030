"""Log-probs through a cache are the model's own, and the model runs for what is missing alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import (
    PackedForest,
    Row,
    TreeContext,
    forward_backward,
    loss,
    pack,
    trainer_logprobs,
)
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.logprobs.logprob_reuse import look_up_logprobs


class CountingModel(TinyModel):
    """Remembers how many tokens each forward had."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards: list[int] = []

    def hidden(self, forest: PackedForest, context: TreeContext) -> Tensor:
        self.forwards.append(len(forest.input_ids))
        return super().hidden(forest, context)


def sample_rows(seed: int = 0) -> list[Row]:
    """Return rows of 75 to 90 tokens that share 70, most of the rest trained."""
    rng = random.Random(seed)
    prompt = [rng.randrange(13) for _ in range(70)]
    rows = []
    for num in (5, 11, 20):
        tokens = prompt + [rng.randrange(13) for _ in range(num)]
        mask = [t >= 60 and rng.random() < 0.8 for t in range(len(tokens))]
        rows.append(Row(tokens, mask, advantages=rng.gauss(0, 1)))
    return rows


def computed(model: TinyModel, rows: list[Row], max_tokens: int, **options: float) -> list[list]:
    found = trainer_logprobs(model, pack(rows, max_tokens=max_tokens), **options)
    return [found[place].tolist() for place in range(len(rows))]


def of_trained(rows: list[Row], found: list[np.ndarray]) -> list[list[float]]:
    return [x[1:][row.loss_mask[1:]].tolist() for row, x in zip(rows, found, strict=True)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_they_are_the_models_own_to_the_last_bit(temperature: float) -> None:
    model, rows = CountingModel(), sample_rows()
    wanted = computed(model, rows, 1000, temperature=temperature)
    with LogprobCache() as cache:
        for _ in range(2):
            found = look_up_logprobs(
                model, rows, cache=cache, version="v", max_tokens=1000, temperature=temperature
            )
            assert of_trained(rows, found) == wanted
            for row, x in zip(rows, found, strict=True):
                assert x.shape == (len(row),) and not x[~row.loss_mask].any()
                assert np.array_equal(row.replace(ref_logprobs=x).ref_logprobs, x)


def test_two_epochs_are_half_hits_and_one_forward(tmp_path: Path) -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache(folder=tmp_path) as cache:
        once = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        forwards = list(model.forwards)
        assert forwards == [70 + 5 + 11 + 20] and cache.stats.hit_rate == 0
        again = look_up_logprobs(model, rows[::-1], cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == forwards and cache.stats.hit_rate == 0.5
        assert cache.stats.num_hits == sum(row.num_trained for row in rows)
    with LogprobCache(folder=tmp_path) as cache:
        later = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == forwards and cache.stats.hit_rate == 1
    for x, y, z in zip(once, again[::-1], later, strict=True):
        assert np.array_equal(x, y) and np.array_equal(x, z)


def test_only_rows_that_miss_are_computed() -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache() as cache:
        look_up_logprobs(model, rows[1:2], cache=cache, version="ref", max_tokens=1000)
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 70 + 5 + 20]
        known, missed = rows[1].num_trained, rows[0].num_trained + rows[2].num_trained
        assert cache.stats.num_hits == known
        assert cache.stats.num_misses == known + missed
        unmasked = rows[0].replace(loss_mask=np.ones(75, bool))
        look_up_logprobs(model, [unmasked], cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 95, 75]
        # Other numbers of the loss are no other tokens.
        rows[0] = rows[0].replace(advantages=3.0, weight=0.5, group="g")
        look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 95, 75]
    for x, y in zip(of_trained(rows, found), computed(model, rows, 1000), strict=True):
        assert x == pytest.approx(y, rel=0, abs=1e-12)


def test_tokens_of_several_forests_are_found_as_they_were_returned() -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache() as cache:
        once = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=90)
        assert model.forwards == [70 + 5 + 11, 70 + 20]
        again = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=90)
    assert all(np.array_equal(x, y) for x, y in zip(once, again, strict=True))
    for x, y in zip(of_trained(rows, once), computed(model, rows, 1000), strict=True):
        assert x == pytest.approx(y, rel=0, abs=1e-12)


def test_a_token_that_is_known_is_returned_as_it_is_known() -> None:
    model, (row, *_) = CountingModel(), sample_rows()
    one = row.replace(loss_mask=np.arange(len(row)) == 62)
    every = row.replace(loss_mask=np.ones(len(row), bool))
    with LogprobCache() as cache:
        cache.store(one, np.full(len(row), -0.125), version="ref")
        for _ in range(2):
            (found,) = look_up_logprobs(model, [every], cache=cache, version="ref", max_tokens=99)
            assert found[62] == -0.125
        (exact,) = computed(model, [every], 99)
    assert np.flatnonzero(found[1:] != exact).tolist() == [61]


def test_before_the_first_step_the_ratio_is_one_and_after_it_the_version_is_another() -> None:
    model, rows = CountingModel(), sample_rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with LogprobCache() as cache:
        before = look_up_logprobs(model, rows, cache=cache, version="0", max_tokens=1000)
        rows = [row.replace(policy_logprobs=x) for row, x in zip(rows, before, strict=True)]
        metrics = forward_backward(model, pack(rows, max_tokens=1000), loss("grpo"))
        assert metrics["ratio"] == 1.0 and metrics["policy_kl"] == 0.0
        optimizer.step()
        proximal = look_up_logprobs(model, rows, cache=cache, version="0", max_tokens=1000)
        after = look_up_logprobs(model, rows, cache=cache, version="1", max_tokens=1000)
    assert all(np.array_equal(x, y) for x, y in zip(before, proximal, strict=True))
    assert of_trained(rows, after) == computed(model, rows, 1000)
    assert not np.array_equal(before[0], after[0])


def test_where_nothing_is_trained_nothing_is_computed() -> None:
    model = CountingModel()
    with LogprobCache() as cache:
        rows = [Row([1, 2, 3], [1, 0, 0]), Row([4], [1])]
        assert look_up_logprobs(model, [], cache=cache, version="ref", max_tokens=9) == []
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=9)
        assert [x.tolist() for x in found] == [[0.0, 0.0, 0.0], [0.0]]
        assert cache.stats.hit_rate == 0
    assert model.forwards == []


def test_rows_longer_than_the_budget_run_in_parts() -> None:
    model, rows = CountingModel(), [Row([1, 2], [0, 1]), Row([1, 2, 3], [0, 1, 1])]
    with LogprobCache() as cache:
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=2)
        whole = trainer_logprobs(model, pack(rows, max_tokens=9))
        for row, logprobs, wanted in zip(rows, found, whole.values(), strict=True):
            assert logprobs == pytest.approx(row.spread(wanted.numpy()), abs=1e-12)
        for bad in (0, 1.5):
            other = [rows[0].replace(token_ids=[3, 3])]
            with pytest.raises(ValueError, match=rf"max_tokens is an int >= 1, got {bad!r}"):
                look_up_logprobs(model, other, cache=cache, version="ref", max_tokens=bad)
