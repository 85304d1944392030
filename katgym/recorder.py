"""Collects what happens in one episode, for one seat, and makes the `Rollout` of it.

Not here: deciding what happens (`agent_loop.py`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from katgym.env import Env
from katgym.errors import InfrastructureError
from katgym.failure import FAILURE_TABLE, FailureKind, RolloutStatus, failure_kind
from katgym.messages import Message, normalize_action
from katgym.policies.base import Completion, EpisodeContext, Policy
from katgym.reward import Reward
from katgym.rollout import Rollout, Turn
from katgym.scheduler import ToolResult

logger = logging.getLogger(__name__)


@dataclass
class Recorder:
    """One seat's record in the making; `messages` is the conversation that seat sees."""

    env: Env
    policy: Policy
    seed: int | None = None
    attempt: int = 0
    episode_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    num_completion_tokens: int = 0
    _began_s: float = field(default_factory=time.perf_counter)
    _turn_began_s: float = 0.0
    _completed_s: float = 0.0
    _pending: Completion | None = None

    def begin_turn(self) -> None:
        """Note the time; a model call follows."""
        self._turn_began_s = self._elapsed()

    def completed(self, completion: Completion) -> Message:
        """Note the model's answer and return it in the form the env takes."""
        self._completed_s = self._elapsed()
        self.num_completion_tokens += completion.num_completion_tokens
        message = normalize_action(completion.message)
        self.messages.append(message)
        self._pending = completion
        return message

    def stepped(self, observation: Sequence[Message], results: Sequence[ToolResult]) -> None:
        """Note how the env answered the last completion."""
        self._close_turn(results)
        self.messages += observation

    def _close_turn(self, results: Sequence[ToolResult] = ()) -> None:
        if self._pending is None:
            return
        self.turns.append(
            Turn(
                num_messages=len(self.messages) - 1,
                finish_reason=self._pending.finish_reason,
                tokens=self._pending.tokens,
                num_prompt_tokens=self._pending.num_prompt_tokens,
                num_completion_tokens=self._pending.num_completion_tokens,
                tool_results=results,
                started_s=self._turn_began_s,
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
        """Return the finished record."""
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
            status=status,
            reward=reward,
            messages=list(self.messages),  # an env that was left to itself may still add to them
            turns=list(self.turns),
            tools=context.tool_schemas,
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
        logger.warning("rollout of task %r failed (%s): %s", self.env.task.task_id, kind, text)
        return self.rollout(
            context, status=RolloutStatus.FAILED, reward=Reward.invalid(kind, text), kind=kind
        )

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began_s


def classify(error: BaseException, *, default: FailureKind) -> FailureKind:
    """Return the failure kind of an exception that left the env or the policy."""
    if isinstance(error, InfrastructureError):
        kind = failure_kind(error.kind)
        return kind if not FAILURE_TABLE[kind].is_graded else FailureKind.INFRASTRUCTURE_ERROR
    return default
