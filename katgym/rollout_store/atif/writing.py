"""Export format `atif`: a trajectory for each path of a session.

    katgym rollouts export STORE --format atif --out trajectories.jsonl

A line is one trajectory, the content of a `trajectory.json`. Not here: reading (`reading.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from katgym.environment.messages import Message, ToolCallMessage
from katgym.play.rollout import Rollout, Turn, prompt_sources
from katgym.rollout_store.atif.trajectory import (
    VERSION,
    AtifAgent,
    AtifMetrics,
    AtifObservation,
    AtifResult,
    AtifStep,
    AtifToolCall,
    AtifTrajectory,
)
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession, reward_value
from katgym.rollout_store.rollouts import as_rollout
from katgym.version import __version__

NOTES = (
    "Written by katgym. Not said here: token ids of prompts and where a path shares them with"
    " another, policy versions, sampling parameters, the stages and errors of tool calls, failed"
    " model calls. Answers that another path of the session has too are is_copied_context."
)


def atif_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a trajectory for each path of a session; one of a session without a message is none."""
    rollout = as_rollout(stored)
    paths: list[Sequence[int]] = [range(len(rollout.turns))]
    if rollout.has_tokens:
        paths = [path.turns for path in rollout.trajectories()]
    for number, turns in enumerate(paths):
        steps = _steps(rollout, turns, stored.record.created_s)
        if not steps:
            continue
        own = [rollout.turns[turn] for turn in turns]
        mark = f"#{number}" if len(paths) > 1 else ""
        yield msgspec.to_builtins(
            AtifTrajectory(
                schema_version=VERSION,
                session_id=stored.record.session_id,
                trajectory_id=stored.record.session_id + mark,
                agent=_agent(rollout, turns),
                steps=steps,
                notes=NOTES,
                final_metrics={
                    "total_prompt_tokens": sum(turn.num_prompt_tokens for turn in own),
                    "total_completion_tokens": sum(turn.num_completion_tokens for turn in own),
                    "total_steps": len(steps),
                },
                extra=_extra(stored, rollout),
            )
        )


def _agent(rollout: Rollout, turns: Sequence[int]) -> AtifAgent:
    tools = next((rollout.turns[t].tools for t in reversed(turns) if rollout.turns[t].tools), ())
    return AtifAgent(
        name="katgym",
        version=__version__,
        model_name=rollout.policy or None,
        tool_definitions=[dict(tool) for tool in tools] or None,
    )


def _steps(rollout: Rollout, turns: Sequence[int], created_s: float) -> list[AtifStep]:
    """Return the messages of a path; a turn that lies on it is told with its figures."""
    told: list[tuple[Message, int | None]] = []
    if turns:
        last = turns[-1]
        told = prompt_sources(rollout.turns, last)
        answer = rollout.turns[last].answer
        told += [] if answer is None else [(answer, last)]
    if not turns or turns[-1] == len(rollout.turns) - 1:
        told += [(message, None) for message in rollout.final_messages]
    steps: list[AtifStep] = []
    for message, turn in told:
        if message["role"] == "tool" and steps:
            _add_result(steps, message)
            continue
        step = _plain_step(message, len(steps) + 1)
        if turn is not None:
            made = rollout.turns[turn]
            is_own = turn in turns
            step = msgspec.structs.replace(
                step,
                timestamp=datetime.fromtimestamp(created_s + made.completed_s, UTC).isoformat(),
                model_name=made.model or None,
                metrics=_metrics(made) if is_own else None,
                is_copied_context=None if is_own else True,
                llm_call_count=1,
                extra=_step_extra(made) or None,
            )
        elif step.source == "agent":  # put there by whoever wrote the prompt
            step = msgspec.structs.replace(step, is_copied_context=True)
        steps.append(step)
    return steps


def _step_extra(turn: Turn) -> dict[str, Any]:
    was_cut = turn.finish_reason == "length"
    extra = {"finish_reason": "length"} if was_cut else {}
    return {**extra, "constraint": turn.constraint} if turn.constraint else extra


def _plain_step(message: Message, number: int) -> AtifStep:
    sources: Mapping[str, Any] = {"system": "system", "assistant": "agent"}
    source = sources.get(message["role"], "user")
    is_agent = source == "agent"
    calls = [_call(call) for call in message.get("tool_calls", ())]
    return AtifStep(
        step_id=number,
        source=source,
        message=message["content"],
        reasoning_content=(message.get("reasoning_content") or None) if is_agent else None,
        tool_calls=(calls or None) if is_agent else None,
    )


def _call(call: ToolCallMessage) -> AtifToolCall:
    """Return a call; text that is not what its arguments look like in JSON is kept beside them."""
    text = call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    extra: dict[str, Any] = {}
    if not isinstance(arguments, dict):
        arguments = {}
    if json.dumps(arguments, ensure_ascii=False) != text:
        extra["arguments_text"] = text
    if "error" in call:
        extra["error"] = call["error"]
    return AtifToolCall(
        tool_call_id=call["id"],
        function_name=call["function"]["name"],
        arguments=arguments,
        extra=extra or None,
    )


def _add_result(steps: list[AtifStep], message: Message) -> None:
    """Put a tool's message into the last step, which an id has to be of."""
    ids = {call.tool_call_id for call in steps[-1].tool_calls or ()}
    call_id = message.get("tool_call_id")
    before = steps[-1].observation
    result = AtifResult(
        source_call_id=call_id if call_id in ids else None, content=message["content"]
    )
    results = [*(before.results if before is not None else ()), result]
    steps[-1] = msgspec.structs.replace(steps[-1], observation=AtifObservation(results=results))


def _metrics(turn: Turn) -> AtifMetrics:
    tokens = turn.tokens
    return AtifMetrics(
        prompt_tokens=turn.num_prompt_tokens or None,
        completion_tokens=turn.num_completion_tokens or None,
        completion_token_ids=None if tokens is None else list(tokens.completion_ids),
        logprobs=None if tokens is None else list(tokens.policy_logprobs) or None,
    )


def _extra(stored: StoredSession, rollout: Rollout) -> dict[str, Any]:
    trust = rollout.reward.trust
    facts = ("env_id", "plugin_version", "task_id", "task_sha256", "split", "seed", "attempt")
    return {
        **{name: getattr(rollout, name) for name in (*facts, "seat")},
        "env_kwargs": dict(rollout.env_kwargs),
        "group_id": stored.record.group_id,
        "status": str(stored.record.status),
        "reward": reward_value(stored.record),
        "reward_components": {n: c.score for n, c in rollout.reward.components.items()},
        "is_success": rollout.is_success,
        "trust": None if trust is None else str(trust),
        "trust_reason": rollout.reward.trust_reason,
    }


ATIF = Exporter(
    rows=atif_rows,
    columns={
        "schema_version": ColumnType.TEXT,
        "session_id": ColumnType.TEXT,
        "trajectory_id": ColumnType.TEXT,
        "agent": ColumnType.JSON,
        "steps": ColumnType.JSON,
        "notes": ColumnType.TEXT,
        "final_metrics": ColumnType.JSON,
        "extra": ColumnType.JSON,
    },
)
