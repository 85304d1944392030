"""One run as it enters a leaderboard: its name, its lock, its results.

Not here: grouping and ranking (`leaderboard.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.errors import UsageError
from katgym.evaluation.run_state import policy_text
from katgym.evaluation.statistics.summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvLock:
    """What pins one env of a run."""

    plugin_version: str
    tasks_sha256: str
    """Hash of the task set, as in `lock.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a policy's tokens cost.

    Example:
        Prices(prompt=0.4, completion=1.6)
    """

    prompt: float
    """Dollars for a million prompt tokens."""
    completion: float
    """Dollars for a million sampled tokens."""

    def cost(self, num_prompt_tokens: int, num_completion_tokens: int) -> float:
        """Return dollars."""
        return (self.prompt * num_prompt_tokens + self.completion * num_completion_tokens) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardEntry:
    """One run: who, when, with what, and its results.

    Example:
        LeaderboardEntry(run_name="qwen3-8b", policy="vllm:http://host:8000#Qwen/Qwen3-8B",
                         date="2026-03-01", katgym_version="0.1.0", sampling={"temperature": 0.6},
                         env_locks={"katgym/Math-v0": EnvLock(...)}, summary=RunSummary(...))
    """

    run_name: str
    policy: str
    date: str
    katgym_version: str
    sampling: Mapping[str, float | int | str | None]
    env_locks: Mapping[str, EnvLock]
    """One for every env of `summary`."""
    summary: RunSummary
    verified: str = ""
    """What whoever makes the leaderboard found when verifying the run (`VerifyReport.grounds`); ""
    where it was not verified."""

    prices: Prices | None = None
    """None where they are not known: no cost is shown."""
    unfinished: str = ""
    """How far a run is that is not finished: it is shown and not ranked; "" for the others."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Env id -> why none of its tasks enters a certified leaderboard: shown there, not ranked."""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Env id -> what a reader of its row has to know, in sentences."""

    def __post_init__(self) -> None:
        for env_id in self.summary.envs:
            if env_id not in self.env_locks:
                raise UsageError(
                    f"run {self.run_name!r} has no lock for env {env_id!r}: without the hash of"
                    " its tasks it cannot be compared with anything"
                )

    @classmethod
    def from_lock(
        cls,
        run_name: str,
        lock: Mapping[str, Any],
        summary: RunSummary,
        *,
        date: str = "",
        unfinished: str = "",
    ) -> LeaderboardEntry:
        """Return the entry of a run folder's `lock.json` content and summary.

        date: as shown; empty takes the day of the lock's `created`.
        """
        try:
            return cls(
                run_name=run_name,
                policy=policy_text(lock),
                date=date or str(lock["created"])[:10],
                katgym_version=lock["katgym_version"],
                sampling=lock["sampling"],
                env_locks={
                    env["env_id"]: EnvLock(
                        plugin_version=env["plugin_version"], tasks_sha256=env["tasks_sha256"]
                    )
                    for env in lock["envs"]
                },
                summary=summary,
                unfinished=unfinished,
            )
        except KeyError as e:
            raise UsageError(f"lock of run {run_name!r} lacks {e.args[0]!r}") from e
