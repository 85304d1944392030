"""Rollouts as the JSON that a group's page draws; what siblings share is stored once.

Not here: the script (`assets/`), the files of a group (`group_json.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from katgym.environment.messages import Message, assistant
from katgym.play.rollout import Rollout, Turn, parent_of
from katgym.policies.base import TokenRecord
from katgym.run_view.run_view import GroupView
from katgym.run_view.token_texts import TokenTexts, split_characters

MAX_TEXT = 20_000
"""Characters that a page has of one message; the number left out is told."""
_MAX_HEAD = 110
"""Characters of an answer in the line that stands for its turn."""


class Parts:
    """What turns are made of, each there once, whichever siblings share it.

    A turn is a row of numbers: its messages, answer and calls as places among the parts, where
    they run in the tree as a place among the paths, and what is its own, the times.

    Example:
        rows[rollout["turns"][3]] == [0, 1, 2, 0, 1.25, 0.5, [[0.0, 0.1, 0.5]]]
    """

    def __init__(self, texts: TokenTexts | None) -> None:
        self.texts = texts
        self.parts: list[str] = []
        """JSON."""
        self.heads: list[list[Any] | None] = []
        """What is told of a part in a line: of an answer, and of calls."""
        self.rows: list[list[Any]] = []
        self._places: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    def add(self, part: Any, head: list[Any] | None = None) -> int:
        """Return a part's place."""
        text = json.dumps(part, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        place = self._places.setdefault(text, len(self.parts))
        if place == len(self.parts):
            self.parts.append(text)
            self.heads.append(head)
        elif head is not None:  # no messages and no calls are one part, and calls have a head
            self.heads[place] = head
        return place

    def add_row(self, row: list[Any]) -> int:
        """Return the place of a turn's row."""
        place = self._rows.setdefault(json.dumps(row), len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        return place


def rollout_json(
    group: GroupView, place: int, parts: Parts, paths: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    """Return one rollout of a group.

    paths: (rollout, turn) -> where its answer runs in the tree, as a place among the paths.
    """
    rollout = group.rollouts[place].rollout
    in_lanes = _messages_in_lanes(rollout)
    rest = _messages(rollout.final_messages, in_lanes)
    return {
        "status": str(rollout.status),
        "success": rollout.is_success,
        "failure": None if rollout.failure_kind is None else str(rollout.failure_kind),
        "reason": rollout.reason,
        "reward": rollout.reward.value,
        "components": [
            [name, c.score, c.weight, c.is_gate] for name, c in rollout.reward.components.items()
        ],
        "trust": None if rollout.reward.trust is None else str(rollout.reward.trust),
        "trust_reason": rollout.reward.trust_reason,
        "advantage": group.advantage(place),
        "facts": _facts(rollout),
        "turns": [
            _turn(turn, in_lanes, parts, paths.get((place, number)))
            for number, turn in enumerate(rollout.turns)
        ],
        "rest": parts.add(rest) if rest else None,
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


def _turn(turn: Turn, in_lanes: Collection[int], parts: Parts, path: int | None) -> int:
    """Return the place of a turn's row."""
    answer, record = turn.answer or assistant(), turn.tokens or TokenRecord()
    ids = record.completion_ids
    names = [call["function"]["name"] for call in answer.get("tool_calls", ())]
    content, reasoning = answer.get("content") or "", answer.get("reasoning_content") or ""
    said = {
        "content": _cut(content),
        "reasoning": _cut(reasoning),
        "calls": names,
        "finish": turn.finish_reason,
        "constraint": turn.constraint or None,
        "num_prompt": turn.num_prompt_tokens,
        "num_sampled": turn.num_completion_tokens,
        "versions": [[span.version, span.end] for span in record.version_spans],
        "branch": None if record.branch is None else str(record.branch),
        "parent": record.parent,
        "num_shared": record.num_shared,
        "ids": list(ids),
        "logprobs": [_rounded(x) for x in record.policy_logprobs],
        "joined": [] if parts.texts is None else list(split_characters(parts.texts, ids)),
    }
    line = " ".join(str(content or reasoning)[:400].split())[:_MAX_HEAD]
    branch = None if record.branch is None else str(record.branch)
    rows, times, seconds = _lanes(turn, answer)
    errors = sum(row["error"] is not None for row in rows)
    return parts.add_row(
        [
            parts.add(_messages(turn.messages, in_lanes)),
            parts.add(said, [line, turn.num_completion_tokens, branch]),
            parts.add(rows, [", ".join(dict.fromkeys(r["name"] for r in rows)), len(rows), errors]),
            path,
            _rounded(turn.completed_s - turn.started_s),
            seconds,
            times,
        ]
    )


def _lanes(
    turn: Turn, answer: Message
) -> tuple[list[dict[str, Any]], list[list[float | None] | None], float | None]:
    """Return a turn's calls, when each was called, began and ended, and the seconds of all.

    Times are seconds since the first call, and None of a call that was not timed.
    """
    results = {result.call_id: result for result in turn.tool_results}
    called = {c["id"]: c["function"]["arguments"] for c in answer.get("tool_calls", ())}
    begins = [r.called_s or r.started_s for r in turn.tool_results if r.ended_s > 0]
    begin = min(begins, default=0.0)
    rows: list[dict[str, Any]] = []
    times: list[list[float | None] | None] = []
    for call_id, result in results.items():
        start = result.called_s or result.started_s
        at = [_rounded(t - begin) for t in (start, result.started_s, result.ended_s)]
        times.append(at if result.ended_s > 0 else None)
        rows.append(
            {
                "name": result.name,
                "arguments": _cut(called.get(call_id, "")),
                "error": None if result.error is None else str(result.error),
                "stage": result.stage,
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
            times.append(None)
    last = max((r.ended_s for r in turn.tool_results), default=0.0)
    return rows, times, _rounded(last - begin) if begins else None


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
