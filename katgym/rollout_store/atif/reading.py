"""Trajectories of ATIF as rollouts, for SFT: messages, tools, reward; tokens are made anew.

What no model wrote here and now is context and no answer: steps with `is_copied_context` or an
`llm_call_count` of 0. Not here: writing (`writing.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from katgym.environment.failure import RolloutStatus
from katgym.environment.messages import Message, ToolCallMessage, system, user
from katgym.environment.reward import Reward
from katgym.environment.scheduler import ToolResult
from katgym.errors import UsageError
from katgym.play.rollout import Rollout, Turn
from katgym.rollout_store.atif.trajectory import AtifContent, AtifStep, AtifToolCall, AtifTrajectory

NO_REWARD = "the trajectory tells no reward"


def atif_rollouts(data: Mapping[str, Any]) -> Iterator[Rollout]:
    """Yield a trajectory and those of its sub-agents that are in it, each as a rollout.

    A trajectory without a number at `extra.reward` has the reward 0. `UsageError` says what does
    not fit: another format, images, steps without any answer.
    """
    try:
        trajectory = msgspec.convert(data, AtifTrajectory)
    except msgspec.ValidationError as e:
        raise UsageError(f"not a trajectory of ATIF: {e}") from e
    yield _rollout(trajectory, data)
    for given in data.get("subagent_trajectories") or ():
        yield from atif_rollouts(given)


class _Facts(msgspec.Struct, frozen=True):
    """What katgym's own trajectories say of the episode; of others' nothing is taken for it."""

    env_id: str = ""
    plugin_version: str = ""
    task_id: str = ""
    task_sha256: str = ""
    split: str = ""
    seed: int | None = None
    attempt: int = 0
    seat: str = "agent"

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> _Facts:
        try:
            return msgspec.convert(extra, cls)
        except msgspec.ValidationError:  # names that mean other things
            return cls()


def _rollout(trajectory: AtifTrajectory, data: Mapping[str, Any]) -> Rollout:
    agent, extra = trajectory.agent, trajectory.extra or {}
    name = trajectory.trajectory_id or trajectory.session_id
    if name is None:
        text = json.dumps(data, sort_keys=True)
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    turns, rest = _turns(trajectory)
    value = extra.get("reward")
    is_told = isinstance(value, (int, float)) and math.isfinite(value)
    facts = _Facts.of(extra)
    return Rollout(
        env_id=facts.env_id,
        plugin_version=facts.plugin_version,
        policy=agent.model_name or agent.name,
        task_id=facts.task_id or name,
        task_sha256=facts.task_sha256,
        split=facts.split,
        seed=facts.seed,
        attempt=facts.attempt,
        episode_id=name,
        seat=facts.seat,
        status=RolloutStatus.TERMINATED,
        reward=Reward(value=value) if is_told else Reward(value=0.0, reason=NO_REWARD),
        turns=turns,
        final_messages=rest,
    )


def _turns(trajectory: AtifTrajectory) -> tuple[list[Turn], list[Message]]:
    """Return the turns, one an answer, and the messages after the last."""
    turns: list[Turn] = []
    waiting: list[Message] = []
    num_told = 0
    for step in trajectory.steps:
        message = _message(step)
        replies = _replies(step)
        if step.source != "agent" or step.is_copied_context or step.llm_call_count == 0:
            waiting += [message, *replies]
            continue
        metrics = step.metrics
        extra = step.extra or {}
        was_cut = extra.get("finish_reason") == "length"
        turns.append(
            Turn(
                messages=waiting,
                num_shared_messages=num_told,
                answer=message,
                tools=tuple(trajectory.agent.tool_definitions or ()),
                tool_results=[
                    ToolResult(
                        call_id=reply["tool_call_id"], name=reply["name"], content=reply["content"]
                    )
                    for reply in replies
                    if reply["role"] == "tool"
                ],
                sampling={"constraint": extra["constraint"]} if extra.get("constraint") else {},
                model=step.model_name or trajectory.agent.model_name or "",
                finish_reason="length" if was_cut else "tool_calls" if step.tool_calls else "stop",
                num_prompt_tokens=(metrics and metrics.prompt_tokens) or 0,
                num_completion_tokens=(metrics and metrics.completion_tokens) or 0,
            )
        )
        num_told += len(waiting) + 1
        waiting = replies
    if not turns:
        raise UsageError("the trajectory has no answer of a model")
    return turns, waiting


def _message(step: AtifStep) -> Message:
    text = _text(step.message, step)
    if step.source != "agent":
        return system(text) if step.source == "system" else user(text)
    message: Message = {"role": "assistant", "content": text}
    if step.reasoning_content:
        message["reasoning_content"] = step.reasoning_content
    if step.tool_calls:
        message["tool_calls"] = [_call(call) for call in step.tool_calls]
    return message


def _call(call: AtifToolCall) -> ToolCallMessage:
    extra = call.extra or {}
    text = extra.get("arguments_text")
    if not isinstance(text, str):
        text = json.dumps(call.arguments, ensure_ascii=False)
    made: ToolCallMessage = {
        "id": call.tool_call_id,
        "type": "function",
        "function": {"name": call.function_name, "arguments": text},
    }
    if isinstance(extra.get("error"), str):
        made["error"] = extra["error"]
    return made


def _replies(step: AtifStep) -> list[Message]:
    """Return what came of a step: a call's result as a tool's message, all else as a user's."""
    names = {call.tool_call_id: call.function_name for call in step.tool_calls or ()}
    replies: list[Message] = []
    for result in step.observation.results if step.observation else ():
        text = _text(result.content, step)
        if result.source_call_id in names:
            call_id = result.source_call_id
            replies.append(
                {"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": text}
            )
        elif text:
            replies.append(user(text))
    return replies


def _text(content: AtifContent, step: AtifStep) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text":
            raise UsageError(f"step {step.step_id} holds {part.type}, and only text can be learned")
    return "\n".join(part.text or "" for part in content)
