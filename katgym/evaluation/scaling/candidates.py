"""Attempts as a chooser sees them, filtered, and chosen among by the number of equal answers.

A `Candidate` holds what a deployed agent would have: its transcript, what it left where the env
names that (a patch), and what the env finds wrong with it without its grader. No reward, success or
status is in it, so that nothing here can choose by them. Not here: judges (`questions.py`).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from katgym.environment.env import Env
from katgym.environment.messages import Message, render_message
from katgym.environment.task import Task
from katgym.environment.thinking import split_thinking
from katgym.play.rollout import Rollout

logger = logging.getLogger(__name__)


@runtime_checkable
class AnswerEnv(Protocol):
    """An env that reads one answer out of a final message."""

    def candidate_answer(self, text: str) -> str:
        """Return the answer, the same text for equal ones; "" for none."""


@runtime_checkable
class CheckedEnv(Protocol):
    """An env that can look at what an episode left without its grader."""

    visible_artifacts: Sequence[str]
    """Names of the artifacts that the agent itself made; they are its answer."""

    async def candidate_problem(self, task: Task, artifacts: Mapping[str, Any]) -> str:
        """Return what is wrong as far as the agent could see (syntax, visible tests), or "".

        Called on a fresh instance.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One attempt without its outcome.

    Example:
        Candidate(attempt=3, messages=[user("2 + 2?"), assistant("Answer: 4")], answer="4")
    """

    attempt: int
    messages: Sequence[Message]
    answer: str
    """Equal for equal ones; "" for none."""
    left: str = ""
    """The visible artifacts, as text."""
    problem: str = ""
    """What the env sees to be wrong with it."""

    @property
    def opening(self) -> str:
        """What the env said before the first answer."""
        return "\n\n".join(m["content"] for m in self.messages[: self._num_opening])

    @property
    def transcript(self) -> str:
        """Everything from the first answer on."""
        return "\n".join(render_message(m) for m in self.messages[self._num_opening :])

    @property
    def _num_opening(self) -> int:
        places = (n for n, m in enumerate(self.messages) if m["role"] == "assistant")
        return next(places, len(self.messages))


def read_candidate(env: Env, rollout: Rollout) -> Candidate:
    """Return an attempt without its outcome, its problem not looked for."""
    messages = rollout.messages
    said = [m for m in messages if m["role"] == "assistant"]
    final = next((m["content"] for m in reversed(said) if not m.get("tool_calls")), "")
    _, final = split_thinking(final)
    left = {}
    if isinstance(env, CheckedEnv):
        left = {name: str(rollout.artifacts.get(name, "")) for name in env.visible_artifacts}
        answer = json.dumps(left) if any(left.values()) else ""
    elif isinstance(env, AnswerEnv):
        answer = env.candidate_answer(final)
    else:  # the last action; a call by its name and arguments
        calls = [call["function"] for m in said[-1:] for call in m.get("tool_calls", ())]
        answer = json.dumps(calls, sort_keys=True) if calls else " ".join(final.split())
    return Candidate(
        attempt=rollout.attempt,
        messages=messages,
        answer=answer,
        left="\n\n".join(f"{name}:\n{text}" for name, text in left.items()),
    )


async def find_problem(env: Env, rollout: Rollout) -> str:
    """Return what the env sees to be wrong with what an attempt left; "" where it does not look."""
    if not isinstance(env, CheckedEnv):
        return ""
    task = env.tasks(rollout.split).get(rollout.task_id)
    seen = {name: rollout.artifacts.get(name) for name in env.visible_artifacts}
    return await env.clone().candidate_problem(task, seen)


def filter_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those with an answer and without a problem; where none is left, all that were given.

    One with a problem is better than one without an answer.
    """
    answered = [one for one in candidates if one.answer]
    sound = [one for one in answered if not one.problem]
    return sound or answered or list(candidates)


def count_votes(candidates: Sequence[Candidate], num_side_by_side: int) -> list[Candidate]:
    """Return one candidate for each answer, that of most attempts first.

    Equal numbers: an attempt that knows of an earlier one (from `num_side_by_side` on) first, the
    later the better; of the others the first attempt.
    """
    votes = Counter(one.answer for one in candidates)

    def rank(one: Candidate) -> tuple[int, int, int]:
        return (-votes[one.answer], -max(one.attempt - num_side_by_side + 1, 0), one.attempt)

    found: dict[str, Candidate] = {}
    for one in sorted(candidates, key=rank):
        found.setdefault(one.answer, one)
    return list(found.values())
