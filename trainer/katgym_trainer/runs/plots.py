"""Curves of one training run, or of several beside each other, as PNG files.

They are made from `metrics.jsonl` alone.

Each curve has its points and their mean around each step

    m_t = (sum over u of d^|t - u| x_u) / (sum over u of d^|t - u|),  d = 1 - 1 / span

which looks to both sides, so that it lies within the points instead of behind them. Not here: what
the metrics mean (`trainer.py`).

Letters: R runs, T steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from katgym.errors import MissingDependencyError, UsageError

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError as e:
    raise MissingDependencyError(
        "plots need the package 'matplotlib'. Install: pip install matplotlib"
    ) from e

from katgym_trainer.config.rules import AtLeastOne, check_value
from katgym_trainer.row import Floats
from katgym_trainer.runs.curves import CURVES, Curve, metric_lines, points_of

logger = logging.getLogger(__name__)

_DPI = 144
_MIN_SMOOTHED = 40
"""Steps from which on a curve is smoothed."""
_INK, _MUTED, _GRID = "#1b2733", "#5c6b7a", "#e3e8ed"
_COLORS = ("#2f6fde", "#d9822b", "#2f8f5b", "#b02a37", "#7a4fbf", "#1f9bb3", "#8a6d3b", "#c2559b")
"""Of compared runs."""

Points = tuple[Floats, Floats]
"""Steps and values, both [T]."""


def plot_run(folder: Path) -> list[Path]:
    """Draw a run's curves into `folder`/plots, and all of them in `overview.png`; return the files.

    Metrics that the run does not have are left out. Raises `UsageError` for a folder without a
    `metrics.jsonl`, or without a line in it that holds one.
    """
    found = _points(folder)

    def draw(axes: Axes, name: str) -> None:
        curve, (steps_T, values_T) = CURVES[name], found[name]
        if curve.is_smoothed and len(values_T) >= _MIN_SMOOTHED:
            span = max(2.0, len(values_T) / 40)
            axes.plot(
                steps_T, values_T, ".",
                ms=5, alpha=0.45, mew=0, color=curve.color, label="each step",
            )  # fmt: skip
            label = f"smoothed over about {2 * span:.0f} steps"
            axes.plot(steps_T, smooth(values_T, span), lw=2, color=curve.color, label=label)
            axes.legend(frameon=False, fontsize=8, labelcolor=_MUTED)
        else:
            marker = "o" if len(values_T) < _MIN_SMOOTHED else ""
            axes.plot(steps_T, values_T, lw=1.6, marker=marker, ms=3.5, color=curve.color)
        _dress(axes, curve)

    return _save_all(list(found), folder / "plots", folder.resolve().name, draw)


def plot_runs(groups: Mapping[str, Sequence[Path]], folder: Path) -> list[Path]:
    """Draw groups of runs into one picture for each curve, in `folder`; return the files.

    groups: what the legend calls them -> folders of runs, such as seeds of one configuration.
        Shown are the mean at each step that all of a group's runs have, and a band from the least
        to the most. Curves that a run of theirs does not have are left out of its group.

    Raises `UsageError` as `plot_run` does, and for groups that share no curve.
    """
    found = {label: [_points(run) for run in runs] for label, runs in groups.items()}
    shared = [
        name for name in CURVES
        if any(all(name in points for points in runs) for runs in found.values())
    ]  # fmt: skip
    if not shared:
        raise UsageError("no group has a curve that all of its runs have")

    def draw(axes: Axes, name: str) -> None:
        for place, (label, runs) in enumerate(found.items()):
            if not all(name in points for points in runs):
                continue
            # The mean at the steps that all runs have, and a band around it.
            color = _COLORS[place % len(_COLORS)]
            values_by_step = [dict(zip(*points[name], strict=True)) for points in runs]
            steps = sorted(set.intersection(*map(set, values_by_step)))
            values_RT = np.array([[values[step] for step in steps] for values in values_by_step])
            axes.plot(steps, values_RT.mean(0), lw=1.8, color=color, label=label)
            if len(runs) > 1:
                low_T, high_T = values_RT.min(0), values_RT.max(0)
                axes.fill_between(steps, low_T, high_T, color=color, alpha=0.16, lw=0)
        axes.legend(frameon=False, fontsize=8, labelcolor=_MUTED)
        _dress(axes, CURVES[name])

    return _save_all(shared, folder, ", ".join(groups), draw)


def _points(folder: Path) -> dict[str, Points]:
    """Return the curves that a run has by name; `UsageError` if it has none."""
    lines = metric_lines(folder)
    found = {name: points for name, c in CURVES.items() if len((points := points_of(lines, c))[0])}
    if not found:
        wanted = ", ".join(curve.metric for curve in CURVES.values())
        raise UsageError(f"{str(folder / 'metrics.jsonl')!r} holds none of {wanted} yet")
    return found


def _save_all(
    names: Sequence[str], folder: Path, title: str, draw: Callable[[Axes, str], None]
) -> list[Path]:
    """Save a picture for each curve, and one with all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        figure = _figure(6.4, 4.0)
        draw(figure.add_subplot(), name)
        figure.savefig(folder / f"{name}.png")
    num_columns = min(2, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = _figure(5.6 * num_columns, 3.3 * num_rows + 0.5)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    for place, name in enumerate(names, start=1):
        draw(figure.add_subplot(num_rows, num_columns, place), name)
    figure.savefig(folder / "overview.png")
    return [folder / f"{name}.png" for name in (*names, "overview")]


def smooth(values_T: Floats, span: float) -> Floats:
    """Return the mean around each value, [T], as the module's header has it.

    span: values to either side that weigh most; 1 returns the values. `ValueError` for less.
    """
    check_value("span", span, AtLeastOne)
    decay = 1 - 1 / span
    ones_T = np.ones(len(values_T))
    both = [_decay(x_T, decay) + _decay(x_T[::-1], decay)[::-1] - x_T
            for x_T in (values_T, ones_T)]  # fmt: skip
    found: Floats = both[0] / both[1]
    return found


def _decay(values_T: Floats, decay: float) -> Floats:
    """Return d^0 x_t + d^1 x_{t-1} + ..., [T]."""
    found = np.empty(len(values_T))
    total = 0.0
    for t, value in enumerate(values_T.tolist()):
        found[t] = total = decay * total + value
    return found


def _figure(width: float, height: float) -> Figure:
    """Return a figure of its own, known to no global state; sizes in inches."""
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.03, hspace=0.05)  # type: ignore[union-attr, call-arg]  # the constrained one has these
    return figure


def _dress(axes: Axes, curve: Curve) -> None:
    axes.set_title(curve.title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axes.set_xlabel("optimizer step", fontsize=9, color=_MUTED)
    axes.set_ylabel(curve.label, fontsize=9, color=_MUTED)
    axes.tick_params(labelsize=8, colors=_MUTED, length=0)
    axes.grid(color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    if curve.is_from_zero:
        axes.set_ylim(bottom=min(0.0, low), top=high)
