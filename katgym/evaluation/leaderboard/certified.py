"""What of a run enters a certified leaderboard: trusted tasks, and metrics that were verified.

Tasks where programs decide enter if everything that their hidden tests demand is hidden
(`Trust.COMPLETE`); which do, the env says that the verifier has, task by task, so that runs of the
same tasks stay comparable. Not here: verifying (`evaluation/verification/`), ranks
(`leaderboard.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from katgym.environment.reward import Trust
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.statistics.summary import summarize
from katgym.evaluation.verification.report import VerifyReport
from katgym.play.rollout import Rollout

TaskTrust = Mapping[tuple[str, str], Trust]
"""(Env id, task id) -> its trust."""


def find_task_trust(
    rollouts: Iterable[Rollout], reports: Iterable[VerifyReport | None]
) -> TaskTrust:
    """Return the trust of all tasks: as the envs say here, else the least that a record tells."""
    found: dict[tuple[str, str], Trust] = {}
    levels = list(Trust)
    for rollout in rollouts:
        key, told = (rollout.env_id, rollout.task_id), rollout.reward.trust
        if told not in (None, Trust.WITHHELD):
            found[key] = max(told, found.get(key, told), key=levels.index)
    for report in reports:
        found.update(report.task_trust if report is not None else {})
    return found


def certify(
    entry: LeaderboardEntry,
    rollouts: Sequence[Rollout],
    report: VerifyReport | None,
    trust: TaskTrust,
    *,
    success_threshold: float | None = None,
) -> tuple[LeaderboardEntry, list[Rollout]]:
    """Return the entry with what was found of its run, and the rollouts that it is made of.

    report: None where the run cannot be verified. trust: of `find_task_trust`. An env none of whose
    tasks enters keeps them all, and is not ranked.
    """
    kept, left_out = list[Rollout](), dict[str, str]()
    notes: dict[str, list[str]] = {env_id: [] for env_id in entry.summary.envs}
    for env_id in notes:
        mine = [rollout for rollout in rollouts if rollout.env_id == env_id]
        tasks = {rollout.task_id: trust.get((env_id, rollout.task_id)) for rollout in mine}
        out = {task: level for task, level in tasks.items() if level not in (None, Trust.COMPLETE)}
        levels = ", ".join(f"{level} {n}" for level, n in sorted(Counter(out.values()).items()))
        if len(out) == len(tasks):
            left_out[env_id] = f"the trust of none of its {len(tasks)} tasks is complete ({levels})"
        else:
            mine = [rollout for rollout in mine if rollout.task_id not in out]
            if out:
                notes[env_id].append(
                    f"{len(out)} of its {len(tasks)} tasks are left out, as their trust is not"
                    f" complete ({levels})."
                )
        open_ = None if report is None else report.not_compared.get(env_id)
        kept += [_without(rollout, None if open_ is None else open_.metrics) for rollout in mine]
        if report is not None and str(open_ or ""):
            notes[env_id].append(f"not compared, metrics left out: {open_}.")
    entry = replace(
        entry,
        summary=summarize(kept, success_threshold=success_threshold),
        verified="not verified" if report is None else report.grounds,
        left_out=left_out,
        notes=notes,
    )
    return entry, kept


def _without(rollout: Rollout, metrics: Iterable[str] | None) -> Rollout:
    """Return a rollout without some of its metrics, without all where None; success keeps its."""
    reward = rollout.reward
    parts = {
        name: part
        for name, part in reward.components.items()
        if part.weight
        or name == rollout.success.component
        or (metrics is not None and name not in metrics)
    }
    return replace(rollout, reward=replace(reward, components=parts))
