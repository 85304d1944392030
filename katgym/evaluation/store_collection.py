"""Collects rollouts into a rollout store, group by group, for whoever trains on them later.

A group's id is a hash of everything that decides how it is played, so that the same command finds
what it has collected, and commands that differ never mix. Not here: the command line
(`cli/rollouts/collect_command.py`), playing (`playing.py`), how a rollout is kept
(`katgym.rollout_store.rollouts`), reading groups (`katgym.rollout_store.groups`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from katgym.evaluation.plan import EvalConfig, Plan, PlannedEnv, rollout_key
from katgym.evaluation.playing import Observer, play_missing
from katgym.play.rollout import Rollout
from katgym.policies.uri import policy as make_policy
from katgym.rollout_store import RolloutStore, SessionRecord, record_rollouts
from katgym.rollout_store.groups import GROUP_SIZE, chosen_attempts
from katgym.rollout_store.records import has_valid_reward, reward_value
from katgym.rollout_store.rollouts import rollout_of

logger = logging.getLogger(__name__)

_DIGITS = 12
"""Of the hash in a group's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """What a store holds of a plan; every attempt counts once, earlier runs included."""

    folder: Path
    num_groups: int
    """Planned groups of which every rollout has ended."""
    num_planned_groups: int
    num_rollouts: int
    """That have ended."""
    num_planned: int
    num_resumed: int
    """With a valid reward before this run."""
    mean_reward: float | None
    """Of the valid ones; None without any."""
    invalid: Mapping[str, int]
    """Rollouts without a valid reward by failure kind; the same command plays them again."""
    num_prompt_tokens: int
    num_completion_tokens: int
    has_tokens: bool
    """Whether the policy records tokens."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "folder": str(self.folder), "invalid": dict(self.invalid)}


class GroupCollection:
    """The planned groups of a store: which of their rollouts are there, where new ones go."""

    def __init__(self, store: RolloutStore, plan: Plan, policy: Mapping[str, Any]) -> None:
        """Look for what is there; policy: what tells it from others (`Policy.describe`)."""
        self.store = store
        self.plan = plan
        self.group_ids = group_ids(plan, policy)
        self.done = {_key(record) for record in self.attempts() if has_valid_reward(record)}
        self.num_resumed = len(self.done)

    def attempts(self) -> list[SessionRecord]:
        """Return the planned rollouts that have ended, one for each attempt."""
        groups: dict[str, list[SessionRecord]] = {name: [] for name in self.group_ids.values()}
        for record in self.store.sessions():
            if record.group_id in groups and record.rollout is not None:
                groups[record.group_id].append(record)
        return [record for records in groups.values() for record in chosen_attempts(records)]

    def resumed(self) -> list[tuple[str, str, float]]:
        """Return env id, task id and reward of the planned rollouts that have a valid one."""
        return [
            (record.rollout.env_id, record.rollout.task_id, value)
            for record in self.attempts()
            if record.rollout is not None and (value := reward_value(record)) is not None
        ]

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts, also those that failed, in one transaction."""
        record_rollouts(
            self.store,
            rollouts,
            group_id=lambda rollout: self.group_ids[rollout.env_id, rollout.task_id],
            metadata={GROUP_SIZE: self.plan.config.group_size},
            is_durable=True,
        )
        self.done |= {
            rollout_key(r.env_id, r.task_id, r.attempt) for r in rollouts if r.reward.is_valid
        }

    def result(self, *, has_tokens: bool) -> CollectResult:
        """Count what the store holds of the plan."""
        found = self.attempts()
        in_group = Counter(record.group_id for record in found)
        rewards = [value for r in found if (value := reward_value(r)) is not None]
        invalid = Counter(str(rollout_of(r).failure_kind) for r in found if not has_valid_reward(r))
        turns = [t for r in found for t in self.store.turns(r.session_id)]
        return CollectResult(
            folder=self.store.folder,
            num_groups=sum(num >= self.plan.config.group_size for num in in_group.values()),
            num_planned_groups=len(self.group_ids),
            num_rollouts=len(found),
            num_planned=len(self.plan),
            num_resumed=self.num_resumed,
            mean_reward=sum(rewards) / len(rewards) if rewards else None,
            invalid=dict(sorted(invalid.items())),
            num_prompt_tokens=sum(turn.num_prompt_tokens for turn in turns),
            num_completion_tokens=sum(turn.num_completion_tokens for turn in turns),
            has_tokens=has_tokens,
        )


async def collect_rollouts(
    config: EvalConfig,
    folder: Path,
    *,
    observer: Callable[[GroupCollection], Observer] | None = None,
) -> CollectResult:
    """Play what a store does not hold of `config`, and return what it holds then.

    folder: the store's, which is made if there is none; others may write to it meanwhile.
    observer: called once; the function it returns is called with every rollout that is written.

    Raises `UsageError` for a configuration that cannot be played and a folder that cannot be a
    store, and `PolicyError` when the policy fails 16 times in a row for one reason.
    """
    plan = Plan.of(config)
    with RolloutStore.open(folder) as store:
        policy = make_policy(config.policy)
        try:
            if not policy.records_tokens:
                logger.warning(
                    "policy %r records no tokens: its rollouts are kept as messages, which can be"
                    " evaluated and taught from ([data] teachers), but not trained on as sampled",
                    config.policy,
                )
            collection = GroupCollection(store, plan, policy.describe())
            notify = observer(collection) if observer is not None else lambda _: None
            await play_missing(plan, policy, collection, notify)
            return collection.result(has_tokens=policy.records_tokens)
        finally:
            await policy.aclose()


def group_ids(plan: Plan, policy: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return the id of each planned group, by env id and task id.

    It does not depend on what else is planned: more tasks, or more envs, leave it as it is.

    Example:
        {("katgym/Arithmetic-v0", "train-000012"): "katgym/Arithmetic-v0/train-000012/8c2f03b71d5e"}
    """
    shared = {**plan.config.identity(), "policy_details": dict(policy)}
    found = {}
    for item in plan.envs:
        told = {**shared, "env": _identity(item)}
        for task in item.task_sha256.items():
            text = json.dumps({**told, "task": task}, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
            found[item.env_id, task[0]] = f"{item.env_id}/{task[0]}/{digest}"
    return found


def _identity(item: PlannedEnv) -> dict[str, Any]:
    """Return what tells an env from others, whichever of its tasks are played."""
    lock = item.lock()
    return {name: lock[name] for name in ("kwargs", "plugin_version", "max_turns", "tools")}


def _key(record: SessionRecord) -> str:
    rollout = rollout_of(record)
    return rollout_key(rollout.env_id, rollout.task_id, rollout.attempt)
