"""Sessions: one episode's place in a store, whoever plays it, with its failed calls.

Not here: the episode itself, whose turns are those of `katgym.play.rollout`; where sessions are
kept (`live.py`, `shards.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import msgspec

from katgym.environment.messages import Message
from katgym.environment.reward import Reward
from katgym.errors import UsageError
from katgym.play.rollout import Rollout, Turn


class SessionStatus(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    """It may make calls."""
    FINISHED = "finished"
    """Its owner said that it is over."""
    FAILED = "failed"
    """Its owner said that it is over and worth nothing: out of every loss and mean."""
    EXPIRED = "expired"
    """Its deadline passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A model call that was answered with an error.

    Example:
        FailedCall(call_id="c0ffee", route="openai/chat", status=400, kind="malformed",
                   reason="messages is a list", received_s=1.7e9)
    """

    call_id: str
    route: str
    status: int
    """HTTP status of the answer; 499 if the client had gone."""
    kind: str
    """`malformed`, `unknown_model`, `context_length`, `upstream`, `no_token_ids`, `budget`, ..."""
    reason: str
    received_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One agent's episode.

    Example:
        SessionRecord(session_id="s1", group_id="task-7", metadata={"env_id": "katgym/Swe-v0"},
                      created_s=1.7e9, status=SessionStatus.FINISHED, reward=Reward(value=1.0))
    """

    session_id: str
    group_id: str = ""
    """Siblings of one task share it; advantages are relative to them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever its owner wants to find again. What `EpisodeFacts` names says the same of every
    session of a gateway, and has its types."""
    created_s: float = 0.0
    """Unix time."""
    ended_s: float | None = None
    status: SessionStatus = SessionStatus.OPEN
    reward: Reward | None = None
    """None: not given."""
    rollout: Rollout | None = None
    """Of a rollout that was recorded whole: all of it but its turns; None in a gateway's session.
    Its reward is the session's."""
    key_sha256: str = ""
    """Hash of the key that its agent uses; the key itself is kept nowhere."""
    max_calls: int | None = None
    max_tokens: int | None = None
    """Sampled tokens that all its calls together may have."""
    deadline_s: float | None = None
    """Unix time after which it is expired."""

    @property
    def final_messages(self) -> Sequence[Message]:
        """Those of its rollout that came after the last answer."""
        return () if self.rollout is None else self.rollout.final_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """What the metadata of a gateway's session may say of its episode; see `Rollout`."""

    env_id: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    plugin_version: str = ""
    task_id: str = ""
    """"" is the session's group, whose sessions are attempts at one task, or the session itself."""
    task_sha256: str = ""
    split: str = ""
    seed: int | None = None
    attempt: int = 0
    seat: str = "agent"
    failure_kind: str = ""
    reason: str = ""

    @classmethod
    def of(cls, session_id: str, metadata: Mapping[str, Any]) -> EpisodeFacts:
        """Read them; `UsageError` names one of another type."""
        try:
            return msgspec.convert(metadata, cls)
        except msgspec.ValidationError as e:
            raise UsageError(
                f"metadata of session {session_id!r}: {e}. Its names {', '.join(FACTS)} say what a"
                " rollout says; all others are free"
            ) from e


FACTS = tuple(each.name for each in fields(EpisodeFacts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session with everything that is kept of it."""

    record: SessionRecord
    turns: Sequence[Turn] = ()
    """As they were written; `as_rollout` adds what later ones tell of a gateway's."""
    failed_calls: Sequence[FailedCall] = ()

    @property
    def replies(self) -> list[Sequence[Message]]:
        """What came after each turn's answer."""
        return [*(turn.messages for turn in self.turns[1:]), self.record.final_messages]


ENDED = (SessionStatus.FINISHED, SessionStatus.FAILED, SessionStatus.EXPIRED)
"""Statuses in which a session makes no calls any more."""


def has_valid_reward(record: SessionRecord) -> bool:
    """Return whether a session finished with a valid reward."""
    is_valid = record.reward is not None and record.reward.is_valid
    return record.status is SessionStatus.FINISHED and is_valid


def reward_value(record: SessionRecord) -> float | None:
    """Return the reward of a session that finished with a valid one, None of others."""
    return record.reward.value if has_valid_reward(record) and record.reward else None
