"""Charts of a run, and the numbers that each shows.

A metric of training that no chart asks for by name gets one of its own, folded away. Not here: how
charts are drawn (`svg_charts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from katgym.environment.reward import Headline
from katgym.evaluation.statistics.intervals import Interval, mean, t_interval
from katgym.evaluation.statistics.summary import EnvSummary
from katgym.play.rollout import Rollout
from katgym.rollout_store import SessionRecord
from katgym.rollout_store.groups import is_held_out, is_refused
from katgym.rollout_store.records import reward_value
from katgym.run_view.reading.metric_files import Line, finite, whole
from katgym.run_view.run_view import Band, Checkpoint, Panel, Series

MIN_GROUPS = 4
"""Groups of a step from which on its mean reward has an interval."""


_CHARTS = (
    ("Turns", "of a rollout", "rollout/turns", "rollout/turns_per_success"),
    ("Tool calls", "a turn", "rollout/tool_calls_per_turn", "rollout/parallel_calls_per_turn"),
    ("Entropy", "nats a trained token", "train/entropy"),
    ("Loss", "before the update", "train/loss"),
    ("Gradient norm", "before it is shortened", "train/grad_norm"),
    ("KL", "nats a token", "train/policy_kl", "train/ref_kl"),
    (
        "Mismatch and clipping", "share of trained tokens",
        "train/mismatch_fraction", "train/clip_fraction",
    ),
    (
        "Throughput", "tokens a second",
        "rate/sampled_tokens_per_s", "rate/trained_tokens_per_s",
    ),
    ("Staleness", "steps behind", "rollout/staleness", "rollout/max_staleness"),
    ("Groups", "share of a step's", "rollout/open_groups", "rollout/solved_groups"),
    (
        "Sampled tokens", "of a rollout",
        "rollout/completion_tokens", "rollout/max_completion_tokens",
    ),
)  # fmt: skip
"""Title, unit, and the metrics that a chart takes."""
_REWARD = ("rollout/reward",)
_SUCCESS = ("rollout/success",)
_WHOLES = ("time/total_s", "time/step_s")
"""Of a step, the first that a run has; the others are sums of parts."""
_WITHIN = ("time/pause_s", "time/probe_s")
"""Parts of `time/sync_s`."""


def evaluation_panels(envs: Sequence[EnvSummary], rollouts: Sequence[Rollout]) -> list[Panel]:
    """Return pass@k over k, and how turns and parallel calls are spread."""
    panels = []
    of_k = [env for env in envs if len(env.pass_at_k) > 1]
    if of_k:
        for title, unit, name in (
            ("pass@k", "one of k succeeds", "pass_at_k"),
            ("pass^k", "all of k succeed", "pass_hat_k"),
        ):
            own = [Series(name=e.env_id, points=list(getattr(e, name).items())) for e in of_k]
            panels.append(Panel(title=title, unit=unit, series=own, x_name="k", is_from_zero=True))
    for title, name in (("Turns", "num_turns"), ("Parallel calls", "num_parallel_calls")):
        counts: dict[str, list[int]] = {}
        for rollout in rollouts:
            counts.setdefault(rollout.env_id, []).append(getattr(rollout, name))
        series = [Series(name=env_id, points=_shares(own)) for env_id, own in counts.items()]
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


def step_of(record: SessionRecord) -> int | None:
    """Return the training step that a session was sampled for; None where none is known."""
    return whole(record.metadata.get("step"))


def reward_series(records: Iterable[SessionRecord]) -> Series | None:
    """Return the mean reward of each step's rollouts with its interval, clustered by group."""
    by_step: dict[int, list[tuple[str, float]]] = {}
    for record in records:
        step, value = step_of(record), reward_value(record)
        is_trained = not (is_held_out(record) or is_refused(record))
        if step is not None and value is not None and is_trained:
            by_step.setdefault(step, []).append((record.group_id, value))
    points, bands = [], []
    for step, rows in sorted(by_step.items()):
        points.append((float(step), mean(rows)))
        # Of fewer groups it would be wider than the axis, and tell nothing.
        has_enough = len({group_id for group_id, _ in rows}) >= MIN_GROUPS
        if has_enough and (interval := t_interval(rows)) is not None:
            bands.append(_band(step, interval))
    return Series(name="rollout/reward", points=points, bands=bands) if points else None


def training_panels(
    lines: Sequence[Line], checkpoints: Sequence[Checkpoint], reward: Series | None
) -> list[Panel]:
    """Return the charts that a run has numbers for: the main ones, then every other metric.

    reward: the reward as the kept rollouts tell it, with intervals; it stands where the metrics
        have none.
    """
    found: dict[str, list[tuple[float, float]]] = {}  # each metric's points
    for line in lines:
        for name, value in line.items():
            number = finite(value)
            if name != "step" and number is not None:
                found.setdefault(name, []).append((line["step"], number))
    taken: set[str] = set()
    panels: list[Panel] = []

    def take(names: Iterable[str]) -> list[Series]:
        chosen = [name for name in names if name in found]
        taken.update(n for name in chosen for n in (name, f"{name}_low", f"{name}_high"))
        return [_with_bands(name, found) for name in chosen]

    of_reward = take(_REWARD)
    if reward is not None and not any(one.bands for one in of_reward):
        has_all = {x for s in of_reward for x, _ in s.points} <= {x for x, _ in reward.points}
        if has_all:
            of_reward = [reward]
        else:  # the first series with the intervals of the other where it has points
            places = {x for x, _ in of_reward[0].points}
            bands = [band for band in reward.bands if band.x in places]
            of_reward = [replace(of_reward[0], bands=bands), *of_reward[1:]]
    has_bands = any(one.bands for one in of_reward)
    unit = "mean of a step" + (", 95% interval over groups" if has_bands else "")
    _add(panels, "Reward", unit, of_reward)
    success = [*_evaluated(checkpoints), *take(_SUCCESS)]
    if checkpoints:  # the metrics say the same of them
        taken.update(name for name in found if name.startswith("eval/"))
    _add(panels, "Success", "share of rollouts", success)
    for title, unit, *names in _CHARTS:
        _add(panels, title, unit, take(names), is_from_zero=title != "Loss")
    split = take(
        name
        for name in found
        if name.startswith("time/") and name.endswith("_s")
        if name not in (*_WHOLES, *_WITHIN) and name not in taken
    )
    if split:
        panels.append(_time_split(split, take([n for n in _WHOLES if n in found][:1])))
    for name in sorted(set(found) - taken):
        panels.append(Panel(title=name, series=[_with_bands(name, found)], is_main=False))
    return panels


def _add(
    panels: list[Panel], title: str, unit: str, series: list[Series], *, is_from_zero: bool = True
) -> None:
    if series:
        panels.append(Panel(title=title, unit=unit, series=series, is_from_zero=is_from_zero))


def _with_bands(name: str, found: Mapping[str, list[tuple[float, float]]]) -> Series:
    low, high = dict(found.get(f"{name}_low", ())), dict(found.get(f"{name}_high", ()))
    bands = [Band(x=x, low=low[x], high=high[x]) for x in low if x in high]
    return Series(name=name, points=found[name], bands=bands)


def _evaluated(checkpoints: Sequence[Checkpoint]) -> list[Series]:
    """Return an env's success over the checkpoints that were evaluated."""
    found = []
    for env_id in dict.fromkeys(c.env_id for c in checkpoints):
        own = [(c.step, c) for c in checkpoints if c.env_id == env_id and c.step is not None]
        with_ends = [(step, c) for step, c in own if c.headline is Headline.SUCCESS_RATE]
        found.append(
            Series(
                name=f"{env_id}, held out",
                points=[(step, c.success) for step, c in own],
                bands=[_band(step, c.interval) for step, c in with_ends if c.interval is not None],
            )
        )
    return found


def _band(x: float, interval: Interval) -> Band:
    return Band(x=x, low=interval.low, high=interval.high)


def _time_split(parts: list[Series], whole: list[Series]) -> Panel:
    """Return a step's seconds by what they went into; what no part counts is a part of its own."""
    steps = sorted({x for series in (*parts, *whole) for x, _ in series.points})
    tables = [dict(series.points) for series in parts]
    stacked = [
        Series(
            name=series.name.removeprefix("time/").removesuffix("_s"),
            points=[(x, max(0.0, table.get(x, 0.0))) for x in steps],
        )
        for series, table in zip(parts, tables, strict=True)
    ]
    if whole:
        sums = {x: sum(table.get(x, 0.0) for table in tables) for x in steps}
        total = dict(whole[0].points)
        rest = [(x, max(0.0, total.get(x, sums[x]) - sums[x])) for x in steps]
        stacked.append(Series(name="other", points=rest))
    return Panel(
        title="Time of a step", unit="seconds", series=stacked, is_stacked=True, is_from_zero=True
    )
