"""What a rollout of the agent loop has that no column of a store holds: one entry of the metadata.

A session that has it was recorded by `recording.py`, any other by a gateway. What other readers may
look for (env, task, seed, failure) stands beside it under names of its own: `GENERAL_KEYS`.

Not here: making it (`recording.py`), the rollout it becomes part of (`recorded_rollouts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym.failure import FailureKind, RolloutStatus
from katgym.messages import Message
from katgym.policies.base import Sampling
from katgym.rollout_store.records import SessionRecord, StoredSession
from katgym.scheduler import ToolErrorKind

RESERVED = "katgym"
"""The key of a session's metadata that is katgym's own."""
GENERAL_KEYS = (
    *("env_id", "env_kwargs", "plugin_version", "task_id", "task_sha256", "split", "seed"),
    *("attempt", "seat", "failure_kind", "reason"),
)
"""Keys of the metadata that say the same of every session, whoever recorded it."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptToolResult:
    """A `ToolResult`; its text is mostly in the messages and not kept twice."""

    call_id: str
    name: str
    content: str | None
    """None: that of the turn's tool message for this call."""
    error: ToolErrorKind | None
    stage: int
    called_s: float
    started_s: float
    ended_s: float
    num_bytes_omitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTurn:
    """What a `Turn` has that its node has not. Times are seconds since the rollout began."""

    has_tokens: bool
    num_prompt_tokens: int
    num_completion_tokens: int
    started_s: float
    completed_s: float
    ended_s: float
    tool_results: list[KeptToolResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptComponent:
    """How a component of the reward entered it; its score has a column."""

    weight: float
    is_gate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReward:
    """What a `Reward` has besides the value and the scores."""

    is_valid: bool
    failure_kind: FailureKind | None
    reason: str
    components: dict[str, KeptComponent]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDetails:
    """The whole entry.

    Example:
        RecordedDetails(episode_id="e", policy="hf:tiny", status=RolloutStatus.TERMINATED,
                        sampling=Sampling(), sampling_seed=11, wall_s=0.5, num_retries=0,
                        reward=KeptReward(is_valid=True, failure_kind=None, reason="",
                                          components={}), turns=[...])
    """

    format: int = FORMAT
    episode_id: str
    policy: str
    status: RolloutStatus
    sampling: Sampling
    sampling_seed: int | None
    wall_s: float
    num_retries: int
    reward: KeptReward
    turns: list[KeptTurn]
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Those after the last answer, which no model saw."""
    artifacts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as far as messages and artifacts are."""
        return asdict(self)


def is_recorded(record: SessionRecord) -> bool:
    """Return whether a session is a rollout of the agent loop, as `recording.py` writes them."""
    found = record.metadata.get(RESERVED)
    return isinstance(found, Mapping) and isinstance(found.get("format"), int)


def details_of(record: SessionRecord) -> RecordedDetails | None:
    """Return the details of a session that was recorded from the agent loop, None of any other.

    Raises `UsageError` for details that cannot be read.
    """
    if not is_recorded(record):
        return None
    found = record.metadata[RESERVED]
    if found["format"] > FORMAT:
        raise UsageError(
            f"session {record.session_id!r} was recorded by a newer katgym: metadata[{RESERVED!r}]"
            f" has format {found['format']!r}, this katgym knows {FORMAT}. Hint: pip install -U"
            " katgym"
        )
    try:
        return msgspec.convert(found, RecordedDetails)
    except msgspec.ValidationError as e:
        raise UsageError(
            f"session {record.session_id!r}: metadata[{RESERVED!r}] is kept for what"
            f" record_rollout writes, and is not that: {e}"
        ) from e


def policy_without_tokens(stored: StoredSession) -> str | None:
    """Return the policy of a session with a call of which no tokens are known, None of others."""
    details = details_of(stored.record)
    if details is None or all(turn.has_tokens for turn in details.turns):
        return None
    return details.policy


def replies(messages: Sequence[Message], turns: Sequence[int]) -> Iterator[Sequence[Message]]:
    """Yield the messages that came after each turn's answer, up to the next turn's.

    turns: how many messages each turn saw.
    """
    for start, end in zip(turns, [*turns, len(messages)][1:], strict=True):
        yield messages[start + 1 : end]


def content_of(call_id: str, reply: Iterable[Message]) -> str | None:
    """Return the text of the tool message for a call, None without one."""
    for message in reply:
        if message["role"] == "tool" and message.get("tool_call_id") == call_id:
            return message["content"]
    return None
