"""One token from logits: greedy, tempered, truncated; its log-probability."""

from __future__ import annotations

import math

import pytest
import torch

from katgym.policies.base import Sampling
from katgym.policies.sampler import sample_token

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0]))


def draw(sampling, *, num=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = [sample_token(LOGITS, sampling, generator)[0] for _ in range(num)]
    return [tokens.count(token) / num for token in range(5)]


def test_temperature_zero_is_the_argmax_with_its_logprob_at_one():
    token, logprob = sample_token(LOGITS, Sampling(temperature=0.0), torch.Generator())
    assert token == 0
    assert logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_draws_follow_the_distribution_and_never_hit_zero_probability():
    shares = draw(Sampling())
    assert shares == pytest.approx([0.5, 0.3, 0.15, 0.05, 0.0], abs=0.03)
    assert shares[4] == 0.0


def test_logprob_is_that_of_the_tempered_distribution():
    generator = torch.Generator().manual_seed(1)
    token, logprob = sample_token(LOGITS, Sampling(temperature=0.5), generator)
    squares = [0.25, 0.09, 0.0225, 0.0025]
    assert logprob == pytest.approx(math.log(squares[token] / sum(squares)), abs=1e-6)


def test_top_k_and_top_p_narrow_the_draw_but_not_the_logprob():
    assert draw(Sampling(top_k=2)) == pytest.approx([0.625, 0.375, 0, 0, 0], abs=0.03)
    assert draw(Sampling(top_p=0.79)) == pytest.approx([0.625, 0.375, 0, 0, 0], abs=0.03)
    assert draw(Sampling(top_p=0.81))[2] > 0.1
    generator = torch.Generator().manual_seed(0)
    token, logprob = sample_token(LOGITS, Sampling(top_k=1), generator)
    assert (token, logprob) == (0, pytest.approx(math.log(0.5), abs=1e-6))


def test_bfloat16_logits_are_treated_in_float32():
    _, logprob = sample_token(LOGITS.bfloat16(), Sampling(temperature=0.0), torch.Generator())
    exact = torch.log_softmax(LOGITS.bfloat16().float(), -1)[0]
    assert logprob == pytest.approx(float(exact), abs=1e-7)
