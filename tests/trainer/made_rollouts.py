"""Rollouts put together by hand: tokens, results and messages as a test wants them.

Not here: rollouts that were played (`test_teacher_tokens.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from plain_rollout import plain_rollout

from katgym import (
    FailureKind,
    Reward,
    Rollout,
    TokenRecord,
    ToolErrorKind,
    ToolResult,
    Turn,
    assistant,
    user,
)
from katgym.play.rollout import parent_of
from katgym.policies.version_span import one_span


def record(
    parent: int | None,
    num_shared: int,
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    version: int = 0,
    **more: Any,
) -> TokenRecord:
    """Return the tokens of a turn; token x was sampled with log-prob -x / 10, by one version."""
    told = {
        "policy_logprobs": [-token / 10 for token in completion],
        "version_spans": one_span(version, len(completion)),
        **more,
    }
    return TokenRecord(
        parent=parent, num_shared=num_shared, prompt_ids=list(prompt),
        completion_ids=list(completion), **told,
    )  # fmt: skip


def turn(
    tokens: TokenRecord | None,
    *errors: ToolErrorKind | None,
    calls: Sequence[tuple[str, str]] = (),
    finish_reason: str = "stop",
    num_completion_tokens: int = 0,
    constraint: str = "",
) -> Turn:
    """Return a turn with one result for each error (None for a good one)."""
    results = [
        ToolResult(call_id=str(i), name="f", content="", error=e) for i, e in enumerate(errors)
    ]
    answer = assistant()
    if calls:
        answer["tool_calls"] = [
            {"id": str(i), "type": "function", "function": {"name": name, "arguments": text}}
            for i, (name, text) in enumerate(calls)
        ]
    return Turn(
        messages=[user("go on")], answer=answer, finish_reason=finish_reason, tokens=tokens,
        num_completion_tokens=num_completion_tokens, tool_results=results,
        sampling={"constraint": constraint} if constraint else {},
    )  # fmt: skip


def rollout_of(
    *turns: Turn, reward: float | None = 1.0, episode_id: str = "e", **more: Any
) -> Rollout:
    """Return a rollout of these turns; a reward of None is not valid."""
    placed: list[Turn] = []
    for index, made in enumerate(turns):
        parent = parent_of([*placed, made], index)
        num_shared = 0 if parent is None else 2 * (parent + 1)
        asked = [m for turn in placed[num_shared // 2 :] for m in (user("go on"), turn.answer)]
        placed.append(
            msgspec.structs.replace(
                made, num_shared_messages=num_shared, messages=[*asked, user("go on")]
            )
        )
    kind = FailureKind.SANDBOX_ERROR
    told = Reward.invalid(kind, "gone") if reward is None else Reward(value=reward)
    return plain_rollout(**{"episode_id": episode_id, "reward": told, "turns": placed, **more})


def short_rollout(episode_id: str, reward: float | None, *completion: int, **more: Any) -> Rollout:
    """Return a rollout of one turn whose prompt is 1 2."""
    return rollout_of(
        turn(record(None, 0, [1, 2], completion)), reward=reward, episode_id=episode_id, **more
    )


def even_rollout(episode_id: str, reward: float, completion: Sequence[int]) -> Rollout:
    """Return a rollout of one turn whose prompt is 3 4, all tokens of log-prob -4."""
    tokens = record(None, 0, [3, 4], completion, policy_logprobs=[-4.0] * len(completion))
    return rollout_of(turn(tokens), reward=reward, episode_id=episode_id)
