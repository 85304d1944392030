"""Curves and intervals as inline SVG; a curve's numbers are in an attribute, for its script.

Not here: the script (`assets/charts.js`), which curves there are (`panels.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from katgym.evaluation.statistics.intervals import Interval
from katgym.evaluation.statistics.number_text import number_text
from katgym.run_view.run_view import Band, Panel, Series

At = Callable[[float, float], tuple[float, float]]

WIDTH, HEIGHT = 380.0, 178.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 8.0, 24.0
_NAMESPACES = ("rollout", "train", "time", "rate", "data")
NUM_COLORS = 8
"""Classes `c0` to `c7` that the style sheet knows."""
_MAX_POINTS = 500
_MIN_SMOOTHED = 40
"""Points from which on a curve is smoothed, and its points drawn faintly behind."""


def chart(panel: Panel) -> str:
    """Return a panel as a `<figure>`; one without a point says so."""
    if any(len(series.points) > _MAX_POINTS for series in panel.series):
        panel = replace(panel, series=[_merged(series) for series in panel.series])
    has_points = any(series.points for series in panel.series)
    drawn = _svg(panel) if has_points else '<p class="nothing">no numbers yet</p>'
    names = [_short(series.name) for series in panel.series]
    legend = "".join(
        f"<li>{line_key(place)}{escape(name)}</li>" for place, name in enumerate(names)
    )
    unit = f" <small>{escape(panel.unit)}</small>" if panel.unit else ""
    keys = f'<ul class="legend">{legend}</ul>' if len(names) > 1 else ""
    return (
        f'<figure class="chart"><figcaption>{escape(panel.title)}{unit}</figcaption>'
        f"{drawn}{keys}</figure>"
    )


def line_key(place: int) -> str:
    """Return a piece of a series' line, as the legend shows it."""
    css = f"line c{place % NUM_COLORS}"
    return f'<svg aria-hidden="true"><line class="{css}" x1="0" x2="22" y1="4" y2="4"/></svg>'


def interval_bar(
    value: float,
    interval: Interval | None,
    *,
    label: str,
    scale: tuple[float, float] = (0.0, 1.0),
) -> str:
    """Return a value as a dot on its interval; `scale` is what the ends of the width stand for.

    label: what a screen reader says.
    """

    def at(x: float) -> float:
        share = (x - scale[0]) / (scale[1] - scale[0])
        return 2 + 96 * min(1.0, max(0.0, share))  # percent; the dot stays inside at both ends

    grid = "".join(
        f'<line class="grid" x1="{at(x):.2f}%" x2="{at(x):.2f}%" y1="0" y2="100%"/>'
        for x in (scale[0], (scale[0] + scale[1]) / 2, scale[1])
    )
    span = ""
    if interval is not None:
        left, right = at(interval.low), at(interval.high)
        place = f'x="{left:.2f}%" width="{right - left:.2f}%" y="50%" height="8" rx="4"'
        span = f'<rect class="span" {place}/>'
    dot = f'<circle class="dot" cx="{at(value):.2f}%" cy="50%" r="4.5"/>'
    return f'<svg class="interval" role="img" aria-label="{escape(label)}">{grid}{span}{dot}</svg>'


def _svg(panel: Panel) -> str:
    stacked = _stacked(panel.series) if panel.is_stacked else []
    (x_low, x_high), (y_low, y_high) = _ranges(panel, stacked)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = _axes(at, (x_low, x_high), (y_low, y_high))
    if panel.is_stacked:
        for place, layer in enumerate(stacked):
            edge = [at(x, top) for x, _, top in layer] + [at(x, low) for x, low, _ in layer[::-1]]
            parts.append(f'<polygon class="area c{place % NUM_COLORS}" points="{_text(edge)}"/>')
    elif panel.is_bars:
        width = 0.8 * (WIDTH - _LEFT - _RIGHT) / (x_high - x_low)  # a little room between bars
        for x, y in panel.series[0].points:
            (middle, bottom), (_, top) = at(x, 0.0), at(x, y)
            parts.append(
                f'<rect class="area c0" x="{middle - width / 2:.1f}" y="{top:.1f}"'
                f' width="{width:.1f}" height="{bottom - top:.1f}"/>'
            )
    else:
        for place, series in enumerate(panel.series):
            name = escape(_short(series.name))
            parts.append(f'<g data-series="{name}">{_curve(series, at, place)}</g>')
    data = json.dumps(
        {
            "x": panel.x_name,
            "box": [_LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM],
            "range": [x_low, x_high, y_low, y_high],
            "series": [_numbers(series) for series in panel.series],
            "stacked": panel.is_stacked,
        }
    )
    spoken = [
        f"{_short(s.name)} from {s.points[0][1]:.3g} to {s.points[-1][1]:.3g}"
        for s in panel.series
        if s.points
    ]
    label = f"{panel.title}: {', '.join(spoken)}"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img"'
        f' aria-label="{escape(label)}" data-chart="{escape(data)}">{"".join(parts)}</svg>'
    )


def _axes(at: At, xs: tuple[float, float], ys: tuple[float, float]) -> list[str]:
    """Return lines and numbers of the axes, which go from `xs[0]` to `xs[1]`, and so on."""
    parts = []
    for tick in ticks(*ys, 5):
        _, y = at(xs[0], tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
            f"{escape(_tick_text(tick))}</text>"
        )
    for tick in ticks(*xs, 6, is_whole=True):
        x, _ = at(tick, ys[0])
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(_tick_text(tick))}</text>"
        )
    return parts


def _curve(series: Series, at: At, place: int) -> str:
    """Return a series' interval, line and points."""
    color = f"c{place % NUM_COLORS}"
    points, bands = list(series.points), list(series.bands)
    if not points:
        return ""
    faint = band = dots = ""
    if len(points) >= _MIN_SMOOTHED:
        faint = f'<polyline class="faint {color}" points="{_text([at(*p) for p in points])}"/>'
        span = max(4.0, len(points) / 20)
        means = smoothed([y for _, y in points], span)
        points = [(x, y) for (x, _), y in zip(points, means, strict=True)]
        lows = smoothed([b.low for b in bands], span)
        highs = smoothed([b.high for b in bands], span)
        bands = [
            Band(x=b.x, low=low, high=high) for b, low, high in zip(bands, lows, highs, strict=True)
        ]
    if len(bands) > 1:
        edge = [at(b.x, b.high) for b in bands] + [at(b.x, b.low) for b in bands[::-1]]
        band = f'<polygon class="band {color}" points="{_text(edge)}"/>'
    elif bands:
        (x, low), (_, high) = at(bands[0].x, bands[0].low), at(bands[0].x, bands[0].high)
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"'
        band = f'<line class="whisker {color}" {ends}/>'
    drawn = [at(*point) for point in points]
    if len(points) <= 24:
        dots = "".join(
            f'<circle class="point {color}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in drawn
        )
    return f'{band}{faint}<polyline class="line {color}" points="{_text(drawn)}"/>{dots}'


def smoothed(values: Sequence[float], span: float) -> list[float]:
    """Return the mean around each value, weights falling by 1 - 1 / span with the distance."""
    decay = 1 - 1 / span
    sums, weights = _decayed(values, decay), _decayed([1.0] * len(values), decay)
    return [total / weight for total, weight in zip(sums, weights, strict=True)]


def _decayed(values: Sequence[float], decay: float) -> list[float]:
    """Return the sum over u of decay^|t - u| values[u], for every t."""
    before, after = [0.0] * len(values), [0.0] * len(values)
    for place, value in enumerate(values):
        before[place] = value + (decay * before[place - 1] if place else 0.0)
    for place in range(len(values) - 2, -1, -1):
        after[place] = decay * (after[place + 1] + values[place + 1])
    return [one + other for one, other in zip(before, after, strict=True)]


def ticks(low: float, high: float, num: int, *, is_whole: bool = False) -> list[float]:
    """Return about `num` round numbers from `low` to `high`, both included where they are round."""
    step = 10 ** math.floor(math.log10((high - low) / num))
    factor = next(f for f in (1, 2, 5, 10, 20) if (high - low) / (step * f) <= num)
    step *= factor
    if is_whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def _ranges(
    panel: Panel, stacked: Sequence[Sequence[tuple[float, float, float]]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of both axes, never equal."""
    xs = [x for series in panel.series for x, _ in series.points]
    ys = [y for series in panel.series for _, y in series.points]
    ys += [end for series in panel.series for b in series.bands for end in (b.low, b.high)]
    if stacked:
        ys = [top for layer in stacked for _, _, top in layer]
    low, high = min(ys), max(ys)
    if panel.is_from_zero or panel.is_stacked:
        low, high = min(0.0, low), max(0.0, high)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    room = 0.06 * (high - low)
    low = low if low == 0.0 else low - room
    x_low, x_high = min(xs), max(xs)
    if panel.is_bars:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    return (x_low, x_high if x_high > x_low else x_low + 1), (low, high + room)


def _stacked(series: Sequence[Series]) -> list[list[tuple[float, float, float]]]:
    """Return (x, lower edge, upper edge) of each series lying on those before it."""
    floors: dict[float, float] = {}
    layers = []
    for one in series:
        layer = [(x, floors.get(x, 0.0), floors.get(x, 0.0) + y) for x, y in one.points]
        floors.update({x: top for x, _, top in layer})
        layers.append(layer)
    return layers


def _merged(series: Series) -> Series:
    """Return the means of neighbours, at most `_MAX_POINTS` of them."""
    size = -(-len(series.points) // _MAX_POINTS)
    points = []
    for place in range(0, len(series.points), size):
        some = series.points[place : place + size]
        points.append((some[-1][0], sum(y for _, y in some) / len(some)))
    bands = []
    for place in range(0, len(series.bands), size):
        near = series.bands[place : place + size]
        low, high = (sum(getattr(b, n) for b in near) / len(near) for n in ("low", "high"))
        bands.append(Band(x=near[-1].x, low=low, high=high))
    return Series(name=series.name, points=points, bands=bands)


def _numbers(series: Series) -> dict[str, object]:
    """Return what is shown on hover, to six digits."""
    found: dict[str, object] = {
        "name": _short(series.name),
        "points": [[x, float(f"{y:.6g}")] for x, y in series.points],
    }
    if series.bands:
        found["bands"] = [
            [b.x, float(f"{b.low:.4g}"), float(f"{b.high:.4g}")] for b in series.bands
        ]
    return found


def _short(name: str) -> str:
    """Return a metric's name without its namespace; an env's id stays whole."""
    namespace, _, rest = name.partition("/")
    return rest if namespace in _NAMESPACES and rest else name


def _tick_text(value: float) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return number_text(value, 4).rstrip("0").rstrip(".") if value % 1 else f"{value:,.0f}"


def _text(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
