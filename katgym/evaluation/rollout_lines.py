"""Lines of `rollouts.jsonl`, checked and typed for evaluation.

Keys that are not listed here are ignored, so that files of newer versions can be read. Not here:
reading the file (`store.py`), the whole record with its tokens (`katgym.rollout.Rollout`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import msgspec

from katgym.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentLine:
    """One named part of a reward."""

    score: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardLine:
    """A reward; `value` is None exactly when `is_valid` is False."""

    value: float | None
    is_valid: bool
    failure_kind: str | None
    components: dict[str, ComponentLine] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLine:
    """What evaluation reads of one rollout.

    Example:
        {"env_id": "katgym/Math-v0", "task_id": "gsm8k-17", "attempt": 0, "seed": 17,
         "reward": {"value": 1.0, "is_valid": true, "failure_kind": null, ...}, ...}
    """

    env_id: str
    task_id: str
    attempt: Count
    seed: int | None
    reward: RewardLine
    status: str
    num_turns: Count
    num_tool_calls: Count
    num_parallel_calls: Count
    num_prompt_tokens: Count
    num_completion_tokens: Count
    wall_s: Seconds
    task_sha256: str = ""
    seat: str = ""
    messages: list[dict[str, Any]] | None = None
    """None when the line has none, or when the reader did not ask for them."""


_FIELDS = frozenset(f.name for f in fields(RolloutLine))


def parse_lines(
    lines: Iterable[Mapping[str, Any]], *, has_messages: bool = False
) -> Iterator[RolloutLine]:
    """Yield each line checked; messages are dropped unless `has_messages`, to keep memory small.

    `UsageError` (a `ValueError`) names the line, counted from 1, and the field: one that is missing
    or of the wrong type, a reward that contradicts itself, or an attempt that occurs twice.
    """
    wanted = _FIELDS if has_messages else _FIELDS - {"messages"}
    seen: dict[tuple[str, str, int, str], int] = {}
    for number, raw in enumerate(lines, start=1):
        if not isinstance(raw, Mapping):
            raise UsageError(f"line {number}: a rollout is a JSON object, got {raw!r:.80}")
        try:
            line = msgspec.convert({k: v for k, v in raw.items() if k in wanted}, RolloutLine)
        except msgspec.ValidationError as e:
            raise UsageError(
                f"line {number}: {e}. Lines are as katgym writes them to rollouts.jsonl."
            ) from e
        _check_reward(line.reward, number)
        if has_messages and line.messages is None:
            raise UsageError(f"line {number}: missing field 'messages', which this export needs")
        key = (line.env_id, line.task_id, line.attempt, line.seat)
        if key in seen:
            raise UsageError(
                f"line {number}: task {line.task_id!r}, attempt {line.attempt!r} of"
                f" {line.env_id!r} is already on line {seen[key]}; each attempt counts once"
            )
        seen[key] = number
        yield line


def _check_reward(reward: RewardLine, number: int) -> None:
    value = reward.value
    if reward.is_valid and (value is None or not math.isfinite(value)):
        raise UsageError(
            f"line {number}: reward.value of a valid reward is a finite number, got {value!r}"
        )
    if not reward.is_valid and value is not None:
        raise UsageError(f"line {number}: reward.value of an invalid reward is null, got {value!r}")
