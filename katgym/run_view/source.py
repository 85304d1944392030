"""A rollout store, with the files of the run around it, as a `RunView`.

    lock.json                    what the run was told; a gateway's store has none
    live.sqlite, finished/       its rollouts; a training run's are in the folder `rollouts`
    metrics.jsonl, eval.jsonl    a training run's steps, and the checkpoints that were evaluated

Every part may be missing, or be written to at this moment. Not here: the store
(`katgym.rollout_store`), which groups are shown (`selection.py`), which numbers become which chart
(`panels.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from katgym.environment.reward import Headline
from katgym.errors import UnknownNameError, UsageError
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.summary import EnvSummary, summarize
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
    StoredSession,
    as_rollout,
)
from katgym.rollout_store.groups import by_group, chosen_attempts, is_held_out, is_refused
from katgym.rollout_store.records import reward_value
from katgym.rollout_store.rollouts import rollout_of
from katgym.run_view.lock_facts import config_pairs, evaluation_facts, training_facts
from katgym.run_view.metric_files import Line, finite, read_steps, whole
from katgym.run_view.panels import evaluation_panels, reward_series, step_of, training_panels
from katgym.run_view.run_view import (
    Checkpoint,
    GroupView,
    RolloutView,
    RunKind,
    RunView,
    known_mean,
)
from katgym.run_view.selection import GroupHead, Selection, choose
from katgym.run_view.token_texts import find_token_texts

_NO_GROUPS = {
    RunKind.EVALUATION: "No rollout is finished yet.",
    RunKind.TRAINING: "No rollouts are kept: the run has no store in its folder 'rollouts' yet.",
    RunKind.STORE: "The store holds no sessions yet.",
}


def read_run(
    folder: Path, selection: Selection | None = None, *, tokenizer: Path | None = None
) -> RunView:
    """Return what the pages show of a run, also of one that is still written to.

    tokenizer: a model's folder; None looks where the run's lock says. Raises `UsageError` for a
    folder that is no run, and when no group is as asked for.
    """
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder; name the folder of a run")
    lock, kind = {}, RunKind.STORE
    if (folder / "lock.json").exists() or not RolloutStore.is_at(folder):
        lock = read_lock(folder)
        kind = RunKind.EVALUATION if "envs" in lock else RunKind.TRAINING
    texts, missing_texts = find_token_texts(folder, lock, tokenizer)
    store = folder / "rollouts" if kind is RunKind.TRAINING else folder
    stored = _read_groups(store, selection or Selection())
    view = RunView(
        name=folder.resolve().name,
        kind=kind,
        config=config_pairs(lock) if lock else (),
        groups=stored.shown,
        num_groups=stored.num_all,
        token_texts=texts,
    )
    match kind:
        case RunKind.EVALUATION:
            view = _with_evaluation(view, folder, lock)
        case RunKind.TRAINING:
            view = _with_training(view, folder, lock, stored.records)
        case RunKind.STORE:
            num_sessions = sum(len(group.rollouts) for group in view.groups)
            view = replace(view, facts=[("folder", str(folder)), ("sessions", str(num_sessions))])
    notes = [*view.notes, *stored.notes]
    if not view.groups:
        notes.append(_NO_GROUPS[kind])
    if missing_texts and view.has_tokens:
        notes.append(missing_texts)
    if kind is RunKind.TRAINING and not view.checkpoints:
        notes.append("No checkpoint is evaluated yet: eval.jsonl is missing or empty.")
    return replace(view, notes=notes)


def _with_evaluation(view: RunView, folder: Path, lock: Mapping[str, Any]) -> RunView:
    """Return an evaluation's view with what its rollouts come to."""
    rollouts = read_rollouts(folder)
    envs = list(summarize(rollouts, num_resamples=200).envs.values())
    notes = []
    planned = sum(env["num_tasks"] for env in lock["envs"]) * lock["group_size"]
    num_invalid = sum(not rollout.reward.is_valid for rollout in rollouts)
    is_finished = len(rollouts) >= planned and (folder / "summary.json").exists()
    if rollouts and not is_finished:
        notes.append(
            f"{len(rollouts)} of {planned} rollouts are there: the run is going on or was"
            " interrupted."
        )
    if num_invalid:
        notes.append(
            f"{num_invalid} of {len(rollouts)} rollouts have no valid reward and are in no mean."
        )
    if rollouts and not view.has_tokens:
        notes.append(
            "The policy recorded no tokens: trees are merged by whole messages, and there is"
            " nothing to colour."
        )
    return replace(
        view,
        facts=evaluation_facts(lock),
        notes=notes,
        panels=evaluation_panels(envs, rollouts),
        checkpoints=[_result(env) for env in envs if env.success_rate is not None],
    )


def _result(env: EnvSummary) -> Checkpoint:
    return Checkpoint(
        env_id=env.env_id,
        success=env.success_rate or 0.0,
        headline=env.success.headline,
        interval=env.headline[1],
        mean_reward=env.mean_reward,
        num_rollouts=env.num_rollouts,
        num_invalid=env.num_invalid,
    )


def _with_training(
    view: RunView, folder: Path, lock: Mapping[str, Any], records: Sequence[SessionRecord]
) -> RunView:
    """Return a training run's view with what its metrics and the records of its sessions say."""
    lines, num_torn = read_steps(folder / "metrics.jsonl")
    evaluations, num_torn_evaluations = read_steps(folder / "eval.jsonl")
    num_torn += num_torn_evaluations
    facts, notes = training_facts(lock), []
    if not lines:
        notes.append("No step is finished yet: metrics.jsonl is missing or empty.")
    else:
        facts.append(("steps", str(lines[-1]["step"])))
        seconds = sum(
            finite(line.get("time/total_s")) or finite(line.get("time/step_s")) or 0.0
            for line in lines
        )
        if seconds:
            facts.append(("time in steps", f"{seconds:,.0f} s"))
    if num_torn:
        notes.append(
            f"{num_torn} lines of metrics.jsonl and eval.jsonl cannot be read and are left out."
        )
    checkpoints = [c for line in evaluations if (c := _checkpoint(line)) is not None]
    return replace(
        view,
        facts=facts,
        notes=notes,
        panels=training_panels(lines, checkpoints, reward_series(records)),
        checkpoints=checkpoints,
    )


def _checkpoint(line: Line) -> Checkpoint | None:
    """Return a line of `eval.jsonl`; None for one without a success rate."""
    success = finite(line.get("success"))
    if success is None:
        return None
    is_reward = line.get("headline") == Headline.MEAN_REWARD
    ends = ("reward_low", "reward_high") if is_reward else ("low", "high")
    low, high = (finite(line.get(name)) for name in ends)
    return Checkpoint(
        env_id=str(line.get("env", "")),
        success=success,
        headline=Headline.MEAN_REWARD if is_reward else Headline.SUCCESS_RATE,
        interval=None if low is None or high is None else Interval(low=low, high=high),
        step=int(line["step"]),
        mean_reward=finite(line.get("reward")),
        num_rollouts=whole(line.get("num_rollouts")),
        num_invalid=whole(line.get("num_invalid")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredGroups:
    """What the pages take from a store; nothing of one that is not there yet."""

    shown: Sequence[GroupView] = ()
    num_all: int = 0
    records: Sequence[SessionRecord] = ()
    """Of all sessions, without their turns."""
    notes: Sequence[str] = ()


def _read_groups(folder: Path, selection: Selection) -> _StoredGroups:
    """Read the heads of all groups, from sessions' records, and the rollouts of those shown."""
    if not RolloutStore.is_at(folder):
        return _StoredGroups()
    notes = []
    with RolloutStore.open(folder, create=False) as store:
        records = store.sessions()
        groups = _counted(records)
        heads = [_head(group_id, members) for group_id, members in groups.items()]
        chosen = choose(heads, selection)
        stored = _read(store, [r.session_id for head in chosen for r in groups[head.group_id]])
        if num := store.num_left_out:
            notes.append(f"{num} shards of the rollout store cannot be read and are left out.")
    shown = [
        GroupView(
            group_id=head.group_id, env_id=head.env_id, task_id=head.task_id, step=head.step,
            is_held_out=head.is_held_out, is_refused=is_refused(groups[head.group_id][0]),
            rollouts=_views(groups[head.group_id], stored),
        )
        for head in chosen
    ]  # fmt: skip
    if num_open := sum(head.is_open for head in heads):
        notes.append(f"{num_open} of {len(heads)} groups have rollouts that are still open.")
    return _StoredGroups(shown=shown, num_all=len(heads), records=records, notes=notes)


def _counted(records: Sequence[SessionRecord]) -> dict[str, list[SessionRecord]]:
    """Return group id -> its sessions, the oldest group first.

    An attempt that was played again is there once, as everywhere (`chosen_attempts`).
    """
    found = by_group(sorted(records, key=lambda record: record.created_s))
    for group_id, members in found.items():
        counted = {record.session_id for record in chosen_attempts(members)}
        found[group_id] = [
            record
            for record in members
            if record.session_id in counted or record.status is SessionStatus.OPEN
        ]
    return found


def _head(group_id: str, records: Sequence[SessionRecord]) -> GroupHead:
    rewards = [reward_value(record) for record in records]
    first = rollout_of(records[0])
    return GroupHead(
        group_id=group_id,
        env_id=first.env_id,
        task_id=first.task_id,
        step=max((s for r in records if (s := step_of(r)) is not None), default=None),
        mean_reward=known_mean(rewards),
        num_invalid=rewards.count(None),
        is_held_out=any(is_held_out(record) for record in records),
        is_open=any(record.status is SessionStatus.OPEN for record in records),
    )


def _read(store: RolloutStore, wanted: Sequence[str]) -> dict[str, StoredSession]:
    """Return the wanted sessions that are still there."""
    try:
        return dict(zip(wanted, store.stored_many(wanted), strict=True))
    except UnknownNameError:  # one was dropped since the records were read
        found = (s for s in store.each() if s.record.session_id in set(wanted))
        return {stored.record.session_id: stored for stored in found}


def _views(
    records: Sequence[SessionRecord], stored: Mapping[str, StoredSession]
) -> list[RolloutView]:
    views = [
        RolloutView(
            rollout=as_rollout(stored[record.session_id]),
            advantage=finite(record.metadata.get("advantage")),
        )
        for record in records
        if record.session_id in stored
    ]
    return sorted(views, key=lambda view: view.rollout.attempt)
