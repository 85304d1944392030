"""Rollout lines for the evaluation tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Line = dict[str, Any]


@pytest.fixture
def make_line() -> Callable[..., Line]:
    """Return a maker of `rollouts.jsonl` objects; keyword arguments replace fields."""

    def make(
        task_id: str = "t0", value: float | None = 1.0, attempt: int = 0, **fields: Any
    ) -> Line:
        is_valid = value is not None
        return {
            "env_id": "katgym/Toy-v0",
            "task_id": task_id,
            "attempt": attempt,
            "seed": 7,
            "reward": {
                "value": value,
                "components": {"correct": {"score": value, "weight": 1.0}} if is_valid else {},
                "is_valid": is_valid,
                "failure_kind": None if is_valid else "sandbox_error",
                "reason": "" if is_valid else "container died",
            },
            "status": "terminated" if is_valid else "failed",
            "num_turns": 2,
            "num_tool_calls": 3,
            "num_parallel_calls": 2,
            "num_prompt_tokens": 100,
            "num_completion_tokens": 20,
            "wall_s": 0.5,
            "messages": [],
            "tokens": {"turns": []},
            **fields,
        }

    return make
