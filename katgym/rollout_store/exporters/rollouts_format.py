"""Format `rollouts`: sessions as the rollouts that `katgym eval` writes, for `katgym train`.

In JSON Lines every line is one of `Rollout.to_json`; in Parquet each field is JSON text.

Not here: how a session becomes a rollout (`katgym.rollout_store.rollouts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout

FIELDS = (
    *("env_id", "plugin_version", "policy", "task_id", "task_sha256", "split", "attempt", "seed"),
    *("sampling_seed", "episode_id", "seat", "env_kwargs", "artifacts", "reward", "status"),
    *("failure_kind", "reason", "num_turns", "num_tool_calls", "num_parallel_calls"),
    *("num_prompt_tokens", "num_completion_tokens", "num_retries", "wall_s", "sampling"),
    *("messages", "tokens"),
)


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a session as one rollout."""
    yield as_rollout(stored).to_json()


EXPORTER = Exporter(rows=rows, columns=dict.fromkeys(FIELDS, ColumnType.JSON))
