"""Means of reward components over a run: what scorers measured, rewarded or not.

A component of weight 0 is a *metric*: it is measured and shown, and enters no reward. Not here:
the reward itself (`summary.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from katgym.evaluation.statistics.intervals import Interval, mean, t_interval
from katgym.evaluation.statistics.number_text import count_text, estimate_text
from katgym.play.rollout import Rollout
from katgym.text_table import TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSummary:
    """One named component over the scored rollouts that have it.

    A scorer that does not apply to a rollout leaves its component out, so `num_rollouts` may be
    smaller than that of the env.

    Example:
        ComponentSummary(mean=0.42, t_interval=Interval(low=0.31, high=0.53), num_rollouts=200,
                         weight=0.0)
    """

    mean: float
    t_interval: Interval | None
    """Clustered by task; None with fewer than two tasks."""
    num_rollouts: int
    weight: float
    """Of the component in the reward; 0 for a metric. The largest, if rollouts disagree."""


def summarize_components(scored: Sequence[Rollout], *, level: float) -> dict[str, ComponentSummary]:
    """Return a summary per component name, in the order in which the names first occur."""
    rows: dict[str, list[tuple[str, float]]] = {}
    weights: dict[str, float] = {}
    for line in sorted(scored, key=lambda line: (line.task_id, line.attempt, line.seat)):
        for name, part in line.reward.components.items():
            rows.setdefault(name, []).append((line.task_id, part.score))
            weights[name] = max(weights.get(name, part.weight), part.weight)
    return {
        name: ComponentSummary(
            mean=mean(values),
            t_interval=t_interval(values, level=level),
            num_rollouts=len(values),
            weight=weights[name],
        )
        for name, values in rows.items()
    }


def choose_metrics(summaries: Iterable[dict[str, ComponentSummary]]) -> list[str]:
    """Return the metrics (weight 0) to show for runs of one env.

    A metric that is 0 throughout all runs says nothing and is left out.
    """
    names: dict[str, bool] = {}
    for components in summaries:
        for name, component in components.items():
            if component.weight == 0:
                flat = component.t_interval in (None, Interval(low=0.0, high=0.0))
                names[name] = names.get(name, False) or component.mean != 0 or not flat
    return [name for name, is_shown in names.items() if is_shown]


def metrics_table(title: str, components: dict[str, ComponentSummary]) -> TextTable | None:
    """Return a table of an env's metrics for the terminal; None if there is none to show."""
    names = choose_metrics([components])
    if not names:
        return None
    rows = []
    for name in names:
        found = components[name]
        mean = estimate_text(found.mean, found.t_interval)
        rows.append((name, mean, count_text(found.num_rollouts)))
    numbers = ("mean", "rollouts")
    return TextTable(header=("metric", *numbers), rows=rows, right=numbers, title=title)
