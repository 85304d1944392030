"""A group as the JSON that its page's script draws: the tree, the rollouts, the text of tokens.

Not here: the script (`assets/`), the page around it (`group_page.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from katgym.environment.messages import Message, assistant
from katgym.play.rollout import Rollout, Turn, parent_of
from katgym.policies.base import TokenRecord
from katgym.run_view.run_view import GroupView
from katgym.run_view.token_texts import TokenTexts, split_characters

MAX_TEXT = 20_000
"""Characters that a page has of one message; the number left out is told."""


def rollout_json(group: GroupView, place: int, texts: TokenTexts | None) -> dict[str, Any]:
    """Return one rollout of a group."""
    rollout = group.rollouts[place].rollout
    in_lanes = _messages_in_lanes(rollout)
    return {
        "label": str(place + 1),
        "status": str(rollout.status),
        "failure": None if rollout.failure_kind is None else str(rollout.failure_kind),
        "reason": rollout.reason,
        "reward": rollout.reward.value,
        "components": [
            [name, c.score, c.weight, c.is_gate] for name, c in rollout.reward.components.items()
        ],
        "advantage": group.advantage(place),
        "facts": _facts(rollout),
        "turns": [_turn(turn, in_lanes, texts) for turn in rollout.turns],
        "rest": _messages(rollout.final_messages, in_lanes),
    }


def _facts(rollout: Rollout) -> list[list[str]]:
    """Return what is told of a rollout above its turns."""
    records = [turn.tokens for turn in rollout.turns if turn.tokens is not None]
    versions = sorted({span.version for record in records for span in record.version_spans})
    spans = " to ".join(str(version) for version in dict.fromkeys(versions[:1] + versions[-1:]))
    facts = [
        ("turns", str(rollout.num_turns)),
        ("tool calls", str(rollout.num_tool_calls)),
        ("in parallel", str(rollout.num_parallel_calls)),
        ("sampled tokens", f"{rollout.num_completion_tokens:,}"),
        ("policy version", spans),
        ("wall time", f"{rollout.wall_s:.3g} s"),
        ("policy", rollout.policy),
        ("attempt", str(rollout.attempt)),
        ("seed", "" if rollout.seed is None else str(rollout.seed)),
        ("seat", "" if rollout.seat in ("player", "agent") else rollout.seat),
        ("episode", rollout.episode_id),
    ]
    return [[name, value] for name, value in facts if value]


def _messages_in_lanes(rollout: Rollout) -> set[int]:
    """Return the `id` of each call's first answer: lanes show it, as the call's result.

    It stands before the answer of the next turn, or of a turn that goes on from this one.
    """
    turns = rollout.turns
    children: dict[int, list[int]] = {number: [number + 1] for number in range(len(turns))}
    for number in range(len(turns)):
        if (parent := parent_of(turns, number)) is not None:
            children[parent].append(number)
    given = [*(turn.messages for turn in turns), rollout.final_messages]
    found: dict[tuple[int, str], Message] = {}
    for number, turn in enumerate(turns):
        ids = {result.call_id for result in turn.tool_results}
        for message in (m for child in dict.fromkeys(children[number]) for m in given[child]):
            call_id = message.get("tool_call_id", "")
            if message["role"] == "tool" and call_id in ids:
                found.setdefault((number, call_id), message)
    return {id(message) for message in found.values()}


def _turn(turn: Turn, in_lanes: Collection[int], texts: TokenTexts | None) -> dict[str, Any]:
    answer, record = turn.answer or assistant(), turn.tokens or TokenRecord()
    ids = record.completion_ids
    return {
        "given": _messages(turn.messages, in_lanes),
        "answer": {
            "content": _cut(answer.get("content") or ""),
            "reasoning": _cut(answer.get("reasoning_content") or ""),
            "calls": [
                [call["function"]["name"], _cut(call["function"]["arguments"])]
                for call in answer.get("tool_calls", ())
            ],
        },
        "finish": turn.finish_reason,
        "num_prompt": turn.num_prompt_tokens,
        "num_sampled": turn.num_completion_tokens,
        "seconds": _rounded(turn.completed_s - turn.started_s),
        "started": _rounded(turn.started_s),
        "versions": [[span.version, span.end] for span in record.version_spans],
        "branch": None if record.branch is None else str(record.branch),
        "parent": record.parent,
        "num_shared": record.num_shared,
        "ids": list(ids),
        "logprobs": [_rounded(x) for x in record.policy_logprobs],
        "joined": [] if texts is None else list(split_characters(texts, ids)),
        "lanes": _lanes(turn, answer),
    }


def _lanes(turn: Turn, answer: Message) -> dict[str, Any]:
    """Return a turn's calls on their time axis: seconds since the first was called."""
    results = {result.call_id: result for result in turn.tool_results}
    called = {c["id"]: c["function"]["arguments"] for c in answer.get("tool_calls", ())}
    times = [r.called_s or r.started_s for r in turn.tool_results if r.ended_s > 0]
    begin = min(times, default=0.0)
    rows: list[dict[str, Any]] = []
    for call_id, result in results.items():
        is_timed = result.ended_s > 0
        start = result.called_s or result.started_s
        rows.append(
            {
                "name": result.name,
                "arguments": _cut(called.get(call_id, "")),
                "error": None if result.error is None else str(result.error),
                "stage": result.stage,
                "called": _rounded(start - begin) if is_timed else None,
                "start": _rounded(result.started_s - begin) if is_timed else None,
                "end": _rounded(result.ended_s - begin) if is_timed else None,
                "output": _cut(result.content or ""),
                "omitted": result.num_bytes_omitted,
            }
        )
    for call in answer.get("tool_calls", ()):
        if call["id"] not in results:
            name, arguments = call["function"]["name"], _cut(call["function"]["arguments"])
            rows.append(
                {"name": name, "arguments": arguments, "error": "no result", "output": _cut("")}
            )
    return {
        "seconds": _rounded(max((r.ended_s for r in turn.tool_results), default=0.0) - begin)
        if times
        else None,
        "rows": rows,
    }


def _messages(messages: Sequence[Message], in_lanes: Collection[int]) -> list[list[Any]]:
    """Return role and text of messages; those that stand in a lane are left out."""
    return [
        [
            message.get("name") or message["role"],
            message["role"],
            _cut(message.get("content") or ""),
        ]
        for message in messages
        if id(message) not in in_lanes
    ]


def _cut(text: Any) -> list[Any]:
    """Return a text and how many of its characters are left out."""
    text = text if isinstance(text, str) else str(text)
    return [text[:MAX_TEXT], max(0, len(text) - MAX_TEXT)]


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
