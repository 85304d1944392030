"""Folders of runs whose rollouts were put together by hand: evaluations, training runs, stores.

Not here: their rollouts (`made_hunts.py`); runs that were played.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_hunts import ENV_ID, Encode, made_group

from katgym import Rollout
from katgym.rollout_store import RolloutStore, record_rollout
from katgym.rollout_store.rollouts import as_session


def write_evaluation(
    folder: Path, rollouts: Sequence[Rollout], *, num_tasks: int = 2, is_finished: bool = True
) -> Path:
    """Write an evaluation's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        "env_id": ENV_ID, "kwargs": {"level": 3}, "plugin_version": "0.1.0", "num_tasks": num_tasks,
        "tasks_sha256": "0" * 64, "tasks": {}, "tools": [],
    }  # fmt: skip
    lock = {
        "format": 1, "created": "2026-03-01T10:00:00+00:00", "katgym_version": "0.1.0",
        "policy": "hf:tiny", "split": "train", "seed": 0, "group_size": 6,
        "sampling": {"temperature": 1.0}, "limits": {}, "envs": [env],
    }  # fmt: skip
    (folder / "lock.json").write_text(json.dumps(lock))
    sessions = []
    for number, rollout in enumerate(rollouts):
        group_id = ascii(f"{rollout.env_id}/{rollout.task_id}")[1:-1] + "/0123456789ab"
        ended_s = 1.7e9 + 100 * number
        sessions.append(as_session(rollout, group_id=group_id, metadata={}, ended_s=ended_s))
    with RolloutStore.open(folder) as store:
        store.add_sessions(sessions)
    if is_finished:
        (folder / "summary.json").write_text("{}")
    return folder


def write_training_lock(folder: Path) -> Path:
    """Write the folder of a training run that has done nothing yet."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = {
        "format": 1, "run_id": "c0ffee00", "created": "2026-03-01T10:00:00+00:00",
        "versions": {"katgym": "0.1.0", "torch": "2.11"},
        "run": {
            "kind": "rl", "model": {"path": "models/tiny"}, "envs": [{"id": f"{ENV_ID}?level=3"}],
            "trainer": {"loss": "dr_grpo", "learning_rate": 1e-5, "max_tokens": 16384},
            "loop": {"algorithm": "grpo", "seed": 0},
        },
        "data": None,
    }  # fmt: skip
    (folder / "lock.json").write_text(json.dumps(lock))
    return folder


def made_metrics(num_steps: int) -> list[dict[str, Any]]:
    """Return the lines of a run that learns."""
    rng = random.Random(1)
    lines = []
    for step in range(1, num_steps + 1):
        done = step / num_steps
        wave = 0.06 * rng.gauss(0, 1)
        wait, train = 8 + 3 * rng.random(), 4 + rng.random()
        lines.append(
            {
                "step": step,
                "rollout/reward": 0.15 + 0.62 * done**0.7 + wave,
                "rollout/turns": 4.6 - 1.5 * done + rng.gauss(0, 0.15),
                "rollout/tool_calls_per_turn": 1.6 + 2.0 * done + rng.gauss(0, 0.2),
                "rollout/parallel_calls_per_turn": 1.2 + 2.2 * done + rng.gauss(0, 0.2),
                "rollout/staleness": rng.choice((0, 0, 1, 1, 2)),
                "rollout/open_groups": 0.4 + 0.2 * rng.random(),
                "train/loss": 0.02 * rng.gauss(0, 1) - 0.03 * done,
                "train/entropy": 1.4 * math.exp(-1.2 * done) + 0.05 * rng.random(),
                "train/grad_norm": 0.6 + 0.3 * rng.expovariate(1.5),
                "train/policy_kl": 0.002 + 0.002 * rng.random(),
                "train/mismatch_fraction": 0.004 * rng.random(),
                "train/por": 0.55 + 0.05 * rng.random(),
                "train/learning_rate": 1e-5,
                "eval/success": 0.5,
                "rate/sampled_tokens_per_s": 900 + 60 * rng.gauss(0, 1),
                "time/wait_s": wait,
                "time/forward_backward_s": train,
                "time/sync_s": 0.8,
                "time/probe_s": 0.3,
                "time/step_s": train + 0.2,
                "time/total_s": wait + train + 1.4,
            }
        )
    return lines


def write_training(
    folder: Path, encode: Encode, *, num_steps: int = 4, num_groups: int = 2, every: int = 1
) -> Path:
    """Write the folder of a training run with a store of rollouts."""
    write_training_lock(folder)
    lines = made_metrics(num_steps)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluated = [
        {"step": step, "env": ENV_ID, "success": s, "low": max(0.0, s - 0.11), "high": s + 0.1,
         "reward": s, "num_rollouts": 64, "num_invalid": 0}
        for step in range(0, num_steps + 1, max(1, num_steps // 5))
        for s in (0.18 + 0.6 * (step / num_steps) ** 0.8,)
    ]  # fmt: skip
    (folder / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluated))
    with RolloutStore.open(folder / "rollouts") as store:
        for step in range(1, num_steps + 1, every):
            for task in range(num_groups):
                skill = 0.15 + 0.7 * step / num_steps
                group = made_group(encode, 100 * task + step, skill=skill, version=step - 1)
                for rollout in group:
                    add_session(store, rollout, step=step, group=group)
    return folder


def add_session(
    store: RolloutStore, rollout: Rollout, *, step: int, group: Sequence[Rollout]
) -> None:
    """Put a rollout into a store as training does."""
    rewards = [r.reward.value for r in group if r.reward.value is not None]
    value = rollout.reward.value
    more = {} if value is None else {"advantage": value - sum(rewards) / len(rewards)}
    group_id = f"step{step}-{rollout.task_id}"
    record_rollout(store, rollout, group_id=group_id, metadata={"step": step, **more})
