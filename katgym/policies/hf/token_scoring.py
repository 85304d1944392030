"""Computes what a model's weights say of the tokens of a recorded rollout, in one forward a path.

Of each sampled token: its log-probability, how likelier it is under other distributions, and
whether the random number that the seed gives draws it (`sampler.py`).

Not here: what follows from that (`evaluation/verification/rescore.py`).

Letters: N sampled tokens, V vocabulary, Q other distributions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from katgym.play.rollout import Rollout
from katgym.play.seeding import derive_seed
from katgym.policies.base import Sampling
from katgym.policies.hf.sampler import truncate, uniforms
from katgym.policies.token_scores import TokenScores, Tolerance

_POWERS = (0.25, 0.5, 2.0, 4.0)
"""Of the distribution of the weights, for the others; uniform is the fifth."""
_LEAST = 1e-12
"""A token that `top_p` or `top_k` leaves out has this probability: rounding moves their edges."""
_ROWS = 128
"""Tokens whose distributions are computed together."""


def score_rollout(
    model: Any, rollout: Rollout, tolerance: Tolerance, *, has_draws: bool
) -> TokenScores:
    """Compute what a model's weights say of a rollout with tokens.

    has_draws: it was sampled by katgym's own engine, from the seeds of the rollout.
    """
    sampling = rollout.sampling or Sampling()
    errors: list[torch.Tensor] = []
    ratios_Q = torch.zeros(len(_POWERS) + 1, dtype=torch.float64)
    num_draws = num_misses = 0
    for path in rollout.trajectories():
        places = [place for place, is_sampled in enumerate(path.loss_mask) if is_sampled]
        numbers: list[float] = []
        for turn in path.turns if has_draws else ():
            tokens = rollout.turns[turn].tokens
            num_sampled = len(tokens.completion_ids) if tokens else 0
            stream = uniforms(derive_seed(rollout.sampling_seed, turn))
            numbers += itertools.islice(stream, num_sampled)
        for start in range(0, len(places), _ROWS):
            part = places[start : start + _ROWS]
            logits_NV = _logits(model, path.token_ids[: part[-1] + 1], part)
            token_N1 = torch.tensor([path.token_ids[place] for place in part])[:, None]
            known_N = torch.tensor([path.policy_logprobs[place] for place in part])
            logprobs_NV = torch.log_softmax(logits_NV / (sampling.temperature or 1.0), dim=-1)
            own_N = logprobs_NV.gather(1, token_N1)[:, 0]
            errors.append((own_N - known_N).abs())
            if sampling.temperature == 0:
                num_draws += len(part) * has_draws
                is_missed_N = logprobs_NV.amax(dim=-1) - own_N > tolerance.draw
                num_misses += int(is_missed_N.sum()) * has_draws
                continue
            probs_NV = logprobs_NV.double().exp()
            if sampling.top_k or sampling.top_p < 1:
                probs_NV = truncate(probs_NV, sampling)
            ratios_Q += _log_ratios(probs_NV, token_N1)
            if has_draws:
                drawn = numbers[start : start + _ROWS]
                num_draws += len(part)
                num_misses += _num_misses(probs_NV, token_N1, drawn, tolerance.draw)
    error_N = torch.cat(errors) if errors else torch.zeros(0)
    return TokenScores(
        num_tokens=len(error_N),
        logprob_error=float(error_N.mean()) if len(error_N) else 0.0,
        log_e=tuple(ratios_Q.tolist()),
        num_draws=num_draws,
        num_misses=num_misses,
    )


def _logits(model: Any, ids: Sequence[int], places: Sequence[int]) -> torch.Tensor:
    """Return the float32 logits on the CPU that the tokens at `places` were sampled from."""
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([list(ids)], device=model.device),
            use_cache=False,
            logits_to_keep=torch.tensor([place - 1 for place in places], device=model.device),
        )
    logits_NV: torch.Tensor = output.logits[0].float().cpu()
    return logits_NV


def _log_ratios(probs_NV: torch.Tensor, token_N1: torch.Tensor) -> torch.Tensor:
    """Return sum_N log q(token) / p(token) for each alternative q."""
    p_NV = (probs_NV / probs_NV.sum(dim=-1, keepdim=True)).clamp_min(_LEAST)
    logp_NV = p_NV.log()
    own_N = logp_NV.gather(1, token_N1)[:, 0]
    ratios = [
        (torch.log_softmax(power * logp_NV, dim=-1).gather(1, token_N1)[:, 0] - own_N).sum()
        for power in _POWERS
    ]
    ratios.append((-math.log(logp_NV.shape[1]) - own_N).sum())
    return torch.stack(ratios)


def _num_misses(
    probs_NV: torch.Tensor, token_N1: torch.Tensor, numbers: Sequence[float], tolerance: float
) -> int:
    """Count the tokens that their random numbers do not draw."""
    cdf_NV = probs_NV.cumsum(dim=-1)
    total_N = cdf_NV[:, -1]
    high_N = cdf_NV.gather(1, token_N1)[:, 0] / total_N
    low_N = high_N - probs_NV.gather(1, token_N1)[:, 0] / total_N
    number_N = torch.tensor(numbers, dtype=torch.float64)
    is_missed_N = (number_N < low_N - tolerance) | (number_N > high_N + tolerance)
    return int(is_missed_N.sum())
