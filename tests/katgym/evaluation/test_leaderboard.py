"""Leaderboards: ranks that intervals leave open, tables, Markdown, and the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from html_page import Page
from rich.console import Console

from katgym import Success
from katgym.environment.reward import Component, Headline, Reward
from katgym.evaluation.leaderboard.leaderboard import (
    Leaderboard,
    LeaderboardSection,
    Measure,
    build_leaderboard,
    mover_mean,
)
from katgym.evaluation.leaderboard.leaderboard_entry import EnvLock, LeaderboardEntry
from katgym.evaluation.leaderboard.leaderboard_text import (
    detail_columns,
    leaderboard_markdown,
    leaderboard_table,
    metric_rows,
    rank_text,
)
from katgym.evaluation.statistics.intervals import Interval, wilson_interval
from katgym.evaluation.statistics.summary import RunSummary, summarize
from katgym.run_view.screens.leaderboard_page import leaderboard_page

Make = Callable[..., dict[str, Any]]
TOY, WORDS = "katgym/Toy-v0", "katgym/Words-v0"
EVIL = "<script>alert(1)</script>\"'&"


def _run(name: str, summary: RunSummary, **changes: Any) -> LeaderboardEntry:
    """Return a run whose envs have version 1.0 and tasks `aa`."""
    lock = EnvLock(plugin_version="1.0", tasks_sha256="aa")
    fields = {
        "policy": f"vllm:http://host#{name}",
        "date": "2026-03-01",
        "katgym_version": "0.1.0",
        "sampling": {"temperature": 0.6},
        "env_locks": dict.fromkeys(summary.envs, lock),
        **changes,
    }
    return LeaderboardEntry(run_name=name, summary=summary, **fields)


def _entry(
    make_line: Make,
    name: str,
    num_successes: int,
    *,
    envs: tuple[str, ...] = (TOY,),
    tasks: str = "aa",
    seed: int = 7,
    num_tasks: int = 40,
    plugin_version: str = "1.0",
    **more: Any,
) -> LeaderboardEntry:
    """Return a run with one attempt at each task, of which the first succeed."""
    lines = [
        make_line(f"t{i}", float(i < num_successes), env_id=env_id, seed=seed)
        for env_id in envs
        for i in range(num_tasks)
    ]
    lock = EnvLock(plugin_version=plugin_version, tasks_sha256=tasks)
    return _run(name, summarize(lines, **more), env_locks=dict.fromkeys(envs, lock))


def _names(section: LeaderboardSection) -> list[list[tuple[str, str]]]:
    return [[(r.entry.run_name, rank_text(r)) for r in g.rows] for g in section.groups]


def _table(board: Leaderboard) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(leaderboard_table(board))
    return console.export_text()


def test_orders_by_value_with_the_ranks_that_intervals_leave_open(make_line: Make) -> None:
    # 95% Wilson intervals of 38, 33, 31 and 5 of 40: [.83, .99], [.68, .91], [.63, .88], [.05, .26]
    runs = [("d", 5), ("b", 33), ("a", 38), ("c", 31)]
    board = build_leaderboard([_entry(make_line, name, count) for name, count in runs])
    assert _names(board.sections[0]) == [[("a", "1–3"), ("b", "1–3"), ("c", "1–3"), ("d", "4")]]
    assert board.sections[0].warnings == ()
    assert board.overall is None
    alone = build_leaderboard([_entry(make_line, "a", 3)])
    assert _names(alone.sections[0]) == [[("a", "–")]]


def test_different_task_sets_are_never_in_one_order(make_line: Make) -> None:
    runs = [
        _entry(make_line, "low", 2),
        _entry(make_line, "other", 40, tasks="bb"),
        _entry(make_line, "high", 39),
    ]
    section = build_leaderboard(runs).sections[0]
    assert _names(section) == [[("high", "1"), ("low", "2")], [("other", "–")]]
    assert section.warnings == (
        "The runs were made on 2 different sets of tasks. Each set is ranked on its own; values of"
        " different sets do not compare.",
    )
    assert section.groups[0].label.startswith("Tasks aa")
    part = [_entry(make_line, "all", 40), _entry(make_line, "some", 10, num_tasks=10)]
    assert len(build_leaderboard(part).sections[0].groups) == 2


def test_other_differences_are_warned_about(make_line: Make) -> None:
    runs = [
        _entry(make_line, "a", 10),
        _entry(make_line, "b", 20, seed=8, plugin_version="2.0", success_threshold=0.5),
    ]
    section = build_leaderboard(runs).sections[0]
    assert section.warnings == (
        "Env seeds differ between a, b: the episodes are not the same.",
        "What is a success or heads the results differs between a, b.",
        "Plugin versions differ between a, b.",
    )


def test_overall_weighs_envs_the_same_and_leaves_incomplete_runs_out(make_line: Make) -> None:
    runs = [_entry(make_line, "a", 30, envs=(TOY, WORDS)), _entry(make_line, "b", 10)]
    overall = build_leaderboard(runs).overall
    assert overall is not None
    assert overall.warnings == ("b is left out: it has no result for katgym/Words-v0.",)
    (row,) = overall.groups[0].rows
    one = wilson_interval(0.75, 40)
    assert row.value == 0.75
    assert row.interval is not None
    assert row.interval.low == pytest.approx(0.75 - (0.75 - one.low) / 2**0.5)
    assert row.interval.high == pytest.approx(0.75 + (one.high - 0.75) / 2**0.5)
    assert (row.num_tasks, row.num_rollouts) == (80, 80)


def test_overall_ranks_runs_of_the_same_envs_together(make_line: Make) -> None:
    chess, repairs = "katgym/Chess-v0", "katgym/Repairs-v0"
    runs = [
        _entry(make_line, "a", 30, envs=(TOY, WORDS)),
        _entry(make_line, "b", 10, envs=(TOY, WORDS)),
        _entry(make_line, "a-repairs", 10, envs=(repairs,)),  # of an env that nobody weighs
    ]
    overall = build_leaderboard(runs).overall
    assert overall is not None
    assert (_names(overall), overall.warnings) == ([[("a", "1"), ("b", "2")]], ())
    assert overall.groups[0].label == ""
    more = _entry(make_line, "c", 30, envs=(TOY, WORDS, chess))
    overall = build_leaderboard([*runs, more]).overall
    assert overall is not None
    assert [[name for name, _ in group] for group in _names(overall)] == [["a", "b"], ["c"]]
    assert overall.groups[0].label.startswith("katgym/Toy-v0, katgym/Words-v0, Tasks ")
    assert overall.warnings[0].startswith("The runs played 2 different sets of environments.")
    assert build_leaderboard([runs[2], _entry(make_line, "d", 3)]).overall is None


def test_mover_by_hand() -> None:
    value, interval = mover_mean(
        [(0.5, Interval(low=0.2, high=0.6)), (0.9, Interval(low=0.5, high=0.9))]
    )
    # low = 0.7 - sqrt(0.3**2 + 0.4**2) / 2, high = 0.7 + sqrt(0.1**2 + 0) / 2
    assert value == pytest.approx(0.7)
    assert (interval.low, interval.high) == pytest.approx((0.45, 0.75))


def test_run_without_valid_rollouts_comes_last_and_unranked(make_line: Make) -> None:
    broken = _run("broken", summarize([make_line(f"t{i}", None) for i in range(40)]))
    board = build_leaderboard([broken, _entry(make_line, "a", 0), _entry(make_line, "b", 40)])
    assert _names(board.sections[0]) == [[("b", "1"), ("a", "2"), ("broken", "–")]]
    assert "40" in _table(board)


def test_a_policy_that_voids_what_it_cannot_solve_is_shown_to(make_line: Make) -> None:
    solved = [make_line(f"t{i}", 1.0) for i in range(30)]
    honest = [*solved, *(make_line(f"t{i}", 0.0) for i in range(30, 40))]
    voiding = [*solved, *(make_line(f"t{i}", None) for i in range(30, 40))]
    entries = [_run("honest", summarize(honest)), _run("voiding", summarize(voiding))]
    board = build_leaderboard(entries)
    assert _names(board.sections[0]) == [[("voiding", "1"), ("honest", "2")]]
    columns = detail_columns(board, board.sections[0].groups[0])
    assert columns["Success of all"] == ["75.0%", "75.0%"]
    assert "voiding: 10 of its 40 rollouts are invalid" in board.sections[0].notes[0]
    only = build_leaderboard(entries[:1])
    assert "Success of all" not in detail_columns(only, only.sections[0].groups[0])


def test_measure_mean_reward_ranks_by_t_intervals(make_line: Make) -> None:
    board = build_leaderboard([_entry(make_line, "a", 30)], measure=Measure.MEAN_REWARD)
    (row,) = board.sections[0].groups[0].rows
    assert row.interval == row.envs[0].t_interval
    assert "t intervals with standard errors clustered by task (CR1)" in board.method
    assert "Success" in detail_columns(board.sections[0].measure, board.sections[0].groups[0])


def test_a_leaderboard_of_envs_with_different_headlines_says_so(make_line: Make) -> None:
    graded = Success(threshold=0.5, component="half", headline=Headline.MEAN_REWARD)
    lines = [make_line(f"t{n}", n / 4) for n in range(4)]
    lines += [make_line(f"t{n}", n / 4, env_id=WORDS, success=graded) for n in range(4)]
    board = build_leaderboard([_run("a", summarize(lines))])
    assert board.overall is not None
    assert board.overall.measure is Measure.HEADLINE
    assert board.overall.groups[0].rows[0].value == pytest.approx((0.0 + 0.375) / 2)
    assert [section.measure for section in board.sections] == ["success_rate", "mean_reward"]
    assert "Headline" in _table(board)
    assert f"Success: reward at least 1; {WORDS}: half at least 0.5." in board.method


def test_pass_k_columns_have_one_k_for_all_rows(make_line: Make) -> None:
    def entry(name: str, num_attempts: int) -> LeaderboardEntry:
        lines = [make_line(f"t{i}", float(i < 3), k) for i in range(6) for k in range(num_attempts)]
        return _run(name, summarize(lines))

    board = build_leaderboard([entry("four", 4), entry("two", 2)])
    columns = detail_columns(board.sections[0].measure, board.sections[0].groups[0])
    assert columns["pass@2"] == ["0.500", "0.500"]
    assert "pass^4" not in columns


def test_entries_are_checked(make_line: Make) -> None:
    with pytest.raises(ValueError, match="needs at least one run"):
        build_leaderboard([])
    run = _entry(make_line, "a", 1)
    with pytest.raises(ValueError, match="run name 'a' occurs twice"):
        build_leaderboard([run, run])
    with pytest.raises(ValueError, match=r"intervals have levels \[0.9, 0.95\]"):
        build_leaderboard([run, _entry(make_line, "b", 1, level=0.9)])
    with pytest.raises(ValueError, match="run 'x' has no lock for env 'katgym/Toy-v0'"):
        _run("x", run.summary, env_locks={})


def test_entry_from_a_lock(make_line: Make) -> None:
    summary = _entry(make_line, "a", 1).summary
    lock = {
        "created": "2026-03-04T05:06:07+00:00",
        "katgym_version": "0.1.0",
        "policy": "oracle",
        "sampling": {"temperature": 1.0},
        "envs": [{"env_id": TOY, "plugin_version": "1.0", "tasks_sha256": "aa"}],
    }
    entry = LeaderboardEntry.from_lock("run", lock, summary)
    assert (entry.date, entry.policy) == ("2026-03-04", "oracle")
    assert entry.env_locks == {TOY: EnvLock(plugin_version="1.0", tasks_sha256="aa")}
    assert LeaderboardEntry.from_lock("run", lock, summary, date="2026").date == "2026"
    del lock["policy"]
    with pytest.raises(ValueError, match="lock of run 'run' lacks 'policy'"):
        LeaderboardEntry.from_lock("run", lock, summary)


def test_terminal_shows_counts_method_and_warnings(make_line: Make) -> None:
    text = _table(
        build_leaderboard(
            [_entry(make_line, "[red]a", 30), _entry(make_line, "b", 3, tasks="bb")], title="Board"
        )
    )
    assert "[red]a" in text
    assert "75.0%" in text
    assert "warning: The runs were made on 2 different sets of tasks." in text
    assert "Wilson score intervals" in text
    alike = build_leaderboard([_entry(make_line, "a", 30), _entry(make_line, "b", 3)])
    assert "All 2 runs played the same 40 tasks with the same env seeds." in _table(alike)


def test_markdown_escapes_and_keeps_columns(make_line: Make) -> None:
    board = build_leaderboard(
        [_entry(make_line, "a|b<script>\n*x*", 30), _entry(make_line, "plain", 10)]
    )
    text = leaderboard_markdown(board)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    table = rows[:4]
    assert {row.replace("\\|", "").count("|") for row in table} == {table[0].count("|")}
    assert r"a\|b\<script\> \*x\*" in table[2]
    assert "<script>" not in text
    assert "| 1 |" in table[2]
    assert "## Runs" in text


def test_metrics_stand_beside_each_other_below_the_ranking(make_line: Make) -> None:
    def entry(name: str, distance: float) -> LeaderboardEntry:
        parts = {
            "correct": Component(score=1.0),
            "edit_distance": Component(score=distance, weight=0.0),
        }
        reward = Reward(value=1.0, components=parts)
        lines = [make_line(f"t{i}", 1.0, reward=reward) for i in range(3)]
        return _run(name, summarize(lines))

    board = build_leaderboard([entry("near", 0.25), entry("far", 2.5)])
    rows = metric_rows(board.sections[0].groups[0])
    assert rows["edit_distance"] == ["2.500 [2.500, 2.500]", "0.250 [0.250, 0.250]"]
    assert rows["turns per success"] == ["2.0", "2.0"]
    assert "| edit\\_distance | 2.500 \\[2.500, 2.500\\] |" in leaderboard_markdown(board)
    assert "edit_distance" in _table(board)
    page = leaderboard_page(board)
    assert "Metrics: measured, not rewarded" in page
    assert page.count('data-label="near"') == len(rows)
    plain = build_leaderboard([_entry(make_line, "a", 20)])
    assert metric_rows(plain.sections[0].groups[0]) == {}
    assert "<summary>" not in leaderboard_page(plain)


# ---- the page


def _evil_board(make_line: Make, *, tasks: tuple[str, str] = ("aa", "aa"), **options: Any) -> str:
    """Return the page of two runs of two envs, one of each of a name that does harm."""
    entries = []
    for name, hash_, successes in (("a", tasks[0], 8), (EVIL, tasks[1], 2)):
        lines = [
            make_line(f"t{i}", None if i == 9 else float(i < successes), env_id=env_id)
            for env_id in (TOY, f"katgym/Evil{EVIL}-v0")
            for i in range(10)
        ]
        summary = summarize(lines)
        lock = EnvLock(plugin_version="1.0", tasks_sha256=hash_ * 32)
        more = {"date": f"2026-03-0{len(entries) + 1}"}
        entries.append(_run(name, summary, env_locks=dict.fromkeys(summary.envs, lock), **more))
    return leaderboard_page(build_leaderboard(entries, title=f"Board {EVIL}", **options))


def test_a_page_of_any_measure_is_safe_and_has_its_bars_inside(make_line: Make) -> None:
    for measure in Measure:
        text = _evil_board(make_line, measure=measure)
        page = Page(text)
        assert "<script" not in text and page.all("script") == []
        policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
        assert policy == "default-src 'none'; style-src 'unsafe-inline'"
        assert page.text.count("alert(1)") >= 6
        assert EVIL in page.text
        numbers = re.findall(r'(?:x1|x2|cx|x)="([-0-9.]+)%"', text)
        assert numbers and all(0 <= float(number) <= 100 for number in numbers)


def test_a_page_needs_nothing_else_and_knows_dark_paper_and_narrow_screens(make_line: Make) -> None:
    text = _evil_board(make_line)
    page = Page(text)
    for tag in ("link", "img", "iframe", "object", "embed", "image", "use", "a"):
        assert page.all(tag) == []
    assert not any({"src", "href"} & attrs.keys() for _, attrs in page.tags)
    assert "url(" not in text and "@import" not in text
    for style in ("(prefers-color-scheme: dark)", "(max-width: 1080px)", "tabular-nums"):
        assert style in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_tables_are_accessible(make_line: Make) -> None:
    page = Page(_evil_board(make_line))
    assert {attrs["scope"] for attrs in page.all("th")} == {"col", "row"}
    assert all(attrs["aria-label"] for attrs in page.all("table"))
    labels = [attrs["aria-label"] for attrs in page.all("svg") if attrs.get("role") == "img"]
    assert len(labels) == 6  # two runs: overall and two envs
    assert "Success 88.9%, 95% interval [56.5, 98.0]" in labels
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = [attrs["aria-labelledby"] for attrs in page.all("section")]
    assert set(named) <= set(ids)
    assert page.all("html") == [{"lang": "en"}]


def test_a_page_shows_counts_and_warns_of_what_does_not_compare(make_line: Make) -> None:
    page = Page(_evil_board(make_line))
    assert "All 2 runs played the same 10 tasks with the same env seeds." in page.text
    assert "Not all runs are comparable." not in page.text
    assert "rollouts are invalid, and in no rate but" in page.text
    assert "Wilson score intervals" in page.text
    assert "1sandbox error 1" in page.text and "2sandbox error 2" in page.text
    page = Page(_evil_board(make_line, tasks=("aa", "bb")))
    warnings = [a for a in page.all("ul") if a.get("class") == "notes"]
    assert [a["role"] for a in warnings] == ["note"] * 3
    assert "Not all runs are comparable." in page.text
    assert "Each set is ranked on its own" in page.text


def test_run_without_interval_has_a_dot_and_one_without_value_none(make_line: Make) -> None:
    def page(value: float | None) -> Page:
        run = _run("a", summarize([make_line("only", value)]))
        return Page(leaderboard_page(build_leaderboard([run])))

    one = page(1.0)
    assert (len(one.all("circle")), len(one.all("rect"))) == (1, 0)
    assert "One run over 1 task." in one.text
    assert page(None).all("svg")[0]["aria-label"] == "no valid rollouts"
