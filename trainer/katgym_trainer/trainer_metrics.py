"""The names of a trainer's metrics, and how those of a step's updates become one.

Not here: those of a loss over one update (`forward_backward.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

METRICS = {
    "train/loss": "the loss before the update, over the tokens of the step",
    "train/entropy": "mean entropy of the distributions that predict trained tokens, nats",
    "train/clip_fraction": "share of trained tokens that a clip takes the gradient from",
    "train/ratio": "mean probability under the trainer over that under the policy",
    "train/policy_kl": "estimated KL of the policy from the trainer, nats a token",
    "train/ref_kl": "estimated KL of the trainer from the reference, nats a token",
    "train/reverse_kl": "estimated KL of the policy from its teachers, nats a token",
    "train/reverse_kl/ENV": "of one env",
    "train/importance": "mean weight of a token for the sampler's mismatch",
    "train/mismatch_fraction": "share of trained tokens left out for the sampler's mismatch",
    "train/preference_accuracy": "share of pairs whose chosen side the trainer prefers",
    "train/preference_margin": "mean margin of the chosen side of a pair, times beta",
    "train/kept_tokens": "share of unique tokens that pruning left",
    "train/kept_trained": "share of trained tokens that pruning left",
    "train/kept_advantage_entropy": "share of |advantage| entropy that pruning left",
    "train/logprob_hit_rate": "share of trained tokens whose log-probs came from the cache, so far",
    "train/route_difference": "share of (token, layer) where the trainer's router chooses other"
    " experts than the policy's server told",
    "train/grad_norm": "norm of the gradient over all parameters, before it is shortened",
    "train/learning_rate": "of the step's last update",
    "train/num_updates": "optimizer updates made",
    "train/num_nonfinite_updates": "updates left out because the gradient was not finite",
    "train/is_skipped": "1 if no weight was changed, because there was nothing to train",
    "train/num_rows": "rows that came",
    "train/num_idle_rows": "rows not computed, as their groups' advantages are all 0",
    "train/num_forests": "forests computed",
    "train/num_flat_tokens": "tokens of the rows that were computed",
    "train/num_tokens": "packed tokens: those left when shared prefixes are kept once",
    "train/num_trained_tokens": "trained tokens of the rows that were computed",
    "train/num_edges": "unique ones among them",
    "train/por": "share of the rows' tokens that need not be computed",
    "train/rank_balance": "estimated work of the rank that has most over the mean of all ranks",
    "rollout/reward": "mean reward of the rollouts that a step of `katgym train` is made of",
    "data/epoch": "times that `katgym train` has gone through all rollouts",
    "time/step_s": "the whole step",
    "time/prepare_s": "log-probs, entropies, scales and pruning before the updates",
    "time/pack_s": "making forests",
    "time/forward_backward_s": "forward and backward",
    "time/optimizer_s": "clipping and updates",
}
"""What each metric means; those of updates are means over them, or sums where they count.

A step has those of the options that are on: `ref_kl` only with a KL term, and so on.
"""

_NAMES = {
    "num_flat": "num_flat_tokens",
    "num_tree": "num_tokens",
    "num_trained": "num_trained_tokens",
}


def combine(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of a step's updates under the names of `METRICS`."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        is_count = name.startswith(("num_", "time/"))
        full_name = name if "/" in name else f"train/{_NAMES.get(name, name)}"
        found[full_name] = sum(values) if is_count else sum(values) / len(values)
    if "train/por" in found:
        found["train/por"] = 1 - found["train/num_tokens"] / found["train/num_flat_tokens"]
    return found
