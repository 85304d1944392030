"""Collects what happens in one episode, for one seat, and makes the `Rollout` of it.

Not here: deciding what happens (`agent_loop.py`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.environment.env import Env
from katgym.environment.failure import FAILURE_TABLE, FailureKind, RolloutStatus, failure_kind
from katgym.environment.messages import Message, normalize_action, user
from katgym.environment.reward import Reward
from katgym.environment.scheduler import ToolResult
from katgym.errors import InfrastructureError, PolicyError
from katgym.play.rollout import Rollout, Turn
from katgym.policies.base import Completion, EpisodeContext, Policy

logger = logging.getLogger(__name__)

ROUTE = "katgym/agent-loop"
"""The `route` of the loop's turns; a gateway's name its API."""


@dataclass
class Recorder:
    """One seat's record in the making; `messages` is the conversation that seat sees."""

    env: Env
    policy: Policy
    seed: int | None = None
    attempt: int = 0
    note: str = ""
    episode_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    num_completion_tokens: int = 0
    _began_s: float = field(default_factory=time.perf_counter)
    _turn_began_s: float = 0.0
    _completed_s: float = 0.0
    _pending: Completion | None = None
    _tools: Sequence[Mapping[str, Any]] = ()

    @property
    def has_answered(self) -> bool:
        """Whether the policy has answered anything."""
        return bool(self.turns) or self._pending is not None

    def opened(self, observation: Sequence[Message]) -> None:
        """Note the env's opening, with what is told behind it in its last user message."""
        self.messages += observation
        if self.note and self.messages and self.messages[-1]["role"] == "user":
            last = self.messages.pop()
            self.messages.append({**last, "content": f"{last['content']}\n\n{self.note}"})
        elif self.note:
            self.messages.append(user(self.note))

    def begin_turn(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Note the time and the tools that are offered; a model call follows."""
        self._turn_began_s = self._elapsed()
        self._tools = tools

    def completed(self, completion: Completion) -> Message:
        """Note the model's answer and return it in the form the env takes."""
        self._completed_s = self._elapsed()
        self.num_completion_tokens += completion.num_completion_tokens
        parent = None if completion.tokens is None else completion.tokens.parent
        if parent is not None and not 0 <= parent < len(self.turns):
            raise PolicyError(
                f"the tokens of turn {len(self.turns)} name turn {parent!r} as their parent; a"
                " parent is an earlier turn of the rollout",
                kind=FailureKind.POLICY_BUG,
            )
        message = normalize_action(completion.message)
        self.messages.append(message)
        self._pending = completion
        return message

    def stepped(self, observation: Sequence[Message], results: Sequence[ToolResult]) -> None:
        """Note how the env answered the last completion."""
        self._close_turn(results)
        self.messages += observation

    def _close_turn(self, results: Sequence[ToolResult] = ()) -> None:
        completion = self._pending
        if completion is None:
            return
        index, seen = len(self.turns), len(self.messages) - 1
        tokens = completion.tokens
        parent = tokens.parent if tokens is not None else index - 1 if index else None
        num_shared = 0 if parent is None else _num_seen(self.turns[parent]) + 1
        self.turns.append(
            Turn(
                messages=self.messages[num_shared:seen],
                num_shared_messages=num_shared,
                answer=self.messages[seen],
                tools=self._tools,
                tokens=tokens,
                num_prompt_tokens=completion.num_prompt_tokens,
                num_completion_tokens=completion.num_completion_tokens,
                finish_reason=completion.finish_reason,
                tool_results=results,
                model=self.policy.name,
                route=ROUTE,
                started_s=self._turn_began_s,
                sent_s=self._turn_began_s,
                completed_s=self._completed_s,
                ended_s=self._elapsed(),
            )
        )
        self._pending = None

    def rollout(
        self,
        context: EpisodeContext,
        *,
        status: RolloutStatus,
        reward: Reward,
        kind: FailureKind | None = None,
        reason: str = "",
    ) -> Rollout:
        """Return the finished record; without a valid reward the rollout has failed."""
        self._close_turn()
        env = self.env
        spec = env.spec
        return Rollout(
            env_id=spec.id if spec is not None else type(env).__name__,
            plugin_version=env.plugin_version,
            policy=self.policy.name,
            task_id=env.task.task_id,
            task_sha256=env.task.sha256,
            split=env.task.split,
            seed=self.seed,
            attempt=self.attempt,
            episode_id=self.episode_id,
            seat=context.seat,
            status=status if reward.is_valid else RolloutStatus.FAILED,
            reward=reward,
            success=env.success,
            turns=list(self.turns),
            # Copies: an env that was left to itself may still add to them.
            final_messages=self.messages[_num_seen(self.turns[-1]) + 1 if self.turns else 0 :],
            sampling=context.sampling,
            sampling_seed=context.seed,
            failure_kind=kind if kind is not None else reward.failure_kind,
            reason=reason or reward.reason,
            wall_s=self._elapsed(),
            env_kwargs=env.init_kwargs,
            artifacts=dict(env.artifacts),
        )

    def failed(self, context: EpisodeContext, error: BaseException, kind: FailureKind) -> Rollout:
        """Return the record of an episode that something outside the policy broke."""
        text = str(error) if isinstance(error, InfrastructureError) else repr(error)
        told = (self.env.task.task_id, kind, text)
        logger.warning("rollout of task %r failed (%s): %s", *told, extra={"once": (kind, text)})
        return self.rollout(
            context, status=RolloutStatus.FAILED, reward=Reward.invalid(kind, text), kind=kind
        )

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began_s


def _num_seen(turn: Turn) -> int:
    """Return how many messages the turn's prompt has."""
    return turn.num_shared_messages + len(turn.messages)


def classify(error: BaseException, *, default: FailureKind) -> FailureKind:
    """Return the failure kind of an exception that left the env or the policy."""
    if isinstance(error, InfrastructureError):
        kind = failure_kind(error.kind)
        return kind if not FAILURE_TABLE[kind].is_graded else FailureKind.INFRASTRUCTURE_ERROR
    return default
