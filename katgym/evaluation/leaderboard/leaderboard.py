"""Several runs side by side: which of them can be ranked against each other, and how.

Runs over different tasks are never put in one order: each set of tasks gets its own ranking and a
warning. Not here: how a leaderboard looks (`leaderboard_text.py`, `run_view/screens/`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from katgym.environment.reward import Headline, Trust
from katgym.errors import UsageError
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.summary import EnvSummary, success_text

OVERALL = "Overall"


class Measure(StrEnum):
    """What a leaderboard ranks by; `HEADLINE` is what each env says."""

    HEADLINE = "headline"
    SUCCESS_RATE = "success_rate"
    MEAN_REWARD = "mean_reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardRow:
    """One run in one section.

    `ranks` are the best and the worst rank the intervals leave open: 1 + the number of runs of the
    group whose interval lies wholly above this one's, and the number of runs whose interval does
    not lie wholly below it. None without an interval, or without a run to be ranked against.

    Example:
        ranks=(1, 2): nothing is clearly better, one other run is not clearly worse.
    """

    ranks: tuple[int, int] | None
    entry: LeaderboardEntry
    value: float | None
    interval: Interval | None
    envs: tuple[EnvSummary, ...]
    """The one env of the section; all envs of the run in the overall section."""

    @property
    def num_tasks(self) -> int:
        """Tasks over the row's envs."""
        return sum(env.num_tasks for env in self.envs)

    @property
    def num_rollouts(self) -> int:
        """Rollouts over the row's envs, invalid ones included."""
        return sum(env.num_rollouts for env in self.envs)

    @property
    def num_invalid(self) -> int:
        """Rollouts without a valid reward."""
        return sum(env.num_invalid for env in self.envs)

    @property
    def cost(self) -> float | None:
        """Dollars for all tokens of the row; None without prices."""
        if self.entry.prices is None:
            return None
        return self.entry.prices.cost(
            sum(env.num_prompt_tokens for env in self.envs),
            sum(env.num_completion_tokens for env in self.envs),
        )

    @property
    def wall_s(self) -> float:
        """Seconds of all rollouts, which may have been played at the same time."""
        return math.fsum(env.wall_s for env in self.envs)

    @property
    def success_rate_of_all(self) -> float:
        """Success rate with invalid rollouts as failures; over envs that weigh the same."""
        return math.fsum(env.success_rate_of_all for env in self.envs) / len(self.envs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardGroup:
    """Runs over the same tasks, best first: the only thing that carries ranks."""

    label: str
    """Names the tasks by the start of their hash, and envs where runs have different ones; empty
    when the section has one group."""
    rows: tuple[LeaderboardRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardSection:
    """One env, or all of them."""

    title: str
    measure: Measure
    """`HEADLINE` only over several envs whose headlines differ."""
    groups: tuple[LeaderboardGroup, ...]
    warnings: tuple[str, ...]
    """Empty exactly when all runs of the section are comparable."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, whose rollouts are invalid or withheld, and what else entries note."""
        found = list(self.warnings)
        for row in (row for group in self.groups for row in group.rows):
            name = row.entry.run_name
            if row.num_invalid:
                found.append(
                    f"{name}: {row.num_invalid} of its {row.num_rollouts} rollouts are"
                    ' invalid, and in no rate but "of all".'
                )
            if len(row.envs) > 1:
                continue  # the section of each env says the rest
            (env,) = row.envs
            if env.withheld_reason:
                num = env.trust[Trust.WITHHELD]
                found.append(f"{name}: trust in {num} verdicts is withheld; {env.withheld_reason}.")
            found += [f"{name}: {note}" for note in row.entry.notes.get(env.env_id, ())]
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """Sections to render, with what the numbers mean."""

    title: str
    level: float
    entries: tuple[LeaderboardEntry, ...]
    overall: LeaderboardSection | None
    """None where every run is of a single env."""
    sections: tuple[LeaderboardSection, ...]

    @property
    def method(self) -> str:
        """Say how values, intervals and ranks came about, in plain sentences."""
        kinds = {
            Measure.SUCCESS_RATE: "Wilson score intervals with the effective sample size under"
            " clustering by task",
            Measure.MEAN_REWARD: "t intervals with standard errors clustered by task (CR1)",
        }
        used = {section.measure for section in self.sections}
        intervals = [text for measure, text in kinds.items() if measure in used]
        if len(intervals) > 1:
            intervals = [f"{intervals[0]} of success, {intervals[1]} of mean reward"]
        text = f"Intervals are {self.level * 100:g}% {intervals[0]}."
        envs = [env for e in self.entries for env in e.summary.envs.values()]
        text += (
            f" Success: {success_text(envs)}."
            " Invalid rollouts (infrastructure faults) are counted, and excluded from every rate"
            ' and mean; "of all" counts them as failures. Runs are ordered by value; the rank is'
            " the range that the intervals leave open, so 1–2 means that another run may be as"
            " good. Two runs are told apart more sharply by a comparison paired by task."
        )
        if any(entry.verified for entry in self.entries):
            text += (
                " Verified: what `katgym verify` found here, when this leaderboard was made:"
                " rewards that env and graders give again for the recorded answers, and whether the"
                " policy was shown to make these answers; nothing that came with a run is trusted."
                " Metrics that did not come out again, and tasks whose trust is not complete where"
                " programs decide, are left out."
            )
        if any(env.trust for env in envs):
            text += (
                " Trust, of tasks: complete, everything that their hidden tests demand was computed"
                " where nothing showed it; partial, some of it could be seen or guessed; upstream,"
                " another project's tests decided. Of verdicts: withheld, the run did something"
                " that gets at the tests."
            )
        if self.overall is not None:
            text += " The overall value weighs every env the same; its interval is by MOVER."
        return text


def build_leaderboard(
    entries: Iterable[LeaderboardEntry],
    *,
    title: str = "Leaderboard",
    measure: Measure = Measure.HEADLINE,
) -> Leaderboard:
    """Group runs by the tasks they played, rank them within, and say what does not compare.

    `UsageError` for no entries, repeated run names, or intervals of different levels.
    """
    runs = tuple(entries)
    if not runs:
        raise UsageError("a leaderboard needs at least one run")
    names = [run.run_name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"run name {name!r} occurs twice; give each run its own")
    levels = sorted({env.level for run in runs for env in run.summary.envs.values()})
    if len(levels) != 1:
        raise UsageError(
            f"the runs' intervals have levels {levels!r}; summarise all with one level"
            if levels
            else "no run of the leaderboard has any rollouts"
        )
    env_ids = sorted({env_id for run in runs for env_id in run.summary.envs})
    has_several = any(len(run.summary.envs) > 1 for run in runs)
    return Leaderboard(
        title=title,
        level=levels[0],
        entries=runs,
        overall=_section(OVERALL, env_ids, runs, measure) if has_several else None,
        sections=tuple(_section(env_id, [env_id], runs, measure) for env_id in env_ids),
    )


def mover_mean(estimates: Sequence[tuple[float, Interval]]) -> tuple[float, Interval]:
    """Return the plain mean of independent estimates, with an interval from theirs.

    low = mean - sqrt(sum((value - low_i) ** 2)) / E, high likewise: the method of variance
    estimates recovery (Zou and Donner 2008, Statistics in Medicine 27:1693), which keeps
    the asymmetry of Wilson intervals.
    """
    center = math.fsum(value for value, _ in estimates) / len(estimates)
    below = math.hypot(*(value - interval.low for value, interval in estimates))
    above = math.hypot(*(interval.high - value for value, interval in estimates))
    return center, Interval(
        low=center - below / len(estimates), high=center + above / len(estimates)
    )


def _section(
    title: str, env_ids: Sequence[str], runs: Sequence[LeaderboardEntry], measure: Measure
) -> LeaderboardSection:
    # Runs of the same envs and tasks; of one env, a run has nothing to weigh over several.
    groups: dict[tuple[tuple[str, ...], str], list[LeaderboardEntry]] = {}
    warnings, unfinished, left_out = [], [], []
    for run in runs:
        own = tuple(env_id for env_id in env_ids if env_id in run.summary.envs)
        if len(own) < min(2, len(env_ids)):
            continue
        if run.unfinished:
            warnings.append(f"{run.run_name} is unfinished and not ranked: {run.unfinished}.")
            unfinished.append((run, own))
            continue
        if reasons := [run.left_out[env_id] for env_id in own if env_id in run.left_out]:
            warnings.append(f"{run.run_name} is not ranked: {'; '.join(reasons)}.")
            left_out.append((run, own))
            continue
        groups.setdefault((own, _tasks_key(run, own)), []).append(run)
    ranked = {env_id for own, _ in groups for env_id in own}
    for run in runs:
        if len(run.summary.envs) == 1 < len(env_ids) and ranked & set(run.summary.envs):
            missing = ", ".join(sorted(ranked - set(run.summary.envs)))
            warnings.append(f"{run.run_name} is left out: it has no result for {missing}.")
    num_sets = len({own for own, _ in groups})
    if num_sets > 1:
        warnings.append(
            f"The runs played {num_sets} different sets of environments. Each set is ranked on its"
            " own; values of different sets do not compare."
        )
    elif len(groups) > 1:
        warnings.append(
            f"The runs were made on {len(groups)} different sets of tasks. Each set is ranked on"
            " its own; values of different sets do not compare."
        )
    for (own, _), members in groups.items():
        warnings += _differences(members, own)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    measure = _section_measure([run.summary.envs for run in runs], env_ids, measure)

    def label(own: tuple[str, ...], key: str) -> str:
        told = [", ".join(own)] if num_sets > 1 else []
        return ", ".join([*told, f"Tasks {key[:8]}"]) if len(groups) > 1 else ""

    shown = [
        LeaderboardGroup(
            label=label(own, key), rows=_rank([_row(run, own, measure) for run in members])
        )
        for (own, key), members in ordered
    ]
    for why, unranked in (("Unfinished", unfinished), ("Left out", left_out)):
        if unranked:
            rows = tuple(_row(run, own, measure) for run, own in unranked)
            shown.append(LeaderboardGroup(label=f"{why}, not ranked", rows=rows))
    return LeaderboardSection(
        title=title, measure=measure, groups=tuple(shown), warnings=tuple(warnings)
    )


def _tasks_key(run: LeaderboardEntry, env_ids: Sequence[str]) -> str:
    """Return what has to be equal for runs to be ranked: the task sets, and the tasks played."""
    hashes = [
        f"{run.env_locks[env_id].tasks_sha256}{run.summary.envs[env_id].tasks_sha256}"
        for env_id in env_ids
    ]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _differences(members: Sequence[LeaderboardEntry], env_ids: Sequence[str]) -> list[str]:
    """Name what differs between runs that are ranked together."""
    names = ", ".join(run.run_name for run in members)
    found = []
    for env_id in env_ids:
        where = f" in {env_id}" if len(env_ids) > 1 else ""
        summaries = [run.summary.envs[env_id] for run in members]
        if len({s.seeds_sha256 for s in summaries}) > 1:
            found.append(f"Env seeds differ{where} between {names}: the episodes are not the same.")
        if len({s.success for s in summaries}) > 1:
            found.append(f"What is a success or heads the results differs{where} between {names}.")
        if len({run.env_locks[env_id].plugin_version for run in members}) > 1:
            found.append(f"Plugin versions differ{where} between {names}.")
    return found


def _row(run: LeaderboardEntry, env_ids: Sequence[str], measure: Measure) -> LeaderboardRow:
    envs = tuple(run.summary.envs[env_id] for env_id in env_ids)
    pairs = [
        {
            Measure.HEADLINE: env.headline,
            Measure.SUCCESS_RATE: (env.success_rate, env.success_interval),
            Measure.MEAN_REWARD: (env.mean_reward, env.t_interval),
        }[measure]
        for env in envs
    ]
    values = [value for value, _ in pairs if value is not None]
    value = math.fsum(values) / len(values) if len(values) == len(envs) else None
    interval = None
    known = [(v, i) for v, i in pairs if v is not None and i is not None]
    if len(known) == len(envs):
        _, interval = mover_mean(known)
    return LeaderboardRow(ranks=None, entry=run, value=value, interval=interval, envs=envs)


def _section_measure(
    runs: Sequence[Mapping[str, EnvSummary]], env_ids: Sequence[str], measure: Measure
) -> Measure:
    """Return what a section ranks by: of one env, the mean reward where its runs disagree."""
    if measure is not Measure.HEADLINE:
        return measure
    wanted = {
        env_id: {run[env_id].success.headline for run in runs if env_id in run}
        for env_id in env_ids
    }
    found = {h.pop() if len(h) == 1 else Headline.MEAN_REWARD for h in wanted.values()}
    return Measure(found.pop()) if len(found) == 1 else Measure.HEADLINE


def _rank(rows: Sequence[LeaderboardRow]) -> tuple[LeaderboardRow, ...]:
    """Order by value, runs without one last, and give each its range of ranks."""

    def order(row: LeaderboardRow) -> tuple[float, str]:
        return (math.inf if row.value is None else -row.value, row.entry.run_name)

    intervals = [row.interval for row in rows if row.interval is not None]

    def ranks(own: Interval | None) -> tuple[int, int] | None:
        if own is None or len(intervals) < 2:
            return None
        num_above = sum(other.low > own.high for other in intervals)
        num_below = sum(other.high < own.low for other in intervals)
        return 1 + num_above, len(intervals) - num_below

    return tuple(replace(row, ranks=ranks(row.interval)) for row in sorted(rows, key=order))
