"""Two runs are compared on the tasks they share, with warnings for what differs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console

from katgym.evaluation.statistics.compare import RunComparison, compare_runs, comparison_table

Make = Callable[..., dict[str, Any]]
TOY = "katgym/Toy-v0"


def _text(comparison: RunComparison) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(comparison_table(comparison, name_a="base", name_b="[b]trained"))
    return console.export_text()


def test_pairs_by_task_and_counts_invalid(make_line: Make) -> None:
    a = [make_line("a", 0.0), make_line("b", 1.0), make_line("c", None)]
    b = [make_line("a", 1.0), make_line("b", 1.0), make_line("c", 1.0)]
    env = compare_runs(a, b).envs[TOY]
    assert env.paired is not None
    assert (env.paired.num_shared, env.paired.difference) == (2, 0.5)
    assert (env.paired.num_wins, env.paired.num_ties, env.paired.num_losses) == (1, 1, 0)
    assert (env.num_invalid_a, env.num_invalid_b) == (1, 0)
    assert env.warnings == ("1 task ('c') scored only in run B",)


def test_same_run_twice_has_no_warning(make_line: Make) -> None:
    lines = [make_line(f"t{i}", float(i % 2)) for i in range(5)]
    env = compare_runs(lines, lines).envs[TOY]
    assert env.warnings == ()
    assert env.paired is not None and env.paired.difference == 0.0


def test_changed_tasks_are_left_out_and_named(make_line: Make) -> None:
    a = [make_line(t, 0.0, task_sha256="1") for t in "abc"]
    b = [make_line(t, 1.0, task_sha256="2" if t == "a" else "1") for t in "abc"]
    env = compare_runs(a, b).envs[TOY]
    assert env.paired is not None and env.paired.num_shared == 2
    assert env.warnings == ("1 task ('a') changed content between the runs and is left out",)


def test_differing_seeds_are_told(make_line: Make) -> None:
    a = [make_line(t, 0.0, seed=1) for t in "abc"]
    b = [make_line(t, 1.0, seed=2 if t == "a" else 1) for t in "abc"]
    assert compare_runs(a, b).envs[TOY].warnings == (
        "1 shared task was played with different env seeds: the episodes are not the same",
    )


def test_long_lists_of_tasks_are_cut(make_line: Make) -> None:
    a = [make_line(f"t{i}") for i in range(9)]
    (warning,) = compare_runs(a, a[:2]).envs[TOY].warnings
    assert warning == "7 tasks ('t2', 't3', 't4', 't5', 't6' and 2 more) scored only in run A"


def test_env_of_one_run_only(make_line: Make) -> None:
    env = compare_runs([make_line()], []).envs[TOY]
    assert (env.paired, env.warnings) == (None, ("only run A has this env",))


def test_nothing_shared_is_a_warning_not_an_error(make_line: Make) -> None:
    env = compare_runs([make_line("a")], [make_line("b")]).envs[TOY]
    assert env.paired is None
    assert env.warnings == ("no task has a valid reward in both runs: nothing to compare",)


def test_single_task_is_told(make_line: Make) -> None:
    env = compare_runs([make_line("a")], [make_line("a", 0.0)]).envs[TOY]
    assert env.warnings == ("one shared task: no interval and no test",)


def test_no_lines_at_all() -> None:
    assert compare_runs([], []).envs == {}


def test_is_repeatable_and_plain_data(make_line: Make) -> None:
    a = [make_line(f"t{i}", float(i % 2)) for i in range(30)]
    b = [make_line(f"t{i}", float(i % 3 == 0)) for i in range(30)]
    assert compare_runs(a, b) == compare_runs(a, b)
    assert json.loads(json.dumps(asdict(compare_runs(a, b))))["envs"][TOY]["env_id"] == TOY


def test_table_shows_numbers_warnings_and_names_as_they_are(make_line: Make) -> None:
    a = [make_line("a", 1.0), make_line("b", 1.0), make_line("c", 1.0)]
    b = [make_line("a", 1.0), make_line("b", 0.0), make_line("[red]x", 0.0)]
    text = _text(compare_runs(a, b))
    assert "[b]trained minus base" in text
    assert "−0.500" in text
    assert "0/1/1" in text
    assert "warning: katgym/Toy-v0: 1 task ('[red]x') scored only in run B" in text
