"""A rollout that ended well, for tests that care about some of its fields only.

Not here: rollouts that were played, turns and their tokens.
"""

from __future__ import annotations

import json
from typing import Any

from katgym import Reward, Rollout, RolloutStatus, Sampling, assistant, user


def plain_rollout(**fields: Any) -> Rollout:
    """Return a rollout with these fields; without turns, if none are given."""
    return Rollout(
        **{
            "env_id": "katgym/Echo-v0",
            "plugin_version": "1.0",
            "policy": "hf:tiny",
            "task_id": "train-000001",
            "task_sha256": "0" * 64,
            "split": "train",
            "seed": 3,
            "attempt": 0,
            "episode_id": "e",
            "seat": "player",
            "status": RolloutStatus.TERMINATED,
            "reward": Reward(value=1.0),
            "turns": [],
            "final_messages": [] if fields.get("turns") else [user("go on"), assistant()],
            "sampling": Sampling(),
            "sampling_seed": 11,
            **fields,
        }
    )


def plain_json(rollout: Rollout) -> Any:
    """Return a rollout as it comes out of a JSON file: lists for tuples."""
    return json.loads(json.dumps(rollout.to_json()))
