"""The sessions of a gateway: their keys, budgets and conversations; in memory what is in use.

Not here: what is kept (`katgym.rollout_store`); who may begin (`admission.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katgym.gateway.config import GatewayConfig
from katgym.gateway.conversation import Conversation
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.play.rollout import Turn
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import SessionRecord, SessionStatus

MAX_IN_MEMORY = 10_000
"""Sessions held in memory; the ones used longest ago are read from the store when they call."""
_MAX_ID = 200


@dataclass
class LiveSession:
    """One agent's episode while it may call."""

    record: SessionRecord
    conversation: Conversation
    num_calls: int = 0
    num_tokens: int = 0
    """Sampled so far."""
    oldest_version: int | None = None
    """Of the weights that its first tokens came from; None before there are any."""
    num_in_flight: int = 0

    @property
    def session_id(self) -> str:
        """Its name in URLs and in the store."""
        return self.record.session_id

    def check_open(self, now_s: float) -> None:
        """Raise what keeps it from making a call, if anything does."""
        record = self.record
        if record.status is not SessionStatus.OPEN:
            raise GatewayError(
                ErrorKind.SESSION_ENDED, f"session {self.session_id!r} is {record.status}"
            )
        if record.deadline_s is not None and now_s >= record.deadline_s:
            raise self.deadline_error()
        if record.max_calls is not None and self.num_calls + self.num_in_flight >= record.max_calls:
            raise GatewayError(
                ErrorKind.BUDGET,
                f"session {self.session_id!r} has made the {record.max_calls} calls it may make",
            )
        if record.max_tokens is not None and self.num_tokens >= record.max_tokens:
            raise GatewayError(
                ErrorKind.BUDGET,
                f"session {self.session_id!r} has sampled {self.num_tokens} tokens; it may sample"
                f" {record.max_tokens}",
            )

    def deadline_error(self) -> GatewayError:
        """Return the error of a call that comes, or is answered, too late."""
        return GatewayError(ErrorKind.DEADLINE, f"session {self.session_id!r} is past its deadline")

    def seconds_left(self, now_s: float) -> float | None:
        """Return how long it may still call; None for ever."""
        deadline_s = self.record.deadline_s
        return None if deadline_s is None else deadline_s - now_s

    def tokens_left(self) -> int | None:
        """Return how many tokens it may still sample; None for any number."""
        limit = self.record.max_tokens
        return None if limit is None else limit - self.num_tokens

    def count(self, turns: Sequence[Turn]) -> None:
        """Count one call's answers."""
        self.num_calls += 1
        self.num_tokens += sum(turn.num_completion_tokens for turn in turns)
        versions = [s.version for t in turns if t.tokens for s in t.tokens.version_spans]
        if versions and self.oldest_version is None:
            self.oldest_version = min(versions)


class SessionTable:
    """All sessions of a store, by id and by key."""

    def __init__(self, store: RolloutStore, config: GatewayConfig) -> None:
        self._store = store
        self._config = config
        self._open: OrderedDict[str, LiveSession] = OrderedDict()
        self._ids: dict[str, str] = {}
        for record in store.sessions(SessionStatus.OPEN):
            if record.key_sha256:
                self._ids[record.key_sha256] = record.session_id

    def create(
        self,
        session_id: str = "",
        *,
        group_id: str = "",
        metadata: Mapping[str, Any] | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> tuple[LiveSession, str]:
        """Make a session; returns it and its key, which is kept nowhere."""
        session_id = session_id or secrets.token_hex(8)
        is_allowed = session_id.isascii() and all(c.isalnum() or c in "-_.:" for c in session_id)
        if not is_allowed or len(session_id) > _MAX_ID:
            raise GatewayError(
                ErrorKind.MALFORMED,
                f"a session id has 1 to {_MAX_ID} letters, digits and -_.: , got"
                f" {session_id!r:.80}",
            )
        key = f"sk-katgym-{secrets.token_urlsafe(24)}"
        now_s = time.time()
        timeout_s = self._config.session_timeout_s if timeout_s is None else timeout_s
        record = SessionRecord(
            session_id=session_id,
            group_id=group_id,
            metadata=dict(metadata or {}),
            created_s=now_s,
            key_sha256=sha256_of(key),
            max_calls=self._config.max_calls if max_calls is None else max_calls,
            max_tokens=self._config.max_tokens if max_tokens is None else max_tokens,
            deadline_s=None if timeout_s is None else now_s + timeout_s,
        )
        self._store.create_session(record)
        self._ids[record.key_sha256] = session_id
        session = LiveSession(record=record, conversation=Conversation())
        self._keep(session)
        return session, key

    def find(self, session_id: str) -> LiveSession | None:
        """Return a session, from memory or from the store; None if there is none."""
        session = self._open.get(session_id)
        if session is not None:
            self._open.move_to_end(session_id)
            return session
        if not self._store.has_session(session_id):
            return None
        record = self._store.session(session_id)
        turns = self._store.turns(session_id)
        session = LiveSession(record=record, conversation=Conversation.restore(turns))
        calls: dict[str, list[Turn]] = {}
        for turn in turns:
            calls.setdefault(turn.call_id, []).append(turn)
        for answers in calls.values():
            session.count(answers)
        self._keep(session)
        return session

    def by_key(self, key: str) -> LiveSession | None:
        """Return the session a key belongs to; None for a key of nobody."""
        digest = sha256_of(key)
        session_id = self._ids.get(digest)
        session = None if session_id is None else self.find(session_id)
        if session is None or not hmac.compare_digest(session.record.key_sha256, digest):
            return None
        return session

    def update(self, session: LiveSession, **changes: Any) -> SessionRecord:
        """Change what is kept of a session."""
        session.record = self._store.update_session(session.session_id, **changes)
        if session.record.status is not SessionStatus.OPEN:
            self._ids.pop(session.record.key_sha256, None)
        return session.record

    def __len__(self) -> int:
        return len(self._open)

    def _keep(self, session: LiveSession) -> None:
        self._open[session.session_id] = session
        while len(self._open) > MAX_IN_MEMORY:
            oldest = next((i for i, s in self._open.items() if not s.num_in_flight), None)
            if oldest is None:
                return
            del self._open[oldest]


def has_key(session: LiveSession, key: str) -> bool:
    """Return whether a key is the session's; takes as long whether it is or not."""
    return hmac.compare_digest(session.record.key_sha256, sha256_of(key))


def sha256_of(key: str) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
