"""Plays a plan into a run's folder or a rollout store, and says what is there then.

A second call of the same configuration plays what is missing. Not here: the command line
(`cli/runs`, `cli/rollouts`), playing (`playing.py`), what is shown meanwhile (`progress.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.playing import Observer, PlayBudget, check_workers, play_missing
from katgym.evaluation.run_folders import RUNS, default_folder
from katgym.evaluation.statistics.summary import RunSummary, summarize
from katgym.evaluation.store import PlanStore, open_run, read_rollouts, write_json
from katgym.policies.base import Policy
from katgym.policies.uri import policy as make_policy
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.records import has_valid_reward, reward_value
from katgym.rollout_store.rollouts import rollout_of

logger = logging.getLogger(__name__)

Watch = Callable[[PlanStore], AbstractContextManager[Observer]]
"""Called once with what is there; what it returns is open while more is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation left behind."""

    folder: Path
    summary: RunSummary
    num_planned: int
    num_finished: int
    """With a valid reward, earlier runs included."""
    num_failed: int
    """Without a valid reward; the same command plays them again."""
    num_resumed: int
    """Finished by earlier runs."""


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


def watch_nothing(_: PlanStore) -> AbstractContextManager[Observer]:
    """Return an observer that does nothing."""
    return nullcontext(lambda _: None)


async def evaluate(
    config: EvalConfig, folder: Path | None = None, *, watch: Watch = watch_nothing
) -> EvalResult:
    """Play what is missing of `config` and return the summary of everything in its folder.

    folder: None: the configuration's own below `runs` (`default_folder`).
    watch: the observer that it returns is called with every rollout as soon as that is on disk.

    Raises `UsageError` for a configuration that cannot be played or a folder of another one, and
    `PolicyError` when the policy fails 16 times in a row for one reason.
    """
    plan = Plan.of(config)
    async with aclosing(make_policy(config.policy)) as policy:
        return await play_run(plan, policy, folder or default_folder(plan, RUNS), watch=watch)


async def play_run(
    plan: Plan,
    policy: Policy,
    folder: Path,
    *,
    watch: Watch = watch_nothing,
    budget: PlayBudget | None = None,
) -> EvalResult:
    """Play what is missing of a plan, as `evaluate` does; budget: as in `play_missing`."""
    if plan.config.tts:
        raise UsageError("tts is played by evaluate_scaled (katgym.evaluation.scaling.scaled_run)")
    check_workers(plan, policy)
    with open_run(folder, plan, policy.describe()) as store:
        try:
            with watch(store) as notify:
                file = folder / "cluster.json"
                await play_missing(plan, policy, store, notify, budget=budget, cluster_file=file)
        finally:
            result = write_summary(store, folder)
        return result


def write_summary(store: PlanStore, folder: Path) -> EvalResult:
    """Write `summary.json` of what is in a run's folder, and return it."""
    summary = summarize(read_rollouts(folder))
    if store.link is not None:
        summary = replace(summary, root=store.link.sha256)
    write_json(folder / "summary.json", summary.to_json())
    num_planned = len(store.plan)
    num_failed = len({request.key for request in store.plan.requests()} - store.done)
    return EvalResult(
        folder=folder,
        summary=summary,
        num_planned=num_planned,
        num_finished=num_planned - num_failed,
        num_failed=num_failed,
        num_resumed=store.num_resumed,
    )


async def collect_rollouts(
    config: EvalConfig, folder: Path, *, watch: Watch = watch_nothing
) -> CollectResult:
    """Play what a store does not hold of `config`, for whoever trains on it later.

    folder: the store's, which is made if there is none; others may write to it meanwhile.
    watch: as in `evaluate`.

    Raises `UsageError` for a configuration that cannot be played and a folder that cannot be a
    store, and `PolicyError` when the policy fails 16 times in a row for one reason.
    """
    if config.tts:
        raise UsageError("tts chooses what an evaluation counts; a collection keeps all rollouts")
    plan = Plan.of(config)
    with RolloutStore.open(folder) as opened:
        async with aclosing(make_policy(config.policy)) as policy:
            check_workers(plan, policy)
            if not policy.records_tokens:
                logger.warning(
                    "policy %r records no tokens: its rollouts are kept as messages, which can be"
                    " evaluated and taught from ([data] teachers), but not trained on as sampled",
                    config.policy,
                )
            store = PlanStore(opened, plan, policy.describe())
            with watch(store) as notify:
                await play_missing(plan, policy, store, notify)
            return _count(store, has_tokens=policy.records_tokens)


def _count(store: PlanStore, *, has_tokens: bool) -> CollectResult:
    """Count what a store holds of its plan."""
    found, plan = store.attempts(), store.plan
    in_group = Counter(record.group_id for record in found)
    rewards = [value for r in found if (value := reward_value(r)) is not None]
    invalid = Counter(str(rollout_of(r).failure_kind) for r in found if not has_valid_reward(r))
    turns = [turn for r in found for turn in store.store.turns(r.session_id)]
    return CollectResult(
        folder=store.store.folder,
        num_groups=sum(num >= plan.config.group_size for num in in_group.values()),
        num_planned_groups=len(store.group_ids),
        num_rollouts=len(found),
        num_planned=len(plan),
        num_resumed=store.num_resumed,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        invalid=dict(sorted(invalid.items())),
        num_prompt_tokens=sum(turn.num_prompt_tokens for turn in turns),
        num_completion_tokens=sum(turn.num_completion_tokens for turn in turns),
        has_tokens=has_tokens,
    )
