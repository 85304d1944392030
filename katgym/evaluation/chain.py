"""The hash chain over a run's rollouts, in the order in which they were written.

    link n = sha256(link n-1, segment, session n with all its turns);  link 0 = sha256(lock.json)

The last link is the run's root: it fixes the lock, every rollout and their order. A link stands in
its session's metadata, so that both are written in one transaction, and sealing keeps it. A process
that continues a run begins the next segment.

A chain proves that nothing changed since its root was told to somebody. It does not prove who wrote
it: whoever can write the folder can make another chain. Not here: checking one
(`verification/folder.py`).
"""

from __future__ import annotations

import array
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym.rollout_store.records import SessionRecord, StoredSession
from katgym.rollout_store.session_encoding import (
    reward_to_column,
    rollout_from_column,
    rollout_to_column,
)

CHAIN_FORMAT = 1
"""`chain` in `lock.json`; a run without it was written by a katgym that made none."""
LINK = "link"
"""Key of a session's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One rollout's place in the chain.

    Example:
        ChainLink(number=1, segment=1, sha256="9f86d081...")
    """

    number: int
    """Counted from 1 over the whole run; 0 stands for the lock."""
    segment: int
    """Counted from 1: the process that wrote it."""
    sha256: str

    def extend(self, session: StoredSession) -> ChainLink:
        """Return the link of a session that is written next, in this link's segment."""
        digest = hashlib.sha256(f"{self.sha256} {self.segment}\n".encode())
        digest.update(session_digest(session))
        return replace(self, number=self.number + 1, sha256=digest.hexdigest())


def first_link(lock: Mapping[str, Any]) -> ChainLink:
    """Return link 0 of a run with this lock."""
    text = json.dumps(lock, sort_keys=True, separators=(",", ":"))
    return ChainLink(number=0, segment=1, sha256=hashlib.sha256(text.encode()).hexdigest())


def last_link(lock: Mapping[str, Any], records: Iterable[SessionRecord]) -> ChainLink:
    """Return the latest link of a run's sessions; without one, that of the lock."""
    links = [link for record in records if (link := link_of(record)) is not None]
    return max(links, key=lambda link: link.number, default=first_link(lock))


def link_of(record: SessionRecord) -> ChainLink | None:
    """Return the link that a session's metadata holds; None for none that can be read."""
    try:
        return msgspec.convert(record.metadata.get(LINK), ChainLink)
    except msgspec.ValidationError:
        return None


def session_digest(session: StoredSession) -> bytes:
    """Return the SHA-256 of a recorded rollout: equal before it is written and after it is read.

    `UsageError` for a session that was not recorded whole.
    """
    record = session.record
    if record.rollout is None:
        raise UsageError(f"session {record.session_id!r} is no rollout that was recorded whole")
    # Read back once, numbers have the types that they have when they come from the disk.
    rollout = rollout_from_column(rollout_to_column(record.rollout), record.reward)
    head = (record.session_id, record.group_id, record.status, record.ended_s,
            reward_to_column(record.reward), rollout_to_column(rollout))  # fmt: skip
    digest = hashlib.sha256(_dump(head))
    tools: list[Mapping[str, Any]] | None = None
    for turn in session.turns:
        if list(turn.tools) != tools:
            tools = list(turn.tools)
            digest.update(_dump(tools))
        tokens = turn.tokens
        results = [
            (r.call_id, r.name, r.content, r.error, r.stage, float(r.called_s), float(r.started_s),
             float(r.ended_s), r.num_bytes_omitted)
            for r in turn.tool_results
        ]  # fmt: skip
        times = map(float, (turn.started_s, turn.sent_s, turn.completed_s, turn.ended_s))
        said = (turn.messages, turn.num_shared_messages, turn.answer, results, turn.finish_reason,
                turn.num_prompt_tokens, turn.num_completion_tokens, turn.model, turn.route,
                turn.upstream, turn.call_id, turn.choice, turn.sampling, tuple(times))  # fmt: skip
        digest.update(_dump(said))
        if tokens is not None:
            spans = [(span.version, span.start, span.end) for span in tokens.version_spans]
            counts = (tokens.parent, tokens.num_shared, tokens.branch, spans)
            lengths = (len(tokens.prompt_ids), len(tokens.completion_ids))
            digest.update(_dump((counts, lengths)))
            digest.update(array.array("i", tokens.prompt_ids).tobytes())
            digest.update(array.array("i", tokens.completion_ids).tobytes())
            digest.update(array.array("d", tokens.policy_logprobs).tobytes())
            digest.update(tokens.routes)
    return digest.digest()


def _dump(value: Any) -> bytes:
    """Return a value as JSON with sorted keys, its length before it."""
    try:
        text = msgspec.json.encode(value, order="sorted")
    except UnicodeEncodeError:  # lone surrogates, which only escaped are text
        text = json.dumps(msgspec.to_builtins(value), sort_keys=True).encode()
    return len(text).to_bytes(8, "little") + text
