"""Whole imports: clone and dump in, tasks out, on repositories that git has made."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pull_play import TASK, Result, config_of, decided, graded, one_line, run
from pull_repository import BASE, FIX, FIXED_PLURAL, PLURAL_TESTS, PullRepository, one_pull

from katgym.errors import UsageError
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_swe_factory.checking.task_check import check_tasks
from katgym_plugin_swe_factory.making.set_maker import make_set
from katgym_plugin_swe_factory.making.trial import Trial
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig, TrialConfig
from katgym_plugin_swe_factory.pull_requests.pull_source import PullSource

CHUNKS_ISSUE = """\
Asking for lists of a negative length quietly returns no list at all, so what was handed in is lost
without anybody noticing. It ought to complain instead.
"""


CHECK = """\
    if size < 1:
        raise ValueError(f"a size is at least 1, got {size}")
"""


SIZED = FIXED_PLURAL.replace('most `size`."""\n', 'most `size`."""\n' + CHECK)
SIZE_TESTS = (
    "import pytest\n\n"
    + PLURAL_TESTS
    + """

def test_size():
    with pytest.raises(ValueError, match="at least 1, got -1"):
        chunks([1], -1)
"""
)
FIX_SIZES = {"wordkit/__init__.py": SIZED, "tests/test_words.py": SIZE_TESTS}


def test_a_pull_becomes_a_task_in_a_folder_of_its_repository(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    few = TrialConfig(max_mutants=2)
    assert run(made, trial=few).tasks == (TASK,)
    out = made.folder / "out"
    row = open_source(out).row(TASK)
    assert row.FAIL_TO_PASS == [
        "tests/test_words.py::test_consonant",
        "tests/test_words.py::test_counted",
    ]
    assert row.PASS_TO_PASS[-1] == "tests/test_words.py::test_vowel"
    assert len(row.PASS_TO_PASS) == 5
    hidden = open_source(out).load_hidden(TASK)
    for node in hidden.fail_to_pass:
        near = [c for c in hidden.canaries if c.near_for and node in c.fails]
        far = [c for c in hidden.canaries if not c.near_for and node in c.fails]
        assert near and far
        assert {c.near_for for c in near} == {frozenset({TASK})}
        assert {c.places[node] for c in near} == {hidden.base_places[node]}
    assert hidden.own_canaries == hidden.canaries
    made.repository["full_name"] = "acme/other"
    with pytest.raises(UsageError, match="was begun with repository 'acme/wordkit'"):
        run(made, trial=few)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[PullRepository, Result]:
    """Two tasks, of a merged and of a squashed pull request, and one that makes none."""
    made = PullRepository(tmp_path_factory.mktemp("pulls"))
    made.issue(1)
    made.pull(2, {**FIX, "pyproject.toml": BASE["pyproject.toml"] + "# 2\n"}, closes=1)  # type: ignore[operator]  # a text
    made.issue(3, CHUNKS_ISSUE)
    made.pull(4, FIX_SIZES, closes=3, how="squash")
    made.pull(5, {"wordkit/more.py": "A = 1\n", "tests/test_more.py": "def test_a(): pass\n"})
    return made, run(made)


@pytest.mark.slow
def test_pulls_become_tasks_and_the_others_are_listed_with_the_reason(
    imported: tuple[PullRepository, Result],
) -> None:
    made, result = imported
    assert result.tasks == (TASK, "acme__wordkit-4")
    assert result.refusals == {"no_issue": 1}
    refused = [
        json.loads(line) for line in (made.folder / "out/refused.jsonl").read_text().splitlines()
    ]
    assert [(r["number"], r["filter"]) for r in refused] == [(5, "no_issue")]
    row = open_source(made.folder / "out").row(TASK)
    assert row.FAIL_TO_PASS == [
        "tests/test_words.py::test_consonant",
        "tests/test_words.py::test_counted",
    ]
    assert row.PASS_TO_PASS[-1] == "tests/test_words.py::test_vowel"
    assert len(row.PASS_TO_PASS) == 5
    assert row.katgym.license == "MIT"
    assert row.katgym.origin.url == "https://github.com/acme/wordkit/pull/2"
    assert row.katgym.source_roots == ("wordkit",)
    assert row.katgym.validation["mutants_tried"] > row.katgym.validation["mutants_survived"]
    assert all("==" in requirement for requirement in row.katgym.env.requirements)


@pytest.mark.slow
def test_rows_for_rollouts_tell_neither_fix_nor_tests(
    imported: tuple[PullRepository, Result],
) -> None:
    made, _ = imported
    visible = (made.folder / "out/tasks.jsonl").read_text()
    for text in ("aeiou", "test_consonant", "pull/2", '"ies"', "cities\\nword"):
        assert text not in visible
    assert (made.folder / "out/hidden").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.parametrize("task", [TASK, "acme__wordkit-4"])
def test_gold_is_resolved_and_a_patch_that_fixes_nothing_is_not(
    imported: tuple[PullRepository, Result], task: str
) -> None:
    out = imported[0].folder / "out"
    assert graded(out, task, open_source(out).row(task).patch) is Outcome.RESOLVED
    assert graded(out, task, one_line('"""Words."""', '"""Word."""')) is Outcome.FAILED
    assert graded(out, task, "") is Outcome.PATCH_EMPTY


@pytest.mark.slow
def test_imported_tasks_are_sound(imported: tuple[PullRepository, Result]) -> None:
    out = imported[0].folder / "out"

    async def check() -> list[tuple[str, ...]]:
        async with aclosing(backend("local")) as sandboxes:
            ids = [TASK]
            return [r.problems async for r in check_tasks(open_source(out), ids, sandboxes)]

    assert asyncio.run(check()) == [()]


@pytest.mark.slow
def test_the_same_import_again_tries_nothing(
    imported: tuple[PullRepository, Result],
) -> None:
    made, result = imported
    before = (made.folder / "out/tasks.jsonl").read_bytes()
    again = run(made, num_allowed=0)
    assert again == result
    assert (made.folder / "out/tasks.jsonl").read_bytes() == before


@pytest.mark.slow
def test_filters_may_change_between_runs(imported: tuple[PullRepository, Result]) -> None:
    made, result = imported
    stricter = run(made, num_allowed=0, filters=FilterConfig(min_stars=1000))
    assert stricter.refusals == {"repository": 3}
    assert (made.folder / "out/tasks.jsonl").read_bytes() == b""
    assert run(made, num_allowed=0) == result


@pytest.mark.slow
def test_an_import_that_was_stopped_goes_on(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    run(made)
    made.issue(3, CHUNKS_ISSUE)
    made.pull(4, FIX_SIZES, closes=3)
    stopped = run(made, num_allowed=0)
    assert decided(stopped, 2) == TASK
    assert decided(stopped, 4) == "infrastructure: no sandbox today"
    assert stopped.num_faults == 1
    again = run(made)
    assert again.tasks == (TASK, "acme__wordkit-4")
    assert again.num_faults == 0


@pytest.mark.slow
def test_a_killed_import_loses_no_trial(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    config = config_of(made)

    async def killed() -> None:
        sandboxes = backend("local")

        def die(name: str, trial: Trial[Any], is_old: bool) -> None:
            raise KeyboardInterrupt

        try:
            await make_set(PullSource(config, sandboxes), die)
        finally:
            await sandboxes.aclose()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(killed())
    assert not (made.folder / "out/tasks.jsonl").exists()
    assert run(made, num_allowed=0).tasks == (TASK,)
