"""The oracle: every row run by itself, its loss written out from the papers' formulas.

Knows nothing of forests, occurrences or scopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from katgym_trainer import Row

LogProbs = Callable[[Row], Tensor]
"""Log-prob of every token but the first, [T - 1], given those before it."""


def row_losses(name: str, logp: Tensor, row: Row) -> Tensor:
    """Return the loss of each trained token of a row, before any mean."""
    trained = torch.tensor(row.loss_mask[1:].tolist())
    logp = logp[trained]
    advantage = torch.tensor(row.advantages[1:].tolist(), dtype=logp.dtype)[trained]
    if name == "sft":
        return -logp
    if name in ("reinforce", "rloo"):
        return -advantage * logp
    assert row.policy_logprobs is not None
    old = torch.tensor(row.policy_logprobs[1:].tolist(), dtype=logp.dtype)[trained]
    ratio = torch.exp(logp - old)
    if name == "cispo":
        return -torch.clamp(ratio.detach(), 0.0, 5.0) * advantage * logp
    low, high = {"gspo": (3e-4, 4e-4), "dapo": (0.2, 0.28)}.get(name, (0.2, 0.2))
    if name == "gspo":
        ratio = torch.exp((logp - old).mean()).expand(len(logp)) if len(logp) else ratio
    surrogate = torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)
    return -surrogate / (32 if name == "dr_grpo" else 1)


def total_loss(name: str, rows: Sequence[Row], logprobs: LogProbs) -> Tensor:
    """Return the loss of a step; rows of one rollout share its mean."""
    losses = [row_losses(name, logprobs(row), row) for row in rows]
    if name in ("sft", "dapo", "cispo"):
        total = sum(row.weight * x.sum() for row, x in zip(rows, losses, strict=True))
        return total / sum(row.weight * len(x) for row, x in zip(rows, losses, strict=True))
    rollouts: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        if len(losses[i]):
            rollouts.setdefault(("own", i) if row.rollout is None else row.rollout, []).append(i)
    total, weight = torch.zeros((), dtype=losses[0].dtype), 0.0
    for members in rollouts.values():
        num = sum(len(losses[i]) for i in members)
        is_mean = name in ("grpo", "gspo")
        for i in members:
            total = total + rows[i].weight * losses[i].sum() / (num if is_mean else 1)
            weight += rows[i].weight * len(losses[i]) / num
    assert math.isfinite(weight) and weight > 0
    return total / weight
