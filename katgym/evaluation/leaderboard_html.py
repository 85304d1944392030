"""A leaderboard as one self-contained web page: no scripts, no other files, light and dark.

Every text from outside is escaped; the page's own text is in this module, its style in
`leaderboard_style.py`. Not here: what is ranked and how (`leaderboard.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from katgym.evaluation.leaderboard import (
    Leaderboard,
    LeaderboardGroup,
    LeaderboardRow,
    LeaderboardSection,
    Measure,
)
from katgym.evaluation.leaderboard_style import STYLE
from katgym.evaluation.leaderboard_text import (
    MEASURE_NAMES,
    all_sections,
    comparability_text,
    detail_columns,
    metric_header,
    metric_rows,
    rank_text,
    row_interval_text,
    sampling_text,
    value_text,
)
from katgym.evaluation.number_text import count_text, number_text


def leaderboard_html(board: Leaderboard) -> str:
    """Return the whole page."""
    sections = all_sections(board)
    dates = sorted({entry.date for entry in board.entries})
    num_runs, num_envs = len(board.entries), len(board.sections)
    subtitle = (
        f"{num_runs} run{'' if num_runs == 1 else 's'} in"
        f" {num_envs} environment{'' if num_envs == 1 else 's'},"
        f" {dates[0] if len(dates) == 1 else f'{dates[0]} to {dates[-1]}'}"
    )
    body = "\n".join(_section(board, section, index) for index, section in enumerate(sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(board.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(board.title)}</h1>
<p class="subtitle">{escape(subtitle)}</p>
</header>
{body}
{_runs(board)}
<section aria-labelledby="method">
<h2 id="method">Method</h2>
<p class="prose">{escape(board.method)}</p>
</section>
</main>
</body>
</html>
"""


def _section(board: Leaderboard, section: LeaderboardSection, index: int) -> str:
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in section.warnings)
    status = (
        f'<div class="warning" role="note" aria-label="Warning">'
        f"<strong>Not all runs are comparable.</strong><ul>{notes}</ul></div>"
        if notes
        else f'<p class="status">{escape(comparability_text(section))}</p>'
    )
    scale = _scale(section, board.measure)
    groups = "\n".join(_group(board, section, group, scale) for group in section.groups)
    return f"""<section aria-labelledby="section-{index}">
<h2 id="section-{index}">{escape(section.title)}</h2>
{status}
{groups}
</section>"""


def _group(
    board: Leaderboard,
    section: LeaderboardSection,
    group: LeaderboardGroup,
    scale: tuple[float, float],
) -> str:
    columns = detail_columns(board, group)
    head = "".join(
        f'<th scope="col" role="columnheader" class="{css}">{text}</th>'
        for text, css in [
            ("Rank", "rank"),
            ("Run", "run"),
            (MEASURE_NAMES[board.measure], "value"),
            (f"{board.level * 100:g}% interval{_axis(scale, board.measure)}", "interval"),
            *((escape(title), _css(title)) for title in columns),
        ]
    )
    rows = "\n".join(
        _row(board, row, {title: cells[index] for title, cells in columns.items()}, scale)
        for index, row in enumerate(group.rows)
    )
    label = f"{section.title}, {group.label}" if group.label else section.title
    heading = f"<h3>{escape(group.label)}</h3>" if group.label else ""
    return f"""{heading}<table role="table" aria-label="{escape(label)}">
<thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">
{rows}
</tbody>
</table>
{_metrics(group, label)}"""


def _metrics(group: LeaderboardGroup, label: str) -> str:
    """Return the table of what was measured but not rewarded, folded away; "" without any."""
    metrics = metric_rows(group)
    if not metrics:
        return ""
    titles = metric_header(group)
    head = "".join(
        f'<th scope="col" role="columnheader" class="{"run" if i == 0 else "number"}">'
        f"{escape(title)}</th>"
        for i, title in enumerate(titles)
    )
    rows = "\n".join(
        f'<tr role="row"><th scope="row" role="rowheader" class="run">{escape(name)}</th>'
        + "".join(
            f'<td role="cell" class="number" data-label="{escape(run)}">{escape(cell)}</td>'
            for run, cell in zip(titles[1:], cells, strict=True)
        )
        + "</tr>"
        for name, cells in metrics.items()
    )
    return f"""<details class="metrics"><summary>Metrics: measured, not rewarded</summary>
<table role="table" class="metrics" aria-label="{escape(label)}, metrics">
<thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">
{rows}
</tbody>
</table>
</details>"""


def _css(title: str) -> str:
    return "number wide" if len(title) > len("Rollouts") else "number"


def _row(
    board: Leaderboard, row: LeaderboardRow, cells: dict[str, str], scale: tuple[float, float]
) -> str:
    numbers = "".join(
        f'<td role="cell" class="{_css(title)}{_alert(title, row)}"'
        f' data-label="{escape(title)}"{_title(title, row)}>{escape(cell)}</td>'
        for title, cell in cells.items()
    )
    return (
        f'<tr role="row"><td role="cell" class="rank">{escape(rank_text(row))}</td>'
        f'<th scope="row" role="rowheader" class="run">{escape(row.entry.run_name)}'
        f'<span class="policy">{_breakable(row.entry.policy)}</span></th>'
        f'<td role="cell" class="value">{escape(value_text(row.value, board.measure))}'
        f'<span class="bounds">{escape(row_interval_text(row, board.measure))}</span></td>'
        f'<td role="cell" class="interval">{_bar(row, board, scale)}</td>'
        f"{numbers}</tr>"
    )


def _breakable(text: str) -> str:
    """Escape a URI and let it break after its separators."""
    escaped = escape(
        text.replace("/", "/\N{ZERO WIDTH SPACE}").replace("#", "#\N{ZERO WIDTH SPACE}")
    )
    return escaped.replace("\N{ZERO WIDTH SPACE}", "<wbr>")


def _alert(title: str, row: LeaderboardRow) -> str:
    return " alert" if title == "Invalid" and row.num_invalid else ""


def _title(title: str, row: LeaderboardRow) -> str:
    """Return a tooltip that says of what kinds invalid rollouts are."""
    if title != "Invalid" or not row.num_invalid:
        return ""
    kinds: dict[str, int] = {}
    for env in row.envs:
        for kind, count in env.invalid_kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    text = ", ".join(f"{kind} {count_text(count)}" for kind, count in sorted(kinds.items()))
    return f' title="{escape(text)}"'


def _scale(section: LeaderboardSection, measure: Measure) -> tuple[float, float]:
    """Return the ends of the bars' common axis: 0 to 1, wider if a reward needs it."""
    low, high = 0.0, 1.0
    if measure is Measure.MEAN_REWARD:
        ends = [
            end
            for group in section.groups
            for row in group.rows
            if row.value is not None
            for end in (row.value, *((row.interval.low, row.interval.high) if row.interval else ()))
        ]
        low, high = min([low, *ends]), max([high, *ends])
    return low, high


def _axis(scale: tuple[float, float], measure: Measure) -> str:
    """Return the axis' end labels, hidden from screen readers, which get every bar's numbers."""
    low, high = scale
    if measure is Measure.SUCCESS_RATE:
        texts: Iterable[str] = ("0", "50", "100%")
    else:
        texts = [number_text(x, 2) for x in (low, (low + high) / 2, high)]
    spans = "".join(f"<span>{escape(text)}</span>" for text in texts)
    return f'<span class="axis" aria-hidden="true">{spans}</span>'


def _bar(row: LeaderboardRow, board: Leaderboard, scale: tuple[float, float]) -> str:
    """Return the value as a dot on its interval, in percent of the cell's width."""
    if row.value is None:
        return '<svg class="bar" role="img" aria-label="no valid rollouts"></svg>'
    low, high = scale

    def at(value: float) -> float:
        # The dot stays inside at both ends of the scale.
        return 2 + 96 * (value - low) / (high - low)

    label = f"{MEASURE_NAMES[board.measure]} {value_text(row.value, board.measure)}"
    grid = "".join(
        f'<line class="grid" x1="{at(x):.2f}%" x2="{at(x):.2f}%" y1="0" y2="100%"/>'
        for x in (low, (low + high) / 2, high)
    )
    span = ""
    if row.interval is not None:
        label += f", {board.level * 100:g}% interval {row_interval_text(row, board.measure)}"
        left, right = at(row.interval.low), at(row.interval.high)
        span = (
            f'<rect class="span" x="{left:.2f}%" width="{right - left:.2f}%" y="50%" height="8"'
            ' rx="4"/>'
        )
    return (
        f'<svg class="bar" role="img" aria-label="{escape(label)}">{grid}{span}'
        f'<circle class="dot" cx="{at(row.value):.2f}%" cy="50%" r="4.5"/></svg>'
    )


def _runs(board: Leaderboard) -> str:
    """Return what each run was made with: enough to tell whether it can be repeated."""
    titles = ("Run", "Policy", "Date", "katgym", "Sampling", "Environments")
    head = "".join(f'<th scope="col" role="columnheader">{title}</th>' for title in titles)
    rows = []
    for entry in board.entries:
        envs = "".join(
            f"<li>{escape(env_id)} {escape(lock.plugin_version)},"
            f' tasks <code title="{escape(lock.tasks_sha256)}">'
            f"{escape(lock.tasks_sha256[:12])}</code></li>"
            for env_id, lock in entry.env_locks.items()
        )
        cells = (
            entry.policy,
            entry.date,
            entry.katgym_version,
            sampling_text(entry),
        )
        tds = "".join(
            f'<td role="cell" data-label="{title}">{escape(cell)}</td>'
            for title, cell in zip(titles[1:], cells, strict=False)
        )
        rows.append(
            f'<tr role="row"><th scope="row" role="rowheader">{escape(entry.run_name)}</th>{tds}'
            f'<td role="cell" data-label="{titles[-1]}"><ul>{envs}</ul></td></tr>'
        )
    return f"""<section aria-labelledby="runs">
<h2 id="runs">Runs</h2>
<table role="table" class="runs" aria-label="Runs">
<thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">
{"".join(rows)}
</tbody>
</table>
</section>"""
