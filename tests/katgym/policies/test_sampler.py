"""Tokens from logits: greedy, tempered, truncated, many rows; their log-probabilities."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from katgym.policies.base import Sampling
from katgym.policies.hf.sampler import sample_tokens, uniforms

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0]))


def sample_token(logits_V, sampling, stream):
    tokens, logprobs = sample_tokens(logits_V[None], [sampling], [stream])
    return tokens[0], logprobs[0]


def draw(sampling, *, num=4000, seed=0):
    stream = uniforms(seed)
    tokens, _ = sample_tokens(LOGITS.expand(num, -1), [sampling] * num, [stream] * num)
    return [tokens.count(token) / num for token in range(5)]


def test_temperature_zero_is_the_argmax_with_its_logprob_at_one():
    token, logprob = sample_token(LOGITS, Sampling(temperature=0.0), iter(()))
    assert token == 0
    assert logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_draws_follow_the_distribution_and_never_hit_zero_probability():
    shares = draw(Sampling())
    assert shares == pytest.approx([0.5, 0.3, 0.15, 0.05, 0.0], abs=0.03)
    assert shares[4] == 0.0


def test_the_ends_of_the_range_draw_tokens_that_are_possible():
    logits = torch.log(torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]))
    tokens = {0.0: 1, 0.25: 3, math.nextafter(1, 0): 3}
    drawn = {number: sample_token(logits, Sampling(), iter([number]))[0] for number in tokens}
    assert drawn == tokens


def test_logprob_is_that_of_the_tempered_distribution():
    token, logprob = sample_token(LOGITS, Sampling(temperature=0.5), uniforms(1))
    squares = [0.25, 0.09, 0.0225, 0.0025]
    assert logprob == pytest.approx(math.log(squares[token] / sum(squares)), abs=1e-6)


def test_top_k_and_top_p_narrow_the_draw_but_not_the_logprob():
    assert draw(Sampling(top_k=2)) == pytest.approx([0.625, 0.375, 0, 0, 0], abs=0.03)
    assert draw(Sampling(top_p=0.79)) == pytest.approx([0.625, 0.375, 0, 0, 0], abs=0.03)
    assert draw(Sampling(top_p=0.81))[2] > 0.1
    token, logprob = sample_token(LOGITS, Sampling(top_k=1), uniforms(0))
    assert (token, logprob) == (0, pytest.approx(math.log(0.5), abs=1e-6))


def test_bfloat16_logits_are_treated_in_float32():
    _, logprob = sample_token(LOGITS.bfloat16(), Sampling(temperature=0.0), iter(()))
    exact = torch.log_softmax(LOGITS.bfloat16().float(), -1)[0]
    assert logprob == pytest.approx(float(exact), abs=1e-7)


def test_rows_of_mixed_settings_are_drawn_as_if_alone():
    settings = [
        Sampling(temperature=0.7),
        Sampling(temperature=0.0),
        Sampling(top_k=2, max_tokens=9),
        Sampling(top_p=0.6),
        Sampling(temperature=0.7, max_tokens=3),
        Sampling(top_k=2),
    ]
    logits = torch.randn(6, 63, generator=torch.Generator().manual_seed(0))
    together = sample_tokens(logits, settings, [uniforms(seed) for seed in range(6)])
    alone = [sample_token(logits[i], settings[i], uniforms(i)) for i in range(6)]
    assert together[0] == [token for token, _ in alone]
    assert together[1] == pytest.approx([logprob for _, logprob in alone], abs=1e-6)


def test_the_numbers_of_a_seed_do_not_depend_on_the_blocks_they_are_made_in():
    generator = torch.Generator().manual_seed(11)
    one_by_one = [
        float(torch.rand((), generator=generator, dtype=torch.float64)) for _ in range(200)
    ]
    assert list(itertools.islice(uniforms(11), 200)) == one_by_one
    assert next(uniforms(None)) != next(uniforms(None))
