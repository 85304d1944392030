"""The names of a run's own metrics, and how those of rollouts are worked out.

Not here: those of an optimizer step (`trainer_metrics.py`), of held-out tasks (`held_out.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from katgym.environment.failure import RolloutStatus
from katgym.evaluation.statistics.intervals import t_interval
from katgym.play.rollout import Rollout
from katgym.policies.version_span import one_span
from katgym.system.processes import peak_memory_bytes
from katgym_trainer.config.rl_config import RolloutsConfig
from katgym_trainer.rl.group_stream import Taken

RL_METRICS = {
    "rollout/reward": "mean reward of the valid rollouts",
    "rollout/reward_low": "lower end of its 95 % interval, clustered by task",
    "rollout/reward_high": "upper end",
    "rollout/success": "share of valid rollouts with a reward of 1 or more",
    "rollout/num_rollouts": "rollouts of the step",
    "rollout/num_invalid": "those without a valid reward, which nothing is learned from",
    "rollout/invalid/KIND": "those of one failure kind",
    "rollout/num_retries": "times a rollout was played again after an infrastructure fault",
    "rollout/open_groups": "share of groups with two rewards that differ",
    "rollout/solved_groups": "share of groups in which all rollouts succeeded",
    "rollout/num_refused": "groups of equal rewards in whose place others were played",
    "rollout/num_dropped": "groups given up because their weights were too old",
    "rollout/turns": "mean model calls of a valid rollout",
    "rollout/turns_per_success": "model calls of all valid rollouts over those that succeeded",
    "rollout/tool_calls_per_turn": "tool calls over model calls",
    "rollout/parallel_calls_per_turn": "tool calls that ran beside others over model calls",
    "rollout/truncated": "share of valid rollouts that a budget ended",
    "rollout/completion_tokens": "mean sampled tokens of a rollout",
    "rollout/max_completion_tokens": "most sampled tokens of a rollout",
    "rollout/staleness": "steps that the weights behind a sampled token are old, mean over tokens",
    "rollout/max_staleness": "of the oldest token",
    "rollout/too_old": "share of sampled tokens that are older than max_staleness steps, which are "
    "not trained on: of groups that play on with stale = 'partial'",
    "rollout/constrained": "share of sampled tokens that were sampled under a constraint "
    "(`Turn.constraint`), which are context and not trained on",
    "rollout/constrained_turns": "share of model calls with such an answer",
    "rollout/model_share": "share of rollouts' time in which they waited for the policy",
    "lesson/ENV": "lesson of an env with a curriculum, from 0",
    "eval/success": "share of held-out rollouts that succeeded, mean over envs",
    "eval/headline": "success or mean reward, as each held-out env says, mean over envs",
    "eval/ENV/success": "of one env",
    "eval/store/success": "of held-out sessions that ended in the store since the step before",
    "eval/store/reward": "their mean reward",
    "eval/store/num_rollouts": "how many have a valid one",
    "sync/difference": "largest difference of a log-probability between trainer and policy",
    "sync/num_restarts": "servers that were started again so far",
    "time/wait_s": "the trainer waited for groups",
    "time/sync_s": "waiting for weights on their way to the policy",
    "time/pause_s": "of that, servers stood still",
    "time/probe_s": "of that, the check",
    "time/asleep_s": "servers on the trainer's devices took no requests, from the step's beginning "
    "until they had its weights",
    "time/evaluate_s": "held-out tasks were played",
    "time/save_s": "the checkpoint of the step before was written",
    "time/total_s": "the whole step, from the end of the one before",
    "rate/sampled_tokens_per_s": "sampled tokens over the whole step's time",
    "rate/trained_tokens_per_s": "tokens of the rows that were computed over the whole step's time",
    "rate/trainer_idle": "share of the step in which no optimizer step was being taken",
    "rate/sampler_idle": "share of the step in which no rollout was being played",
    "memory/resident_mib": "most memory of this process so far, MiB",
    "memory/gpu_mib": "most memory of the GPU so far, MiB",
}
"""What each metric means; those of the optimizer step are in `METRICS`."""


def rollout_metrics(taken: Taken, version: int, sizes: RolloutsConfig) -> dict[str, float]:
    """Return the metrics of the groups of a step.

    version: weights that are trained on them.
    """
    groups = taken.groups
    rollouts = [rollout for played in groups for rollout in played.group.rollouts]
    valid = [rollout for rollout in rollouts if rollout.reward.is_valid]
    kinds = Counter(str(r.failure_kind) for r in rollouts if not r.reward.is_valid)
    num = max(1, len(groups))
    # How many steps the weights are old that sampled the tokens. A token of which they are not
    # known is as old as the first, version 0; an empty answer has a version, too.
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    records = [turn.tokens for turn in turns if turn.tokens]
    spans = [
        span
        for record in records
        for span in record.version_spans or one_span(0, len(record.completion_ids))
    ]
    ages = [(version - span.version, span.end - span.start) for span in spans]
    num_tokens = sum(count for _, count in ages)
    held = [turn for turn in turns if turn.constraint]
    num_held = sum(len(turn.tokens.completion_ids) for turn in held if turn.tokens)
    return {
        **_valid_metrics(valid),
        "rollout/num_rollouts": len(rollouts),
        "rollout/num_invalid": len(rollouts) - len(valid),
        **{f"rollout/invalid/{kind}": count for kind, count in kinds.items()},
        "rollout/num_retries": sum(rollout.num_retries for rollout in rollouts),
        "rollout/open_groups": sum(len(set(p.group.rewards)) > 1 for p in groups) / num,
        "rollout/solved_groups": sum(p.group.is_solved for p in groups) / num,
        "rollout/num_refused": len(taken.refused),
        "rollout/num_dropped": taken.num_dropped,
        "rollout/staleness": sum(age * count for age, count in ages) / max(1, num_tokens),
        "rollout/too_old": sum(n for age, n in ages if age > sizes.max_staleness)
        / max(1, num_tokens),
        "rollout/max_staleness": max((age for age, count in ages if count), default=0),
        "rollout/constrained": num_held / max(1, num_tokens),
        "rollout/constrained_turns": len(held) / max(1, len(turns)),
    }


def memory_metrics() -> dict[str, float]:
    """Return how much memory the process has had at most."""
    most = peak_memory_bytes()
    found = {} if most is None else {"memory/resident_mib": most / 2**20}
    if torch.cuda.is_available():
        found["memory/gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return found


def _valid_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    if not rollouts:
        return {}
    num = len(rollouts)
    rows = [(f"{r.env_id} {r.task_id}", r.reward.value_or_nan()) for r in rollouts]
    num_turns = max(1, sum(rollout.num_turns for rollout in rollouts))
    num_passed = sum(rollout.is_success for rollout in rollouts)
    tokens = [rollout.num_completion_tokens for rollout in rollouts]
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    model_s = sum(turn.completed_s - turn.started_s for turn in turns)
    env_s = sum(turn.ended_s - turn.completed_s for turn in turns)
    found = {
        "rollout/reward": sum(value for _, value in rows) / num,
        "rollout/success": num_passed / num,
        "rollout/turns": num_turns / num,
        "rollout/tool_calls_per_turn": sum(r.num_tool_calls for r in rollouts) / num_turns,
        "rollout/parallel_calls_per_turn": sum(r.num_parallel_calls for r in rollouts) / num_turns,
        "rollout/truncated": sum(r.status is RolloutStatus.TRUNCATED for r in rollouts) / num,
        "rollout/completion_tokens": sum(tokens) / num,
        "rollout/max_completion_tokens": max(tokens),
        "rollout/model_share": model_s / max(1e-9, model_s + env_s),
    }
    if num_passed:
        found["rollout/turns_per_success"] = num_turns / num_passed
    interval = t_interval(rows) if len({task for task, _ in rows}) > 1 else None
    if interval is not None:
        found |= {"rollout/reward_low": interval.low, "rollout/reward_high": interval.high}
    return found
