"""Bounds of what a plan may ask of a model: rollouts, calls, tokens, before anything is played.

Not here: prices (`leaderboard/leaderboard_entry.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from katgym.evaluation.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBounds:
    """What a plan has at most; what is played again after infrastructure faults comes on top.

    Example:
        PlanBounds(num_rollouts=20, num_calls=160, num_completion_tokens=81920)
    """

    num_rollouts: int
    num_calls: int
    """Calls of the model."""
    num_completion_tokens: int
    """Sampled tokens."""

    @classmethod
    def of(cls, plan: Plan) -> PlanBounds:
        """Count by the envs' turns, the limits of an episode and the tokens of a turn."""
        limits, num_calls, num_tokens = plan.config.limits, 0, 0
        for item in plan.envs:
            num_rollouts = len(item.task_sha256) * plan.config.group_size
            turns = min(limits.max_turns or item.env.max_turns, item.env.max_turns)
            tokens = turns * plan.config.sampling.max_tokens
            num_calls += num_rollouts * turns
            num_tokens += num_rollouts * min(limits.max_tokens or tokens, tokens)
        return cls(num_rollouts=len(plan), num_calls=num_calls, num_completion_tokens=num_tokens)

    def share(self, num_rollouts: int) -> PlanBounds:
        """Return those of some of the rollouts, where all have the same."""
        return PlanBounds(
            num_rollouts=num_rollouts,
            num_calls=self.num_calls * num_rollouts // self.num_rollouts,
            num_completion_tokens=self.num_completion_tokens * num_rollouts // self.num_rollouts,
        )
