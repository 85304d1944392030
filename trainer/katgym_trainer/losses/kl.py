"""Estimates of the KL divergence of the trainer from a reference, from sampled tokens.

Not here: whose coefficient it gets (`kl_and_corrections.py`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def kl_of(trainer_logprobs: Tensor, ref_logprobs: Tensor, estimator: Estimator) -> Tensor:
    """Return an estimate of KL(pi || pi_ref) from each token; with d = log pi - log pi_ref:

        k1 = d                  unbiased, its gradient has mean zero on policy: to be measured, or
                                weighed by the ratio, which gives the gradient of the KL
        k2 = d^2 / 2            biased, its gradient is that of the KL on policy
        k3 = exp(-d) - 1 + d    unbiased, never negative

    Source: http://joschu.net/blog/kl-approx.html; the gradients: arXiv 2506.09477.
    """
    difference = trainer_logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    return torch.expm1(-difference) + difference
