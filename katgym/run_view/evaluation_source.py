"""An evaluation run as a `RunView`: its rollout store, `lock.json`.

Not here: what the numbers mean (`katgym.evaluation.statistics.summary`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from katgym.evaluation.statistics.summary import EnvSummary, summarize
from katgym.evaluation.store import read_rollouts
from katgym.play.rollout import Rollout
from katgym.run_view.lock_facts import config_pairs, evaluation_facts
from katgym.run_view.run_view import (
    Checkpoint,
    GroupView,
    Panel,
    RunKind,
    RunView,
    Series,
)
from katgym.run_view.selection import Selection
from katgym.run_view.stored_groups import stored_groups
from katgym.run_view.token_texts import TokenTexts


def evaluation_view(
    folder: Path,
    lock: Mapping[str, Any],
    *,
    selection: Selection,
    texts: TokenTexts | None,
    missing_texts: str,
) -> RunView:
    """Return the view of an evaluation, also of one that is still going on.

    missing_texts: why there are no `texts`.
    """
    lines = read_rollouts(folder)
    groups: list[GroupView] = []
    num_groups, more = 0, list[str]()
    if lines:
        groups, num_groups, more = stored_groups(folder, selection)
    envs = list(summarize(lines, num_resamples=200).envs.values()) if lines else []
    has_tokens = any(view.rollout.has_tokens for group in groups for view in group.rollouts)
    notes = _notes(folder, lock, lines, has_tokens=has_tokens)
    return RunView(
        name=folder.resolve().name,
        kind=RunKind.EVALUATION,
        facts=evaluation_facts(lock),
        config=config_pairs(lock),
        notes=[*notes, *more, *([missing_texts] if missing_texts and has_tokens else [])],
        panels=_panels(envs, lines),
        checkpoints=[_checkpoint(env) for env in envs if env.success_rate is not None],
        groups=groups,
        num_groups=num_groups,
        token_texts=texts,
    )


def _checkpoint(env: EnvSummary) -> Checkpoint:
    interval = env.success_interval
    return Checkpoint(
        env_id=env.env_id,
        success=env.success_rate or 0.0,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        mean_reward=env.mean_reward,
        num_rollouts=env.num_rollouts,
        num_invalid=env.num_invalid,
    )


def _panels(envs: Sequence[EnvSummary], lines: Sequence[Rollout]) -> list[Panel]:
    """Return pass@k over k, and how rewards and turns are spread."""
    panels = []
    of_k = [env for env in envs if len(env.pass_at_k) > 1]
    for title, name in (("pass@k", "pass_at_k"), ("pass^k", "pass_hat_k")):
        if of_k:
            unit = "one of k succeeds" if name == "pass_at_k" else "all of k succeed"
            series = [Series(name=e.env_id, points=list(getattr(e, name).items())) for e in of_k]
            panels.append(
                Panel(title=title, unit=unit, series=series, x_name="k", is_from_zero=True)
            )
    by_env: dict[str, list[Rollout]] = {}
    for line in lines:
        by_env.setdefault(line.env_id, []).append(line)
    for title, key in (("Turns", "num_turns"), ("Parallel calls", "num_parallel_calls")):
        series = [
            Series(name=env_id, points=_shares([getattr(line, key) for line in of_env]))
            for env_id, of_env in by_env.items()
        ]
        if any(len(one.points) > 1 for one in series):
            panels.append(
                Panel(title=title, unit="share of rollouts", series=series,
                      x_name=f"{title.lower()} of a rollout", is_from_zero=True,
                      is_bars=len(series) == 1)
            )  # fmt: skip
    return panels


def _shares(counts: Sequence[int]) -> list[tuple[float, float]]:
    """Return (count, share of entries with it), counts between without a gap."""
    low, high = min(counts), max(counts)
    return [(x, counts.count(x) / len(counts)) for x in range(low, high + 1)]


def _notes(
    folder: Path,
    lock: Mapping[str, Any],
    lines: Sequence[Rollout],
    *,
    has_tokens: bool,
) -> list[str]:
    notes = []
    planned = sum(env["num_tasks"] for env in lock["envs"]) * lock["group_size"]
    num_invalid = sum(not line.reward.is_valid for line in lines)
    if not lines:
        notes.append("No rollout is finished yet.")
    elif len(lines) < planned or not (folder / "summary.json").exists():
        notes.append(
            f"{len(lines)} of {planned} rollouts are there: the run is going on or was interrupted."
        )
    if num_invalid:
        notes.append(
            f"{num_invalid} of {len(lines)} rollouts have no valid reward and are in no mean."
        )
    if lines and not has_tokens:
        notes.append(
            "The policy recorded no tokens: trees are merged by whole messages, and there is"
            " nothing to colour."
        )
    return notes
