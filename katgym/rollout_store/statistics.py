"""Counts of a store's sessions, calls, tokens and bytes.

Not here: printing them (`katgym.cli.rollouts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from katgym.errors import UsageError
from katgym.rollout_store import shards
from katgym.rollout_store.encoding import spans_from_columns
from katgym.rollout_store.store import RolloutStore


@dataclass(slots=True, kw_only=True)
class StoreStatistics:
    """Counts over all sessions; tokens of a prompt that a parent has are kept once."""

    num_sessions: Counter[str] = field(default_factory=Counter)
    """By status."""
    num_sealed: int = 0
    num_shards: int = 0
    num_calls: int = 0
    """Answers: a call with `n` of them counts `n` times."""
    num_prompt_tokens: int = 0
    """As the model read them: whole prompts, summed over calls."""
    num_sampled_tokens: int = 0
    num_kept_tokens: int = 0
    """Deltas: what is stored."""
    branches: Counter[str] = field(default_factory=Counter)
    """Calls that do not extend their parent, by reason."""
    failed_calls: Counter[str] = field(default_factory=Counter)
    """By kind."""
    versions: Counter[int] = field(default_factory=Counter)
    """Sampled tokens by policy version."""
    num_bytes: int = 0
    """Of the database, its log and the shards."""
    unreadable: list[str] = field(default_factory=list)
    """Shards that were left out, each with what to do."""

    @property
    def sharing_ratio(self) -> float:
        """Tokens of all calls for each token that is kept; 1 means that nothing is shared."""
        total = self.num_prompt_tokens + self.num_sampled_tokens
        return total / self.num_kept_tokens if self.num_kept_tokens else 1.0

    @property
    def bytes_per_token(self) -> float:
        """Of the tokens that are kept; 0 without any."""
        return self.num_bytes / self.num_kept_tokens if self.num_kept_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {name: getattr(self, name) for name in StoreStatistics.__slots__}
        values["versions"] = {str(version): n for version, n in self.versions.items()}
        return {
            **values,
            "sharing_ratio": self.sharing_ratio,
            "bytes_per_token": self.bytes_per_token,
        }


def statistics(*stores: RolloutStore) -> StoreStatistics:
    """Count what stores hold together; a shard that cannot be read is named in `unreadable`."""
    found = StoreStatistics()
    for store in stores:
        _count_store(found, store)
    return found


def _count_store(found: StoreStatistics, store: RolloutStore) -> None:
    with store.connections.read() as connection:
        names = [
            row[0] for row in connection.execute("SELECT name FROM shards WHERE state = 'finished'")
        ]
        for row in connection.execute("SELECT status, count(*) FROM sessions GROUP BY status"):
            found.num_sessions[row[0]] += row[1]
        for row in connection.execute("SELECT kind, count(*) FROM failed_calls GROUP BY kind"):
            found.failed_calls[row[0]] += row[1]
        _count(found, map(_of_row, connection.execute(_LIVE_TURNS)))
    for name in names:
        try:
            records = shards.read_records(store.finished, name)
            turns = shards.read_turn_statistics(store.finished, name)
            failed = shards.read_failed_calls(store.finished, name)
        except UsageError as e:
            found.unreadable.append(str(e))
            continue
        found.num_sessions.update(str(record.status) for record in records)
        found.failed_calls.update(call.kind for call in failed)
        found.num_sealed += len(records)
        _count(found, turns)
    found.num_shards += len(names)
    found.num_bytes += store.num_bytes()


_LIVE_TURNS = (
    "SELECT num_shared, num_prompt_tokens, version, num_completion_tokens, has_tokens, branch,"
    " versions FROM turns"
)


def _of_row(row: Any) -> dict[str, Any]:
    """Return a row of SQLite as a shard has it."""
    spans = spans_from_columns(row["version"], row["versions"], row["num_completion_tokens"])
    versions = [{"version": s.version, "start": s.start, "end": s.end} for s in spans]
    return {**dict(row), "versions": versions}


def _count(found: StoreStatistics, turns: Iterable[Mapping[str, Any]]) -> None:
    for turn in turns:
        found.num_calls += 1
        if not turn["has_tokens"]:
            continue
        found.num_prompt_tokens += turn["num_prompt_tokens"]
        found.num_sampled_tokens += turn["num_completion_tokens"]
        found.num_kept_tokens += (
            turn["num_prompt_tokens"] - turn["num_shared"] + turn["num_completion_tokens"]
        )
        if turn["branch"] is not None:
            found.branches[turn["branch"]] += 1
        for span in turn["versions"]:
            found.versions[span["version"]] += span["end"] - span["start"]
