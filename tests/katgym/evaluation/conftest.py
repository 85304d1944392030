"""Rollouts for the evaluation tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plain_rollout import plain_rollout

from katgym import Reward, Rollout, RolloutStatus, ToolResult, Turn, assistant
from katgym.environment.failure import FailureKind
from katgym.environment.reward import Component


@pytest.fixture
def make_line() -> Callable[..., Rollout]:
    """Return a maker of rollouts; keyword arguments replace fields, or ask for counts."""

    def make(
        task_id: str = "t0", value: float | None = 1.0, attempt: int = 0, **fields: Any
    ) -> Rollout:
        reward = Reward.invalid(FailureKind.SANDBOX_ERROR, "container died")
        if value is not None:
            reward = Reward(value=value, components={"correct": Component(score=value)})
        return plain_rollout(
            **{
                "env_id": "katgym/Toy-v0",
                "task_id": task_id,
                "task_sha256": "",
                "attempt": attempt,
                "seed": 7,
                "seat": "",
                "reward": reward,
                "status": RolloutStatus.FAILED if value is None else RolloutStatus.TERMINATED,
                "turns": made_turns(fields),
                "wall_s": 0.5,
                **fields,
            }
        )

    return make


def made_turns(wanted: dict[str, Any]) -> list[Turn]:
    """Return turns with these counts, which are taken out, and messages."""
    num_turns = wanted.pop("num_turns", 2)
    num_calls = wanted.pop("num_tool_calls", 3)
    num_parallel = wanted.pop("num_parallel_calls", 2)
    results = [
        ToolResult(call_id=f"call_{n}", name="f", content="", stage=max(0, n - num_parallel + 1))
        for n in range(num_calls)
    ]
    num_sampled = wanted.pop("num_completion_tokens", 20)
    turns = [Turn(answer=assistant()) for _ in range(num_turns)]
    messages = wanted.pop("messages", None)
    if messages is not None:
        turns, given, num_shared = [], [], 0
        for message in messages:
            if message["role"] != "assistant":
                given = [*given, message]
                continue
            turns.append(Turn(messages=given, num_shared_messages=num_shared, answer=message))
            num_shared += len(given) + 1
            given = []
    first = Turn(
        messages=turns[0].messages,
        answer=turns[0].answer,
        tool_results=results,
        num_prompt_tokens=100,
        num_completion_tokens=num_sampled,
    )
    return [first, *turns[1:]]
