"""How a session ended, in the words of rollouts.

Not here: the rollout (`rollouts.py`, `recorded_rollouts.py`).
"""

from __future__ import annotations

from katgym.failure import FailureKind, RolloutStatus, failure_kind
from katgym.reward import Component, Reward
from katgym.rollout_store.records import SessionRecord, SessionStatus


def has_valid_reward(record: SessionRecord) -> bool:
    """Return whether a session finished and was told a reward."""
    return record.status is SessionStatus.FINISHED and record.reward is not None


def outcome(record: SessionRecord) -> tuple[RolloutStatus, Reward]:
    """Return how a session ended, and its reward, which is valid if it finished and was told."""
    if record.status is SessionStatus.FINISHED and record.reward is not None:
        # How a component entered the value is not known: it is kept as a measurement.
        components = {
            name: Component(score=score, weight=0.0)
            for name, score in record.reward_components.items()
        }
        return RolloutStatus.TERMINATED, Reward(value=record.reward, components=components)
    said = record.metadata.get("reason")
    reason = said if isinstance(said, str) else ""
    match record.status:
        case SessionStatus.FINISHED:
            status, kind = RolloutStatus.FAILED, FailureKind.VERIFIER_UNAVAILABLE
            reason = reason or "the session finished without a reward"
        case SessionStatus.FAILED:
            told = record.metadata.get("failure_kind")
            status, kind = RolloutStatus.FAILED, failure_kind(str(told or "infrastructure_error"))
            reason = reason or "its owner said that the session failed"
        case SessionStatus.EXPIRED:
            status, kind = RolloutStatus.CANCELLED, FailureKind.CANCELLED
            reason = reason or "the session's deadline passed"
        case _:
            status, kind = RolloutStatus.CANCELLED, FailureKind.CANCELLED
            reason = reason or "the session is still open"
    return status, Reward.invalid(kind, reason)
