"""The oracle: every row run by itself, its loss written out from the papers' formulas.

Knows nothing of forests, occurrences or scopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from katgym_trainer import Row

Outputs = Callable[[Row], tuple[Tensor, Tensor]]
"""Log-prob of every token but the first given those before it, and the entropy there; [T - 1]."""
GSPO = (3e-4, 4e-4)
CLIPS = {"dapo": (0.2, 0.28), "gspo": GSPO, "gspo_token": GSPO, "cispo": (1.0, 4.0)}
OWN_MEANS = {"grpo", "gspo", "gspo_token"}
TOKEN_MEANS = {"sft", "dapo", "cispo", "ppo"}


def row_losses(name: str, outputs: tuple[Tensor, Tensor], row: Row, options: Any = None) -> Tensor:
    """Return the loss of each trained token of a row, before any mean."""
    options = options or {}
    trained = torch.tensor(row.loss_mask[1:].tolist())
    logp, entropy = (output[trained] for output in outputs)

    def known(values: Any) -> Tensor:
        return torch.tensor(values[1:].tolist(), dtype=logp.dtype)[trained]

    if name == "sft":
        return -logp
    advantage = known(row.advantages)
    to_proximal = options.get("ratio_to") == "proximal"
    if name in ("reinforce", "rloo"):
        loss = -advantage * logp
    else:
        old = known(row.proximal_logprobs if to_proximal else row.policy_logprobs)
        loss = ratio_losses(name, logp - old, logp, advantage, options)
    if options.get("importance") or options.get("mismatch_mask"):
        policy = known(row.policy_logprobs)
        rho = torch.exp((known(row.proximal_logprobs) if to_proximal else logp.detach()) - policy)
        loss = loss * importance(rho, options) * is_kept(rho, options)
    if options.get("kl_coef"):
        apart = logp - known(row.ref_logprobs)
        kl = {"k1": apart, "k2": apart * apart / 2, "k3": torch.exp(-apart) - 1 + apart}
        term = options["kl_coef"] * kl[options.get("kl_estimator", "k3")]
        if options.get("is_kl_weighted"):
            term = term * torch.exp(logp - known(row.policy_logprobs))
        loss = loss + term
    loss = loss - options.get("entropy_coef", 0.0) * entropy
    return loss / options.get("max_completion_tokens", 1)


def ratio_losses(
    name: str, log_ratio: Tensor, logp: Tensor, advantage: Tensor, options: Any
) -> Tensor:
    """Return the losses that clip a ratio."""
    low, high = CLIPS.get(name, (0.2, 0.2))
    low, high = 1 - options.get("clip_low", low), 1 + options.get("clip_high", high)
    ratio = torch.exp(log_ratio)
    if name == "cispo":
        return -torch.clamp(ratio.detach(), low, high) * advantage * logp
    if name == "gspo":
        ratio = torch.exp(log_ratio.mean()).expand(len(logp)) if len(logp) else ratio
    if name == "gspo_token":
        ratio = torch.exp(log_ratio.mean().detach() + logp - logp.detach())
    objective = torch.minimum(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
    if "dual_clip" in options:
        bounded = torch.maximum(objective, options["dual_clip"] * advantage)
        objective = torch.where(advantage < 0, bounded, objective)
    return -objective


def importance(rho: Tensor, options: Any) -> Tensor:
    """Return what weighs each token of a row."""
    kind = options.get("importance", "none")
    whole = {"none": torch.ones_like(rho), "token": rho, "sequence": rho.prod().expand(len(rho))}
    return whole[kind].clamp(max=options.get("importance_max", 2.0))


def is_kept(rho: Tensor, options: Any) -> Tensor:
    """Return 1 for tokens that stay, 0 for others."""
    kind = options.get("mismatch_mask", "none")
    low, high = (0.99, 1.01) if kind == "geometric" else (0.5, 2.0)
    low, high = options.get("mismatch_low", low), options.get("mismatch_high", high)
    mean = rho.prod() ** (1 / max(1, len(rho)))
    looked_at = {"token": rho, "sequence": rho.prod(), "geometric": mean}
    if kind == "none":
        return torch.ones_like(rho)
    return ((looked_at[kind] >= low) & (looked_at[kind] <= high)).to(rho.dtype).expand(len(rho))


def total_loss(name: str, rows: Sequence[Row], outputs: Outputs, options: Any = None) -> Tensor:
    """Return the loss of a step; rows of one rollout share its mean."""
    if name == "dpo":
        return preference_loss(rows, outputs, **(options or {}))
    losses = [row_losses(name, outputs(row), row, options) for row in rows]
    if name in TOKEN_MEANS:
        total = sum(row.weight[0] * x.sum() for row, x in zip(rows, losses, strict=True))
        return total / sum(row.weight[0] * len(x) for row, x in zip(rows, losses, strict=True))
    rollouts: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        if len(losses[i]):
            rollouts.setdefault(("own", i) if row.rollout is None else row.rollout, []).append(i)
    total, weight = torch.zeros((), dtype=losses[0].dtype), 0.0
    for members in rollouts.values():
        num = sum(len(losses[i]) for i in members)
        for i in members:
            share = num if name in OWN_MEANS else 1
            total = total + rows[i].weight[0] * losses[i].sum() / share
            weight += rows[i].weight[0] * len(losses[i]) / num
    assert math.isfinite(weight) and weight > 0
    return total / weight


def preference_loss(
    rows: Sequence[Row], outputs: Outputs, beta: float = 0.1, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean over pairs; every group is one, of one row each side."""
    margins: dict[object, dict[bool, Tensor]] = {}
    for row in rows:
        trained = torch.tensor(row.loss_mask[1:].tolist())
        assert row.ref_logprobs is not None
        logp = outputs(row)[0]
        reference = torch.tensor(row.ref_logprobs[1:].tolist(), dtype=logp.dtype)
        apart = (logp - reference)[trained].sum()
        margins.setdefault(row.group, {})[bool(row.advantages[-1] > 0)] = apart
    losses = []
    for pair in margins.values():
        right = torch.sigmoid(beta * (pair[True] - pair[False]))
        losses.append(
            -(1 - label_smoothing) * torch.log(right) - label_smoothing * torch.log(1 - right)
        )
    return torch.stack(losses).mean()
