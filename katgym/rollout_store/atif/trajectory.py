"""ATIF 1.8 as data: what katgym writes and reads of it.

Not here: from and to rollouts (`writing.py`, `reading.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

VERSION = "ATIF-v1.8"


class AtifToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a step. `extra`: `arguments_text`, if JSON cannot say it alike, and `error`."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class AtifContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message: text, or an image or audio that lies elsewhere."""

    type: str
    text: str | None = None


AtifContent = str | list[AtifContentPart] | None


class AtifResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a call, or of what the agent did without one."""

    source_call_id: str | None = None
    content: AtifContent = None


class AtifObservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a step."""

    results: list[AtifResult] = []


class AtifMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of a model call; prompt tokens count the whole prompt."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class AtifStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message, with what came of it."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: AtifContent
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AtifToolCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None
    extra: dict[str, Any] | None = None
    """Of katgym's: `finish_reason`, where that is "length", and `Turn.constraint`."""


class AtifAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who acted, and the tools it had."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class AtifTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation, but for `subagent_trajectories`, which may be read of others'.

    `extra` of katgym's: facts of the rollout, and `reward` as a number.
    """

    schema_version: str
    agent: AtifAgent
    steps: list[AtifStep]
    session_id: str | None = None
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None


def is_atif(data: Any) -> bool:
    """Return whether a JSON value says that it is a trajectory of ATIF."""
    return isinstance(data, dict) and str(data.get("schema_version", "")).startswith("ATIF-v1.")
