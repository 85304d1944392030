"""The leaderboard's page: well-formed, safe, accessible, in need of nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from html_page import Page

from katgym.evaluation.leaderboard.leaderboard import (
    Leaderboard,
    Measure,
    build_leaderboard,
)
from katgym.evaluation.leaderboard.leaderboard_entry import EnvLock, LeaderboardEntry
from katgym.evaluation.statistics.summary import summarize
from katgym.run_view.screens.leaderboard_page import leaderboard_page

Make = Callable[..., dict[str, Any]]
EVIL = "<script>alert(1)</script>\"'&"


def _board(
    make_line: Make, *, tasks: tuple[str, str] = ("aa", "aa"), **options: Any
) -> Leaderboard:
    entries = []
    for name, hash_, successes in (("a", tasks[0], 8), (EVIL, tasks[1], 2)):
        lines = [
            make_line(f"t{i}", None if i == 9 else float(i < successes), env_id=env_id)
            for env_id in ("katgym/Toy-v0", f"katgym/Evil{EVIL}-v0")
            for i in range(10)
        ]
        summary = summarize(lines)
        entries.append(
            LeaderboardEntry(
                run_name=name,
                policy=f"vllm:http://host/#{name}",
                date=f"2026-03-0{len(entries) + 1}",
                katgym_version="0.1.0",
                sampling={"temperature": 0.6},
                env_locks={
                    e: EnvLock(plugin_version="1.0", tasks_sha256=hash_ * 32) for e in summary.envs
                },
                summary=summary,
            )
        )
    return build_leaderboard(entries, title=f"Board {EVIL}", **options)


@pytest.mark.parametrize("measure", list(Measure))
def test_tags_are_balanced_and_nothing_is_injected(make_line: Make, measure: Measure) -> None:
    text = leaderboard_page(_board(make_line, measure=measure))
    page = Page(text)
    assert page.all("script") == []
    assert "<script" not in text
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert page.text.count("alert(1)") >= 6
    assert EVIL in page.text


def test_page_needs_nothing_else(make_line: Make) -> None:
    text = leaderboard_page(_board(make_line))
    page = Page(text)
    for tag in ("link", "img", "iframe", "object", "embed", "image", "use", "a"):
        assert page.all(tag) == []
    assert not any({"src", "href"} & attrs.keys() for _, attrs in page.tags)
    assert "url(" not in text and "@import" not in text


def test_tables_are_accessible(make_line: Make) -> None:
    page = Page(leaderboard_page(_board(make_line)))
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


def test_bars_stay_inside_their_axis(make_line: Make) -> None:
    for measure in Measure:
        text = leaderboard_page(_board(make_line, measure=measure))
        for number in re.findall(r'(?:x1|x2|cx|x)="([-0-9.]+)%"', text):
            assert 0 <= float(number) <= 100


def test_comparable_runs_show_counts_and_no_warning_but_of_invalid_rollouts(
    make_line: Make,
) -> None:
    page = Page(leaderboard_page(_board(make_line)))
    assert "All 2 runs played the same 10 tasks with the same env seeds." in page.text
    assert "Not all runs are comparable." not in page.text
    assert "rollouts are invalid, and in no rate but" in page.text
    assert "Wilson score intervals" in page.text
    assert "1sandbox error 1" in page.text and "2sandbox error 2" in page.text


def test_incomparable_runs_show_a_warning_in_every_section(make_line: Make) -> None:
    page = Page(leaderboard_page(_board(make_line, tasks=("aa", "bb"))))
    warnings = [a for a in page.all("ul") if a.get("class") == "notes"]
    assert [a["role"] for a in warnings] == ["note"] * 3
    assert "Not all runs are comparable." in page.text
    assert "Each set is ranked on its own" in page.text


def test_run_without_interval_has_a_dot_and_one_without_value_none(make_line: Make) -> None:
    def board(value: float | None) -> Leaderboard:
        summary = summarize([make_line("only", value)])
        locks = {"katgym/Toy-v0": EnvLock(plugin_version="1", tasks_sha256="aa")}
        entry = LeaderboardEntry(
            run_name="a",
            policy="oracle",
            date="2026-03-01",
            katgym_version="0.1.0",
            sampling={},
            env_locks=locks,
            summary=summary,
        )
        return build_leaderboard([entry])

    one = Page(leaderboard_page(board(1.0)))
    assert (len(one.all("circle")), len(one.all("rect"))) == (1, 0)
    assert "One run over 1 task." in one.text
    none = Page(leaderboard_page(board(None)))
    assert none.all("svg")[0]["aria-label"] == "no valid rollouts"


def test_style_knows_dark_paper_and_narrow_screens(make_line: Make) -> None:
    text = leaderboard_page(_board(make_line))
    assert "@media (prefers-color-scheme: dark)" in text
    assert "@media (max-width: 1080px)" in text
    assert "tabular-nums" in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
