"""A leaderboard in a terminal (rich) and as Markdown; both show the same cells.

Not here: what is ranked and how (`leaderboard.py`), the web page (`run_view/screens/`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from katgym.evaluation.leaderboard.leaderboard import (
    Leaderboard,
    LeaderboardGroup,
    LeaderboardRow,
    LeaderboardSection,
    Measure,
)
from katgym.evaluation.leaderboard.leaderboard_entry import LeaderboardEntry
from katgym.evaluation.statistics.component_summary import choose_metrics
from katgym.evaluation.statistics.number_text import (
    NONE,
    count_text,
    estimate_text,
    interval_text,
    number_text,
)
from katgym.evaluation.statistics.summary import trust_text
from katgym.text_table import TextTable

MEASURE_NAMES = {
    Measure.HEADLINE: "Headline",
    Measure.SUCCESS_RATE: "Success",
    Measure.MEAN_REWARD: "Mean reward",
}
_SPECIAL = "\\`*_{}[]<>#|~"


def rank_text(row: LeaderboardRow) -> str:
    """Return `1` or `1–2`."""
    if row.ranks is None:
        return NONE
    best, worst = row.ranks
    return str(best) if best == worst else f"{best}–{worst}"


def value_text(value: float | None, measure: Measure) -> str:
    """Return a rate in percent, a reward as it is."""
    if measure is Measure.SUCCESS_RATE and value is not None:
        return f"{number_text(100 * value, 1)}%"
    return number_text(value)


def row_interval_text(row: LeaderboardRow, measure: Measure) -> str:
    """Return the interval in the unit of `value_text`, without the percent signs."""
    interval = row.interval
    if interval is None or measure is not Measure.SUCCESS_RATE:
        return interval_text(interval)
    return f"[{number_text(100 * interval.low, 1)}, {number_text(100 * interval.high, 1)}]"


def detail_columns(measure: Measure, group: LeaderboardGroup) -> dict[str, list[str]]:
    """Return the columns after the ranked value: title -> one cell per row of the group.

    All cells of pass^k have the same k, the largest that every row has. Columns are left out where
    they say nothing: what has no value in any row, a mean reward that is the success rate.
    """
    rows = group.rows
    single = [row.envs[0] for row in rows if len(row.envs) == 1]
    columns: dict[str, list[str]] = {}
    is_graded = any(env.mean_reward != env.success_rate for env in single)
    if measure is Measure.MEAN_REWARD:
        columns["Success"] = [value_text(env.success_rate, Measure.SUCCESS_RATE) for env in single]
    elif is_graded:
        columns["Mean reward"] = [number_text(env.mean_reward) for env in single]
    if any(row.num_invalid for row in rows):
        of_all = [value_text(row.success_rate_of_all, Measure.SUCCESS_RATE) for row in rows]
        columns["Success of all"] = of_all
    k = min((max(env.pass_hat_k) for env in single if env.pass_hat_k), default=0)
    if k > 1:
        columns[f"pass@{k}"] = [number_text(env.pass_at_k.get(k)) for env in single]
        columns[f"pass^{k}"] = [number_text(env.pass_hat_k.get(k)) for env in single]
    if any(row.entry.verified for row in rows):
        columns["Verified"] = [row.entry.verified or NONE for row in rows]
    if any(env.trust for row in rows for env in row.envs):
        columns["Trust"] = [trust_text(row.envs) or NONE for row in rows]
    columns["Tasks"] = [count_text(row.num_tasks) for row in rows]
    columns["Rollouts"] = [count_text(row.num_rollouts) for row in rows]
    columns["Invalid"] = [count_text(row.num_invalid) for row in rows]
    columns["Turns"] = [number_text(env.mean_turns, 1) for env in single]
    columns["Tokens out"] = [
        count_text(sum(env.num_completion_tokens for env in row.envs)) for row in rows
    ]
    if any(row.cost is not None for row in rows):
        columns["Cost"] = [NONE if row.cost is None else f"${row.cost:.2f}" for row in rows]
        columns["s/rollout"] = [number_text(row.wall_s / row.num_rollouts, 1) for row in rows]
    return {title: cells for title, cells in columns.items() if cells}


def metric_rows(group: LeaderboardGroup) -> dict[str, list[str]]:
    """Return what was measured but not rewarded: metric -> one cell per row of the group.

    Empty for the overall section, whose rows hold several envs.
    """
    single = [row.envs[0] for row in group.rows if len(row.envs) == 1]
    found: dict[str, list[str]] = {}
    for name in choose_metrics(env.components for env in single):
        parts = [env.components.get(name) for env in single]
        found[name] = [estimate_text(p.mean, p.t_interval) if p else NONE for p in parts]
    per_success = {
        "turns per success": [env.turns_per_success for env in single],
        "parallel calls per success": [env.parallel_calls_per_success for env in single],
    }
    if found:
        found |= {
            name: [number_text(v, 1) for v in values]
            for name, values in per_success.items()
            if any(values)
        }
    return found


def metric_header(group: LeaderboardGroup) -> list[str]:
    """Return the column titles over `metric_rows`: the runs, best first."""
    return ["Metric", *(row.entry.run_name for row in group.rows)]


def comparability_text(section: LeaderboardSection) -> str:
    """Say that the section's runs compare; only for a section without warnings."""
    rows = [row for group in section.groups for row in group.rows]
    num_tasks = rows[0].num_tasks if rows else 0
    tasks = f"{count_text(num_tasks)} task{'' if num_tasks == 1 else 's'}"
    if len(rows) == 1:
        return f"One run over {tasks}."
    return f"All {len(rows)} runs played the same {tasks} with the same env seeds."


def leaderboard_table(board: Leaderboard) -> RenderableType:
    """Return the leaderboard as something rich can print."""
    parts: list[RenderableType] = [Text(board.title, style="bold"), Text("")]
    for section in all_sections(board):
        parts.append(Text(section.title, style="bold"))
        parts += [Text(f"warning: {note}", style="yellow") for note in section.notes]
        if not section.warnings:
            parts.append(Text(comparability_text(section), style="dim"))
        for group in section.groups:
            if group.label:
                parts.append(Text(group.label))
            parts.append(_table(*_cells(board, section, group), text_column=1))
            if metrics := metric_rows(group):
                rows = [[name, *cells] for name, cells in metrics.items()]
                parts += [Text(""), _table(metric_header(group), rows, text_column=0)]
        parts.append(Text(""))
    parts.append(Text(board.method, style="dim"))
    return Group(*parts)


def leaderboard_markdown(board: Leaderboard) -> str:
    """Return the leaderboard as GitHub-flavoured Markdown, names escaped."""
    lines = [f"# {_escape(board.title)}", ""]
    for section in all_sections(board):
        lines += [f"## {_escape(section.title)}", ""]
        for note in section.notes:
            lines += [f"> **Warning:** {_escape(note)}", ""]
        if not section.warnings:
            lines += [comparability_text(section), ""]
        for group in section.groups:
            if group.label:
                lines += [f"### {_escape(group.label)}", ""]
            lines += _markdown_table(*_cells(board, section, group), text_columns={1})
            if metrics := metric_rows(group):
                rows = [[name, *cells] for name, cells in metrics.items()]
                lines += _markdown_table(metric_header(group), rows, text_columns={0})
    header = ["Run", "Policy", "Date", "katgym", "Sampling", "Env: plugin version, tasks"]
    runs = _markdown_table(header, map(_run_cells, board.entries), text_columns=set(range(6)))
    lines += ["## Runs", "", *runs, board.method, ""]
    return "\n".join(lines)


def sampling_text(entry: LeaderboardEntry) -> str:
    """Return `temperature 0.6, top_p 0.95`, or a dash."""
    return ", ".join(f"{name} {value}" for name, value in entry.sampling.items()) or NONE


def all_sections(board: Leaderboard) -> list[LeaderboardSection]:
    """Return the sections in reading order, the overall one first."""
    return [*([board.overall] if board.overall is not None else []), *board.sections]


def _cells(
    board: Leaderboard, section: LeaderboardSection, group: LeaderboardGroup
) -> tuple[list[str], list[list[str]]]:
    """Return column names and rows; the second column holds text, the others numbers."""
    measure = section.measure
    columns = detail_columns(measure, group)
    interval = f"{board.level * 100:g}% interval"
    names = ["Rank", "Run", MEASURE_NAMES[measure], interval, *columns]
    rows = [
        [
            rank_text(row),
            row.entry.run_name,
            value_text(row.value, measure),
            row_interval_text(row, measure),
            *(cells[index] for cells in columns.values()),
        ]
        for index, row in enumerate(group.rows)
    ]
    return names, rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_column: int) -> TextTable:
    numbers = [name for index, name in enumerate(header) if index != text_column]
    return TextTable(header=header, rows=rows, right=numbers)


def _run_cells(entry: LeaderboardEntry) -> list[str]:
    envs = [
        f"{env_id}: {lock.plugin_version}, {lock.tasks_sha256[:12]}"
        for env_id, lock in entry.env_locks.items()
    ]
    cells = [entry.run_name, entry.policy, entry.date, entry.katgym_version]
    return [*cells, sampling_text(entry), "; ".join(envs)]


def _markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[int]
) -> list[str]:
    """Return the lines of a table, names escaped, and an empty one behind it."""
    places = [":--" if index in text_columns else "--:" for index in range(len(header))]
    written = [[_escape(cell) for cell in row] for row in (header, *rows)]
    return [*(f"| {' | '.join(row)} |" for row in (written[0], places, *written[1:])), ""]


def _escape(text: str) -> str:
    """Escape what Markdown or embedded HTML would interpret; a line break becomes a space."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in flat)
