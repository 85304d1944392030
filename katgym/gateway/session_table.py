"""The sessions of a gateway: their keys, budgets and conversations; in memory what is in use.

Not here: what is kept (`katgym.rollout_store`); who may begin (`admission.py`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from katgym.gateway.config import GatewayConfig
from katgym.gateway.conversation import Conversation
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.play.rollout import Turn
from katgym.policies.waiting import TimeLimit
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.group_commit import GroupCommit
from katgym.rollout_store.records import SessionRecord, SessionStatus
from katgym.system.concurrency import SharedResults
from katgym.system.steady_clock import SteadyClock

MAX_IN_MEMORY = 10_000
"""Sessions held in memory; the ones used longest ago are read from the store when they call."""
KEY_PREFIX = "sk-katgym-"
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
    deadline_s: float | None = None
    """Of the gateway's clock; None: it never expires."""
    recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from a turn's number to its commit, which come in the same order."""
    _excused_s: float = -math.inf
    """Nothing before it is excused again."""

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
        if self.deadline_s is not None and now_s >= self.deadline_s:
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

    @asynccontextmanager
    async def within_deadline(self, clock: SteadyClock) -> AsyncIterator[None]:
        """Return a block that its deadline, by the gateway's clock, ends with `TimeoutError`.

        While a call waits there (`policies/waiting.py`), for weights that move or for a server,
        the session's time does not pass.
        """
        if self.deadline_s is None:
            yield
            return
        async with TimeLimit(self.deadline_s - clock.now_s(), excuse=self._excuse).running():
            yield

    def _excuse(self, since_s: float, now_s: float) -> None:
        """Move the deadline by what a call waited; by what several wait side by side once."""
        assert self.deadline_s is not None, "the call was bounded by it"
        self.deadline_s += max(0.0, now_s - max(since_s, self._excused_s))
        self._excused_s = now_s

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
    """All sessions of a store, by id and by key; used in one event loop."""

    def __init__(
        self,
        store: RolloutStore,
        writer: GroupCommit,
        config: GatewayConfig,
        *,
        clock: SteadyClock,
        salt: str,
        shard: int | None = None,
    ) -> None:
        """Prepare the table.

        salt: makes the keys of this store's sessions its own. shard: which the keys tell.
        """
        self._store = store
        self._writer = writer
        self._config = config
        self._clock = clock
        self._salt = salt
        self._shard = shard
        self._open: OrderedDict[str, LiveSession] = OrderedDict()
        self._held: weakref.WeakValueDictionary[str, LiveSession] = weakref.WeakValueDictionary()
        """Those that somebody works with, in `_open` or not: a session is one object."""
        self._loading: SharedResults[str, LiveSession | None] = SharedResults()
        self._ids: dict[str, str] = store.keys_of_open_sessions()

    async def create(self, session_id: str, **options: Any) -> LiveSession:
        """Make a session; `UsageError` if its id exists.

        options: `group_id`, `metadata`, `max_calls`, `max_tokens`, `timeout_s`.
        """
        is_allowed = session_id.isascii() and all(c.isalnum() or c in "-_.:" for c in session_id)
        if not is_allowed or not 0 < len(session_id) <= _MAX_ID:
            raise GatewayError(
                ErrorKind.MALFORMED,
                f"a session id has 1 to {_MAX_ID} letters, digits and -_.: , got"
                f" {session_id!r:.80}",
            )
        wanted = self._resolve(**options)
        now_s, timeout_s = self._clock.now_s(), wanted.pop("timeout_s")
        record = SessionRecord(
            session_id=session_id,
            created_s=now_s,
            key_sha256=sha256_of(self.key_of(session_id)),
            deadline_s=None if timeout_s is None else now_s + timeout_s,
            **wanted,
        )
        await self._writer.create_session(record)
        self._ids[record.key_sha256] = session_id
        # Another call may have read it from the store by now: a session is one object.
        session = self._held.get(session_id) or LiveSession(
            record=record, conversation=Conversation(), deadline_s=record.deadline_s
        )
        self._keep(session)
        return session

    def key_of(self, session_id: str) -> str:
        """Return a session's key, which is kept nowhere: it follows from the owner's key."""
        name = f"{self._salt}\0{session_id}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._config.admin_key.encode(), name, "sha256")
        of_shard = "" if self._shard is None else f"{self._shard}."
        return f"{KEY_PREFIX}{of_shard}{base64.urlsafe_b64encode(digest[:24]).decode()}"

    def check_same(self, session: LiveSession, **options: Any) -> None:
        """Raise `MALFORMED` for a session that is not what a second request for it would make.

        options: see `create`.
        """
        record, wanted = session.record, self._resolve(**options)
        timeout_s = None if record.deadline_s is None else record.deadline_s - record.created_s
        have = {
            "group_id": record.group_id,
            "metadata": record.metadata,
            "max_calls": record.max_calls,
            "max_tokens": record.max_tokens,
            "timeout_s": None if timeout_s is None else round(timeout_s, 3),
        }
        other = sorted(name for name, value in wanted.items() if have[name] != value)
        why = ""
        if other:
            why = f"with other {', '.join(other)}"
        elif record.status is not SessionStatus.OPEN:
            why = f"and it is {record.status}"
        elif not has_key(session, self.key_of(session.session_id)):
            why = "with another owner's key, from which its own follows"
        if why:
            raise GatewayError(
                ErrorKind.MALFORMED,
                f"there is a session {session.session_id!r} already, {why}; choose another id",
            )

    def _resolve(
        self,
        *,
        group_id: str = "",
        metadata: Mapping[str, Any] | None = None,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return a session's options with those of the gateway where there are none."""
        config = self._config
        timeout_s = config.session_timeout_s if timeout_s is None else timeout_s
        return {
            "group_id": group_id,
            "metadata": dict(metadata or {}),
            "max_calls": config.max_calls if max_calls is None else max_calls,
            "max_tokens": config.max_tokens if max_tokens is None else max_tokens,
            "timeout_s": None if timeout_s is None else round(timeout_s, 3),
        }

    async def find(self, session_id: str) -> LiveSession | None:
        """Return a session, from memory or from the store; None if there is none."""
        session = self._open.get(session_id)
        if session is not None:
            self._open.move_to_end(session_id)
            return session
        session = self._held.get(session_id)
        if session is None:
            try:
                session = await self._loading.get(session_id, lambda: self._load(session_id))
            finally:
                self._loading.forget(session_id)
        if session is not None:
            self._keep(session)
        return session

    async def _load(self, session_id: str) -> LiveSession | None:
        session = await asyncio.to_thread(self._read, session_id)
        session = self._held.get(session_id) or session
        if session is not None:
            self._keep(session)
        return session

    def _read(self, session_id: str) -> LiveSession | None:
        """Return what the store knows of a session; None if there is none."""
        if not self._store.has_session(session_id):
            return None
        stored = self._store.stored(session_id)
        record, turns = stored.record, stored.turns
        session = LiveSession(record=record, conversation=Conversation.restore(turns))
        if record.deadline_s is not None:
            # A clock that was set back before this start lends no more time than there was.
            timeout_s = record.deadline_s - record.created_s
            session.deadline_s = min(record.deadline_s, self._clock.now_s() + timeout_s)
        calls: dict[str, list[Turn]] = {}
        for turn in turns:
            calls.setdefault(turn.call_id, []).append(turn)
        for answers in calls.values():
            session.count(answers)
        return session

    async def by_key(self, key: str) -> LiveSession | None:
        """Return the session a key belongs to; None for a key of nobody."""
        digest = sha256_of(key)
        session_id = self._ids.get(digest)
        session = None if session_id is None else await self.find(session_id)
        if session is None or not hmac.compare_digest(session.record.key_sha256, digest):
            return None
        return session

    async def update(self, session: LiveSession, **changes: Any) -> SessionRecord:
        """Change what is kept of a session."""
        session.record = await self._writer.update_session(session.session_id, **changes)
        if session.record.status is not SessionStatus.OPEN:
            self._ids.pop(session.record.key_sha256, None)
        return session.record

    def __len__(self) -> int:
        return len(self._open)

    def _keep(self, session: LiveSession) -> None:
        self._open[session.session_id] = self._held[session.session_id] = session
        self._open.move_to_end(session.session_id)
        while len(self._open) > MAX_IN_MEMORY:
            self._open.popitem(last=False)


def has_key(session: LiveSession, key: str) -> bool:
    """Return whether a key is the session's; takes as long whether it is or not."""
    return hmac.compare_digest(session.record.key_sha256, sha256_of(key))


def sha256_of(key: str) -> str:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
