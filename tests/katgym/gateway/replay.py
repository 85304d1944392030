"""Recorded log-probabilities against those of the model itself.

Not here: recording (`test_gateway_vllm.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from katgym.play.rollout import Rollout


def replayed_difference(model: Any, rollout: Rollout, *, temperature: float = 1.0) -> float:
    """Return by how much a rollout's log-probabilities differ from a model's, at most.

    Every path from the first prompt to a last answer is run anew, whole. Raises if none holds a
    token that is trained.
    """
    worst = 0.0
    paths = [path for path in rollout.trajectories() if any(path.loss_mask)]
    assert paths
    for path in paths:
        ids = torch.tensor([list(path.token_ids)])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].float() / temperature
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
        recorded = torch.tensor(list(path.policy_logprobs), dtype=torch.float64)[1:]
        is_sampled = torch.tensor(list(path.loss_mask))[1:]
        differences = (expected - recorded)[is_sampled].abs()
        assert not differences.isnan().any()
        worst = max(worst, float(differences.max()))
    return worst
