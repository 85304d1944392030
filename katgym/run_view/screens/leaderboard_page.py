"""The page of a leaderboard: one file, no scripts, light and dark.

Not here: what is ranked and how (`evaluation/leaderboard/`), the frame (`page_frame.py`), the style
(`assets/leaderboard.css`, where below 1080 px every table row becomes a small card).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from katgym.evaluation.leaderboard.leaderboard import (
    Leaderboard,
    LeaderboardGroup,
    LeaderboardRow,
    LeaderboardSection,
    Measure,
)
from katgym.evaluation.leaderboard.leaderboard_text import (
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
from katgym.evaluation.statistics.number_text import count_text, number_text
from katgym.run_view.page_frame import notes, plural, single_page
from katgym.run_view.screens.svg_charts import interval_bar

Cell = tuple[str, str, str]
"""A cell of a table: its classes, its HTML, and its other attributes."""


def leaderboard_page(board: Leaderboard, links: Mapping[str, str] | None = None) -> str:
    """Return the whole page.

    links: name of a run -> the address of its pages, where it has any.
    """
    dates = sorted({entry.date for entry in board.entries})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    num_runs, num_envs = len(board.entries), len(board.sections)
    sections = "\n".join(
        _section(board, s, index, links or {}) for index, s in enumerate(all_sections(board))
    )
    body = f"""<main>
<header>
<h1>{escape(board.title)}</h1>
<p class="subtitle">{plural(num_runs, "run")} in {plural(num_envs, "environment")}, {escape(period)}
</p>
</header>
{sections}
<section aria-labelledby="runs">
<h2 id="runs">Runs</h2>
{_runs(board, links or {})}
</section>
<section aria-labelledby="method">
<h2 id="method">Method</h2>
<p class="prose">{escape(board.method)}</p>
</section>
</main>
"""
    return single_page(title=board.title, body=body, style="leaderboard.css")


def _section(
    board: Leaderboard, section: LeaderboardSection, index: int, links: Mapping[str, str]
) -> str:
    status = f'<p class="status">{escape(comparability_text(section))}</p>'
    if section.warnings:
        status = notes(["Not all runs are comparable.", *section.notes])
    elif section.notes:
        status += notes(section.notes)
    scale = _scale(section)
    groups = "\n".join(_group(board, section, group, scale, links) for group in section.groups)
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
    links: Mapping[str, str],
) -> str:
    """Return the table of one set of comparable runs, and its metrics folded away."""
    columns = detail_columns(section.measure, group)
    # The axis' numbers are hidden from screen readers, which get every bar's.
    middle = (scale[0] + scale[1]) / 2
    ends = ["0", "50", "100%"]
    if section.measure is not Measure.SUCCESS_RATE:
        ends = [number_text(x, 2) for x in (scale[0], middle, scale[1])]
    spans = "".join(f"<span>{escape(text)}</span>" for text in ends)
    axis = f'<span class="axis" aria-hidden="true">{spans}</span>'
    head = [
        ("rank", "Rank"),
        ("run", "Run"),
        ("value", MEASURE_NAMES[section.measure]),
        ("interval", f"{board.level * 100:g}% interval{axis}"),
        *((_css(title), escape(title)) for title in columns),
    ]
    rows = []
    for index, row in enumerate(group.rows):
        own = {title: told[index] for title, told in columns.items()}
        cells = _row(board.level, section.measure, row, own, scale)
        rows.append(_linked(cells, row, links.get(row.entry.run_name)))
    label = f"{section.title}, {group.label}" if group.label else section.title
    heading = f"<h3>{escape(group.label)}</h3>" if group.label else ""
    text = heading + _table(label, head, rows, row_header=1)
    if metrics := metric_rows(group):
        titles = metric_header(group)
        table = _table(
            f"{label}, metrics",
            [("number" if i else "run", escape(title)) for i, title in enumerate(titles)],
            [
                [
                    ("run", escape(name), ""),
                    *(_number(run, cell) for run, cell in zip(titles[1:], told, strict=True)),
                ]
                for name, told in metrics.items()
            ],
            css="metrics",
        )
        summary = "<summary>Metrics: measured, not rewarded</summary>"
        text += f'\n<details class="metrics">{summary}\n{table}</details>'
    return text


def _row(
    level: float,
    measure: Measure,
    row: LeaderboardRow,
    cells: dict[str, str],
    scale: tuple[float, float],
) -> list[Cell]:
    # A URI may break after its separators.
    policy = escape(row.entry.policy).replace("/", "/<wbr>").replace("#", "#<wbr>")
    value = escape(value_text(row.value, measure))
    bounds = escape(row_interval_text(row, measure))
    bar = '<svg class="interval" role="img" aria-label="no valid rollouts"></svg>'
    if row.value is not None:
        label = f"{MEASURE_NAMES[measure]} {value}"
        if row.interval is not None:
            label += f", {level * 100:g}% interval {bounds}"
        bar = interval_bar(row.value, row.interval, label=label, scale=scale)
    numbers = [_number(title, cell, _css(title)) for title, cell in cells.items()]
    if row.num_invalid:
        # Below the number stands of what kinds the invalid rollouts are.
        kinds: Counter[str] = Counter()
        for env in row.envs:
            kinds.update(env.invalid_kinds)
        told = ", ".join(f"{kind} {count_text(count)}" for kind, count in sorted(kinds.items()))
        place = list(cells).index("Invalid")
        css, html, attributes = numbers[place]
        kinds_text = escape(told.replace("_", " "))
        numbers[place] = (
            f"{css} alert", f'{html}<span class="bounds">{kinds_text}</span>', attributes,
        )  # fmt: skip
    return [
        ("rank", escape(rank_text(row)), ""),
        ("run", f'{escape(row.entry.run_name)}<span class="policy">{policy}</span>', ""),
        ("value", f'{value}<span class="bounds">{bounds}</span>', ""),
        ("interval", bar, ""),
        *numbers,
    ]


def _linked(cells: list[Cell], row: LeaderboardRow, address: str | None) -> list[Cell]:
    """Return a row whose cells lead to the rollouts that they were counted from."""
    if address is None:
        return cells
    env = f"#env={quote(row.envs[0].env_id, safe='')}" if len(row.envs) == 1 else ""
    ways = {"run": address, "value": f"{address}{env}", "alert": f"{address}{env or '#'}&o=invalid"}
    return [
        (css, f'<a href="{escape(way)}">{html}</a>', attributes)
        if (way := next((w for name, w in ways.items() if name in css.split()), None))
        else (css, html, attributes)
        for css, html, attributes in cells
    ]


def _css(title: str) -> str:
    return "number wide" if len(title) > len("Rollouts") else "number"


def _number(label: str, text: str, css: str = "number") -> Cell:
    return css, escape(text), f' data-label="{escape(label)}"'


def _table(
    label: str,
    head: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Cell]],
    *,
    css: str = "",
    row_header: int = 0,
) -> str:
    """Return a table whose roles survive `display: grid`; column `row_header` names the rows."""
    titles = "".join(
        f'<th scope="col" role="columnheader" class="{css}">{html}</th>' for css, html in head
    )
    lines = []
    for row in rows:
        cells = [
            f'<th scope="row" role="rowheader" class="{css}"{attributes}>{html}</th>'
            if place == row_header
            else f'<td role="cell" class="{css}"{attributes}>{html}</td>'
            for place, (css, html, attributes) in enumerate(row)
        ]
        lines.append(f'<tr role="row">{"".join(cells)}</tr>')
    body = "\n".join(lines)
    return f"""<table role="table" class="{css}" aria-label="{escape(label)}">
<thead role="rowgroup"><tr role="row">{titles}</tr></thead>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""


def _scale(section: LeaderboardSection) -> tuple[float, float]:
    """Return the ends of the bars' common axis: 0 to 1, wider if a reward needs it."""
    low, high = 0.0, 1.0
    if section.measure is not Measure.SUCCESS_RATE:
        ends = [
            end
            for group in section.groups
            for row in group.rows
            if row.value is not None
            for end in (row.value, *((row.interval.low, row.interval.high) if row.interval else ()))
        ]
        low, high = min([low, *ends]), max([high, *ends])
    return low, high


def _runs(board: Leaderboard, links: Mapping[str, str]) -> str:
    """Return what each run was made with: enough to tell whether it can be repeated."""
    titles = ("Run", "Policy", "Date", "katgym", "Sampling", "Environments")
    rows = []
    for entry in board.entries:
        envs = "".join(
            f"<li>{escape(env_id)} {escape(lock.plugin_version)},"
            f' tasks <code title="{escape(lock.tasks_sha256)}">'
            f"{escape(lock.tasks_sha256[:12])}</code></li>"
            for env_id, lock in entry.env_locks.items()
        )
        texts = (entry.policy, entry.date, entry.katgym_version, sampling_text(entry))
        cells = [_number(t, text, "") for t, text in zip(titles[1:], texts, strict=False)]
        label = f' data-label="{titles[-1]}"'
        name = escape(entry.run_name)
        if address := links.get(entry.run_name):
            name = f'<a href="{escape(address)}">{name}</a>'
        rows.append([("", name, ""), *cells, ("", f"<ul>{envs}</ul>", label)])
    return _table("Runs", [("", title) for title in titles], rows, css="runs")
