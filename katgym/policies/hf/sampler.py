"""Draws tokens from logits, with the log-probabilities the learner needs.

A row has its own random numbers (`uniforms`), so its draws do not depend on its neighbours in the
batch.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from katgym.policies.base import Sampling

_BLOCK = 64


def uniforms(seed: int | None) -> Iterator[float]:
    """Yield numbers in [0, 1) from a stream of their own; None draws a fresh seed.

    They are made a block at a time, which changes none of them.
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    while True:
        yield from torch.rand(_BLOCK, generator=generator, dtype=torch.float64).tolist()


def sample_tokens(
    logits_BV: torch.Tensor,
    samplings: Sequence[Sampling],
    streams: Sequence[Iterator[float]],
) -> tuple[list[int], list[float]]:
    """Return a token and its natural-log probability a row, computed in fp32.

    logprob = log_softmax(logits / temperature)[token], over the whole vocabulary also where
    `top_k` or `top_p` narrows the draw; at temperature 0 the token is the argmax, and the
    logprob is that at temperature 1. One number of a row's stream is used per token that is drawn,
    by inverse CDF.
    """
    groups: dict[tuple[float, int, float], list[int]] = {}
    for row, sampling in enumerate(samplings):
        key = (sampling.temperature, sampling.top_k, sampling.top_p)
        groups.setdefault(key, []).append(row)
    order: list[int] = []
    parts = []
    for rows in groups.values():
        part_BV = (logits_BV if len(groups) == 1 else logits_BV[rows]).float()
        first = samplings[rows[0]]
        if first.temperature == 0:
            logprobs_BV = torch.log_softmax(part_BV, dim=-1)
            token_B1 = part_BV.argmax(dim=-1, keepdim=True)
        else:
            logprobs_BV = torch.log_softmax(part_BV / first.temperature, dim=-1)
            token_B1 = _draw(logprobs_BV, first, [next(streams[row]) for row in rows])
        order += rows
        parts.append(torch.cat((token_B1.double(), logprobs_BV.gather(1, token_B1).double()), 1))
    tokens, logprobs = [0] * len(order), [0.0] * len(order)
    drawn = torch.cat(parts).tolist()  # one transfer from the device
    for row, (token, logprob) in zip(order, drawn, strict=True):
        tokens[row], logprobs[row] = int(token), logprob
    return tokens, logprobs


def _draw(logprobs_BV: torch.Tensor, sampling: Sampling, numbers: list[float]) -> torch.Tensor:
    """Return the token ids, B x 1, where the rows' cumulated probability passes their numbers."""
    probs_BV = logprobs_BV.double().exp()
    if sampling.top_k or sampling.top_p < 1:
        probs_BV = truncate(probs_BV, sampling)
    cdf_BV = probs_BV.cumsum(dim=-1)
    uniform_B1 = torch.tensor(numbers, dtype=torch.float64)[:, None].to(cdf_BV.device)
    # right=True skips tokens of probability zero, also for a draw of exactly 0.
    token_B1 = torch.searchsorted(cdf_BV, uniform_B1 * cdf_BV[:, -1:], right=True)
    # Past the end are rows with NaN only, which whoever reads the log-probabilities refuses.
    return token_B1.clamp_(max=cdf_BV.shape[1] - 1)


def truncate(probs_BV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Zero what lies outside the `top_k` likeliest tokens, and outside the `top_p` nucleus.

    The nucleus is the smallest set of likeliest tokens whose probability reaches `top_p`, taken
    over what `top_k` left.
    """
    sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True)
    if sampling.top_k:
        sorted_BV[:, sampling.top_k :] = 0
    if sampling.top_p < 1:
        before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
        sorted_BV[before_BV >= sampling.top_p * sorted_BV.sum(dim=-1, keepdim=True)] = 0
    return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV)
