"""A rollout store, with the files of the run around it, as a `RunView`.

    lock.json                    what the run was told; a gateway's store has none
    live.sqlite, finished/       its rollouts; a training run's are in the folder `rollouts`, those
                                 of several gateways in a folder each
    metrics.jsonl, eval.jsonl    a training run's steps, and the checkpoints that were evaluated

Every part may be missing, or be written to at this moment. Not here: the store
(`katgym.rollout_store`), its groups (`stored_groups.py`), which numbers become which chart
(`panels.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from katgym.environment.reward import Headline
from katgym.errors import UsageError
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.summary import EnvSummary, summarize
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.evaluation.verification.marks import find_mark
from katgym.rollout_store import SessionRecord, StoreReader
from katgym.run_view.reading.lock_facts import config_pairs, evaluation_facts, training_facts
from katgym.run_view.reading.metric_files import Line, finite, read_steps, whole
from katgym.run_view.reading.panels import evaluation_panels, reward_series, training_panels
from katgym.run_view.reading.selection import Selection
from katgym.run_view.reading.stored_groups import KnownHeads, read_groups
from katgym.run_view.run_view import Checkpoint, RunKind, RunView
from katgym.run_view.token_texts import find_token_texts

EVERYTHING = Selection()
"""All groups, up to the limit."""
_NO_GROUPS = {
    RunKind.EVALUATION: "No rollout is finished yet.",
    RunKind.TRAINING: "No rollouts are kept: the run has no store in its folder 'rollouts' yet.",
    RunKind.STORE: "The store holds no sessions yet.",
}


def read_run(
    folder: Path,
    selection: Selection | None = EVERYTHING,
    *,
    tokenizer: Path | None = None,
    known: KnownHeads | None = None,
) -> RunView:
    """Return what the pages show of a run, also of one that is still written to.

    selection: the groups whose turns are read; None reads none, and all heads. tokenizer: a model's
    folder; None looks where the run's lock says. known: heads of an earlier call, see
    `read_groups`. Raises `UsageError` for a folder that is no run, and when no group is as asked
    for.
    """
    lock, kind = run_kind(folder)
    texts, missing_texts = find_token_texts(folder, lock, tokenizer)
    stored = read_groups(store_folder(folder, kind), selection, known)
    view = RunView(
        name=folder.resolve().name,
        kind=kind,
        config=config_pairs(lock) if lock else (),
        groups=stored.shown,
        heads=stored.heads,
        token_texts=texts,
    )
    match kind:
        case RunKind.EVALUATION:
            view = _with_evaluation(view, folder, lock)
            if mark := find_mark(lock, stored.records):
                view = replace(view, facts=[*view.facts, ("verified", mark)])
        case RunKind.TRAINING:
            view = _with_training(view, folder, lock, stored.records)
        case RunKind.STORE:
            num_sessions = sum(len(head.rollouts) for head in view.heads)
            view = replace(view, facts=[("folder", str(folder)), ("sessions", str(num_sessions))])
    notes = [*view.notes, *stored.notes]
    if not view.heads:
        notes.append(_NO_GROUPS[kind])
    if missing_texts and view.has_tokens:
        notes.append(missing_texts)
    if kind is RunKind.TRAINING and not view.checkpoints:
        notes.append("No checkpoint is evaluated yet: eval.jsonl is missing or empty.")
    return replace(view, notes=notes)


def run_kind(folder: Path) -> tuple[dict[str, Any], RunKind]:
    """Return a run's lock, empty for a store of its own, and what the folder holds.

    Raises `UsageError` for a folder that is no run.
    """
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not a folder; name the folder of a run")
    if StoreReader.is_at(folder) and not (folder / "lock.json").exists():
        return {}, RunKind.STORE
    lock = read_lock(folder)
    return lock, RunKind.EVALUATION if "envs" in lock else RunKind.TRAINING


def store_folder(folder: Path, kind: RunKind) -> Path:
    """Return where a run's rollouts are."""
    return folder / "rollouts" if kind is RunKind.TRAINING else folder


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
