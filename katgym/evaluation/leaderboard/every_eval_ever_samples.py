"""Rollouts as instance-level records of the Every Eval Ever schema.

Not here: the aggregate that they belong to (`every_eval_ever.py`). A rollout without a valid reward
has no record: the schema wants a score, and 0 would be a wrong one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from katgym.environment.reward import Success
from katgym.evaluation.statistics.attempts import spent_tokens
from katgym.play.rollout import Rollout

SCHEMA_VERSION = "0.3.0"


def sample(
    line: Rollout,
    *,
    evaluation_id: str,
    result_id: str,
    model_id: str,
    success: Success,
) -> dict[str, Any]:
    """Return the record of one scored rollout, which holds its messages.

    `answer_attribution` is empty: a rubric judges the env's final state, and extracts no answer.
    """
    assert line.reward.value is not None
    messages = line.messages
    opening = itertools.takewhile(lambda message: message.get("role") != "assistant", messages)
    prompt = "\n\n".join(_text(message.get("content")) or "" for message in opening)
    is_agentic = line.num_tool_calls > 0
    is_single = line.num_turns == 1 and not is_agentic
    kind = "agentic" if is_agentic else "single_turn" if is_single else "multi_turn"
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id,
        "evaluation_result_id": result_id,
        "model_id": model_id,
        "evaluation_name": line.env_id,
        "sample_id": line.task_id,
        "sample_hash": hashlib.sha256(prompt.encode()).hexdigest(),
        "interaction_type": kind,
        "input": {"raw": prompt, "reference": []},
        "answer_attribution": [],
        "evaluation": {
            "score": line.reward.value,
            "is_correct": success.is_met(line.reward),
            "num_turns": line.num_turns or None,
            "tool_calls_count": line.num_tool_calls,
        },
        "token_usage": {
            "input_tokens": spent_tokens(line)[0],
            "output_tokens": spent_tokens(line)[1],
            "total_tokens": sum(spent_tokens(line)),
        },
        "performance": {"latency_ms": 1000.0 * line.wall_s},
        "metadata": _metadata(line),
    }
    if is_single:
        answers = [m for m in messages if m.get("role") == "assistant"]
        record["output"] = {"raw": [_text(m.get("content")) or "" for m in answers]}
        traces = [_text(m["reasoning_content"]) for m in answers if m.get("reasoning_content")]
        if traces:
            record["output"]["reasoning_trace"] = traces
    else:
        record["messages"] = [_message(index, m) for index, m in enumerate(messages)]
    if line.reward.failure_kind is not None:
        record["error"] = f"{line.reward.failure_kind}: {line.reward.reason}"
    return record


def _metadata(line: Rollout) -> dict[str, str]:
    data = {"attempt": str(line.attempt), "status": str(line.status)}
    if line.seed is not None:
        data["seed"] = str(line.seed)
    if line.task_sha256:
        data["task_sha256"] = line.task_sha256
    for name, component in line.reward.components.items():
        data[f"reward.{name}"] = f"{component.score!r} (weight {component.weight!r})"
    return data


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "turn_idx": index,
        "role": str(message.get("role")),
        "content": _text(message.get("content")),
    }
    if message.get("reasoning_content"):
        record["reasoning_trace"] = _text(message["reasoning_content"])
    if message.get("tool_calls"):
        record["tool_calls"] = [
            {
                "id": str(call.get("id", "")),
                "name": str(call.get("function", {}).get("name", "")),
                "arguments": _arguments(call.get("function", {}).get("arguments", "")),
            }
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id"):
        record["tool_call_id"] = [str(message["tool_call_id"])]
    return record


def _arguments(arguments: object) -> dict[str, str]:
    """Return a call's arguments as strings; what is no JSON object stands under `raw`."""
    parsed = arguments
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            return {"raw": arguments}
    if not isinstance(parsed, Mapping):
        return {"raw": _text(arguments) or ""}
    return {str(name): _text(value) or "" for name, value in parsed.items()}


def _text(value: object) -> str | None:
    """Return text as it is and anything else as JSON; None stays None."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
