"""Draws one token from logits, with the log-probability the learner needs.

Not here: many rows at once; a row has its own random stream, so its draws do not depend on its
neighbours in the batch.
"""

from __future__ import annotations

import torch

from katgym.policies.base import Sampling


def sample_token(
    logits_V: torch.Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[int, float]:
    """Return a token and its natural-log probability, computed in fp32.

    logprob = log_softmax(logits / temperature)[token], over the whole vocabulary also where
    `top_k` or `top_p` narrows the draw; at temperature 0 the token is the argmax, and the
    logprob is that at temperature 1. One uniform number is drawn per token, by inverse CDF.
    """
    temperature = sampling.temperature
    logits_V = logits_V.float()
    if temperature == 0:
        logprobs_V = torch.log_softmax(logits_V, dim=-1)
        token = int(logits_V.argmax())
        return token, float(logprobs_V[token])
    logprobs_V = torch.log_softmax(logits_V / temperature, dim=-1)
    probs_V = logprobs_V.double().exp()
    if sampling.top_k or sampling.top_p < 1:
        probs_V = _truncate(probs_V, sampling)
    cdf_V = probs_V.cumsum(dim=-1)
    uniform = torch.rand((), generator=generator, dtype=torch.float64).to(cdf_V.device)
    # right=True skips tokens of probability zero, also for a draw of exactly 0.
    token = int(torch.searchsorted(cdf_V, uniform * cdf_V[-1], right=True))
    token = min(token, int(probs_V.nonzero()[-1]))
    return token, float(logprobs_V[token])


def _truncate(probs_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Zero what lies outside the `top_k` likeliest tokens, and outside the `top_p` nucleus.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`, taken
    over what `top_k` left.
    """
    sorted_V, order_V = probs_V.sort(descending=True)
    if sampling.top_k:
        sorted_V[sampling.top_k :] = 0
    if sampling.top_p < 1:
        before_V = sorted_V.cumsum(dim=-1) - sorted_V
        sorted_V[before_V >= sampling.top_p * sorted_V.sum()] = 0
    return torch.zeros_like(probs_V).scatter(0, order_V, sorted_V)
