"""A training run as a `RunView`: `metrics.jsonl`, `eval.jsonl`, the rollout store, `lock.json`.

Every part may be missing, or be written to at this moment. Not here: the run
(`katgym_trainer.runs`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.evaluation.statistics.intervals import mean, t_interval
from katgym.rollout_store import SessionRecord
from katgym.rollout_store.records import reward_value
from katgym.rollout_store.store import DATABASE
from katgym.run_view.json_values import finite, whole
from katgym.run_view.lock_facts import config_pairs, training_facts
from katgym.run_view.panels import training_panels
from katgym.run_view.run_view import Band, Checkpoint, GroupView, RunKind, RunView, Series
from katgym.run_view.selection import Selection
from katgym.run_view.stored_groups import is_held_out, session_records, step_of, stored_groups
from katgym.run_view.token_texts import TokenTexts

logger = logging.getLogger(__name__)

Line = Mapping[str, Any]
MIN_GROUPS = 4
"""Groups of a step from which on its mean reward has an interval."""


def training_view(
    folder: Path,
    lock: Mapping[str, Any],
    *,
    selection: Selection,
    texts: TokenTexts | None,
    missing_texts: str,
) -> RunView:
    """Return the view of a training run, also of one that is still going on.

    missing_texts: why there are no `texts`.
    """
    lines, num_torn = _steps(folder / "metrics.jsonl")
    evaluations, num_torn_evaluations = _steps(folder / "eval.jsonl")
    checkpoints = [c for line in evaluations if (c := _checkpoint(line)) is not None]
    notes = []
    if not lines:
        notes.append("No step is finished yet: metrics.jsonl is missing or empty.")
    if num_torn + num_torn_evaluations:
        notes.append(
            f"{num_torn + num_torn_evaluations} lines of metrics.jsonl and eval.jsonl cannot be"
            " read and are left out."
        )
    store, num_groups = folder / "rollouts", 0
    groups: list[GroupView] = []
    reward: Series | None = None
    if (store / DATABASE).is_file():
        groups, num_groups, more = stored_groups(store, selection)
        notes += more
        reward = _reward_series(session_records(store))
    has_tokens = any(view.rollout.has_tokens for group in groups for view in group.rollouts)
    if not groups:
        notes.append("No rollouts are kept: the run has no store in its folder 'rollouts' yet.")
    elif missing_texts and has_tokens:
        notes.append(missing_texts)
    if not checkpoints:
        notes.append("No checkpoint is evaluated yet: eval.jsonl is missing or empty.")
    return RunView(
        name=folder.resolve().name,
        kind=RunKind.TRAINING,
        facts=[*training_facts(lock), *_progress(lines)],
        config=config_pairs(lock),
        notes=notes,
        panels=training_panels(lines, checkpoints, reward),
        checkpoints=checkpoints,
        groups=groups,
        num_groups=num_groups,
        token_texts=texts,
    )


def _steps(path: Path) -> tuple[list[Line], int]:
    """Return the lines that have a step, by step, and how many others there are.

    A last line without its end is still written and counts as neither; a step that is there twice
    counts as written last.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    complete = data[: data.rfind(b"\n") + 1]
    lines, num_torn = [], 0
    for raw in complete.split(b"\n"):
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except ValueError:
            num_torn += 1
            continue
        if isinstance(line, dict) and finite(line.get("step")) is not None:
            lines.append(line)
        else:
            num_torn += 1
    if num_torn:
        logger.warning("%d lines of %s cannot be read and are left out", num_torn, path)
    latest = {(line["step"], line.get("env")): line for line in lines}
    return sorted(latest.values(), key=lambda line: line["step"]), num_torn


def _checkpoint(line: Line) -> Checkpoint | None:
    """Return a line of `eval.jsonl`; None for one without a success rate."""
    success = finite(line.get("success"))
    if success is None:
        return None
    return Checkpoint(
        env_id=str(line.get("env", "")),
        success=success,
        low=finite(line.get("low")),
        high=finite(line.get("high")),
        step=int(line["step"]),
        mean_reward=finite(line.get("reward")),
        num_rollouts=whole(line.get("num_rollouts")),
        num_invalid=whole(line.get("num_invalid")),
    )


def _reward_series(records: Sequence[SessionRecord]) -> Series | None:
    """Return the mean reward of each step's rollouts with its interval, clustered by group."""
    by_step: dict[int, list[tuple[str, float]]] = {}
    for record in records:
        if is_held_out(record):
            continue
        step = step_of(record)
        value = reward_value(record)
        if step is not None and value is not None:
            by_step.setdefault(step, []).append((record.group_id, value))
    points, bands = [], []
    for step, rows in sorted(by_step.items()):
        points.append((float(step), mean(rows)))
        # Of fewer groups it would be wider than the axis, and tell nothing.
        has_enough = len({group_id for group_id, _ in rows}) >= MIN_GROUPS
        interval = t_interval(rows) if has_enough else None
        if interval is not None:
            bands.append(Band(x=step, low=interval.low, high=interval.high))
    return Series(name="rollout/reward", points=points, bands=bands) if points else None


def _progress(lines: Sequence[Line]) -> list[tuple[str, str]]:
    if not lines:
        return []
    seconds = sum(
        finite(line.get("time/total_s")) or finite(line.get("time/step_s")) or 0.0 for line in lines
    )
    facts = [("steps", str(lines[-1]["step"]))]
    return [*facts, ("time in steps", f"{seconds:,.0f} s")] if seconds else facts
