"""Failures of a rollout, and for each what to do about it.

The table answers three questions: is the rollout tried again, is its final state graded, and does
its reward count. A failure of the infrastructure never counts; a budget the policy used up does.
Not here: errors of a single tool call, which are that call's result (`scheduler.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RolloutStatus(StrEnum):
    """How an episode ended."""

    TERMINATED = "terminated"
    """The task decided it."""
    TRUNCATED = "truncated"
    """A budget decided it; `failure_kind` says which."""
    FAILED = "failed"
    """Infrastructure broke; the reward is invalid."""
    CANCELLED = "cancelled"
    """The caller stopped it; nothing is known about the reward."""


class FailureKind(StrEnum):
    """Why a rollout was cut short or has no valid reward."""

    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"
    EPISODE_TIMEOUT = "episode_timeout"
    VERIFIER_TIMEOUT = "verifier_timeout"
    POLICY_UNAVAILABLE = "policy_unavailable"
    POLICY_TIMEOUT = "policy_timeout"
    POLICY_BAD_RESPONSE = "policy_bad_response"
    POLICY_NO_LOGPROBS = "policy_no_logprobs"
    POLICY_REJECTED = "policy_rejected"
    ENV_TIMEOUT = "env_timeout"
    SANDBOX_ERROR = "sandbox_error"
    VERIFIER_UNAVAILABLE = "verifier_unavailable"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    ENV_ERROR = "env_error"
    SCORER_ERROR = "scorer_error"
    POLICY_BUG = "policy_bug"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """What follows from one failure kind."""

    cause: str
    """`policy` (it used up a budget), `infrastructure`, `bug`, or `user`."""
    is_retried: bool
    """The engine runs the rollout again, up to its `max_retries`."""
    is_graded: bool
    """The rubric is asked about the state the episode stopped in."""
    is_counted: bool
    """The reward is valid: it enters means, advantages and the loss."""


_BUDGET = FailureRule(cause="policy", is_retried=False, is_graded=True, is_counted=True)
_INFRASTRUCTURE = FailureRule(
    cause="infrastructure", is_retried=True, is_graded=False, is_counted=False
)
_SETUP = FailureRule(cause="infrastructure", is_retried=False, is_graded=False, is_counted=False)
_BUG = FailureRule(cause="bug", is_retried=False, is_graded=False, is_counted=False)

FAILURE_TABLE: dict[FailureKind, FailureRule] = {
    FailureKind.MAX_TURNS: _BUDGET,
    FailureKind.MAX_TOKENS: _BUDGET,
    FailureKind.CONTEXT_LENGTH: _BUDGET,
    FailureKind.EPISODE_TIMEOUT: _BUDGET,
    FailureKind.VERIFIER_TIMEOUT: FailureRule(
        cause="policy", is_retried=False, is_graded=False, is_counted=True
    ),
    FailureKind.POLICY_UNAVAILABLE: _INFRASTRUCTURE,
    FailureKind.POLICY_TIMEOUT: _INFRASTRUCTURE,
    FailureKind.POLICY_BAD_RESPONSE: _INFRASTRUCTURE,
    FailureKind.POLICY_NO_LOGPROBS: _SETUP,
    FailureKind.POLICY_REJECTED: _SETUP,
    FailureKind.ENV_TIMEOUT: _INFRASTRUCTURE,
    FailureKind.SANDBOX_ERROR: _INFRASTRUCTURE,
    FailureKind.VERIFIER_UNAVAILABLE: _INFRASTRUCTURE,
    FailureKind.INFRASTRUCTURE_ERROR: _INFRASTRUCTURE,
    FailureKind.ENV_ERROR: _BUG,
    FailureKind.SCORER_ERROR: _BUG,
    FailureKind.POLICY_BUG: _BUG,
    FailureKind.CANCELLED: FailureRule(
        cause="user", is_retried=False, is_graded=False, is_counted=False
    ),
}


def failure_kind(value: str) -> FailureKind:
    """Return the kind with this value; an unlisted one counts as `INFRASTRUCTURE_ERROR`."""
    try:
        return FailureKind(value)
    except ValueError:
        return FailureKind.INFRASTRUCTURE_ERROR
