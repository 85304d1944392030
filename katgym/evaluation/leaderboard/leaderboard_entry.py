"""One run as it enters a leaderboard: its name, its lock, its results.

Not here: grouping and ranking (`leaderboard.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katgym.errors import UsageError
from katgym.evaluation.statistics.summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvLock:
    """What pins one env of a run."""

    plugin_version: str
    tasks_sha256: str
    """Hash of the task set, as in `lock.json`."""


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

    def __post_init__(self) -> None:
        for env_id in self.summary.envs:
            if env_id not in self.env_locks:
                raise UsageError(
                    f"run {self.run_name!r} has no lock for env {env_id!r}: without the hash of"
                    " its tasks it cannot be compared with anything"
                )

    @classmethod
    def from_lock(
        cls, run_name: str, lock: Mapping[str, Any], summary: RunSummary, *, date: str = ""
    ) -> LeaderboardEntry:
        """Return the entry of a run folder's `lock.json` content and summary.

        date: as shown; empty takes the day of the lock's `created`.
        """
        try:
            return cls(
                run_name=run_name,
                policy=lock["policy"],
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
            )
        except KeyError as e:
            raise UsageError(f"lock of run {run_name!r} lacks {e.args[0]!r}") from e
