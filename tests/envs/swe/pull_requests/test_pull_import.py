"""Whole imports: clone and dump in, tasks out, on repositories that git has made."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pull_repository import (
    BASE,
    FIX,
    FIXED_PLURAL,
    PLURAL_TESTS,
    SOURCE,
    TESTS,
    Files,
    PullRepository,
)

from katgym.errors import InfrastructureError, UsageError
from katgym.sandbox import Enforcement, Sandbox, SandboxBackend, SandboxError, SandboxSpec
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.making.task_check import check_tasks
from katgym_envs.swe.pull_requests.environment import Recipes
from katgym_envs.swe.pull_requests.generated_tests import read_generated_tests
from katgym_envs.swe.pull_requests.import_config import FilterConfig, Scope, TrialConfig
from katgym_envs.swe.pull_requests.pull_importer import (
    Decision,
    ImportConfig,
    ImportResult,
    import_pulls,
)
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.sources.open_source import open_source

TASK = "acme__wordkit-2"
CHUNKS_ISSUE = """\
Asking for lists of a negative length quietly returns no list at all, so what was handed in is lost
without anybody noticing. It ought to complain instead.
"""
CHECK = """\
    if size < 1:
        raise ValueError(f"a size is at least 1, got {size}")
"""


class CountingBackend(SandboxBackend):
    """The local backend, which counts its sandboxes and breaks after so many."""

    name = "counting"

    def __init__(self, inner: SandboxBackend, num_allowed: int) -> None:
        self.inner = inner
        self.num_allowed = num_allowed
        self.num_created = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.num_created += 1
        if self.num_created > self.num_allowed:
            raise SandboxError("no sandbox any more")
        return await self.inner.create(spec)

    async def enforcement(self) -> Enforcement:
        return await self.inner.enforcement()

    async def gc(self) -> int:
        return 0

    async def aclose(self) -> None:
        await self.inner.aclose()


def run(made: PullRepository, *, num_allowed: int = 10**6, **more: Any) -> ImportResult:
    async def go() -> ImportResult:
        sandboxes = CountingBackend(backend("local"), num_allowed)
        try:
            return await import_pulls(config_of(made, **more), backend=sandboxes)
        finally:
            await sandboxes.aclose()

    return asyncio.run(go())


def config_of(made: PullRepository, **more: Any) -> ImportConfig:
    made.write_dump()
    config = ImportConfig(clone=made.clone, dump=made.dump, out=made.folder / "out")
    return replace(config, **more)


def graded(out: Path, instance_id: str, patch: str) -> Outcome:
    async def go() -> Outcome:
        sandboxes = backend("local")
        try:
            task = GradedTask.load(open_source(out), instance_id)
            return (await grade(task, patch, backend=sandboxes)).outcome
        finally:
            await sandboxes.aclose()

    return asyncio.run(go())


def decided(result: ImportResult, number: int) -> str:
    """Return the task's id, or what refused the pull request."""
    found = next(d for d in result.decisions if d.number == number)
    return found.instance_id or f"{found.refusal.filter}: {found.refusal.reason}"  # type: ignore[union-attr]  # one of both is there


def one_pull(
    folder: Path, files: Files = FIX, *, base: Files = BASE, **more: Any
) -> PullRepository:
    made = PullRepository(folder, base)
    made.issue(1)
    made.pull(2, files, **{"closes": 1, **more})
    return made


def with_tests(text: str) -> Files:
    return {**FIX, "tests/test_words.py": PLURAL_TESTS + text}


def one_line(before: str, after: str) -> str:
    """Return a patch of the product's first line."""
    return (
        f"--- a/wordkit/__init__.py\n+++ b/wordkit/__init__.py\n@@ -1 +1 @@\n-{before}\n+{after}\n"
    )


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[PullRepository, ImportResult]:
    """Two tasks, of a merged and of a squashed pull request, and one that makes none."""
    made = PullRepository(tmp_path_factory.mktemp("pulls"))
    made.issue(1)
    made.pull(2, {**FIX, "pyproject.toml": BASE["pyproject.toml"] + "# 2\n"}, closes=1)  # type: ignore[operator]  # a text
    made.issue(3, CHUNKS_ISSUE)
    fixed = FIXED_PLURAL.replace('most `size`."""\n', 'most `size`."""\n' + CHECK)
    test = """

def test_size():
    with pytest.raises(ValueError, match="at least 1, got -1"):
        chunks([1], -1)
"""
    made.pull(
        4,
        {
            "wordkit/__init__.py": fixed,
            "tests/test_words.py": "import pytest\n\n" + PLURAL_TESTS + test,
        },
        closes=3,
        how="squash",
    )
    made.pull(5, {"wordkit/more.py": "A = 1\n", "tests/test_more.py": "def test_a(): pass\n"})
    return made, run(made)


def test_pulls_become_tasks_and_the_others_are_listed_with_the_reason(
    imported: tuple[PullRepository, ImportResult],
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


def test_rows_for_rollouts_tell_neither_fix_nor_tests(
    imported: tuple[PullRepository, ImportResult],
) -> None:
    made, _ = imported
    visible = (made.folder / "out/tasks.jsonl").read_text()
    for text in ("aeiou", "test_consonant", "pull/2", '"ies"', "cities\\nword"):
        assert text not in visible
    assert (made.folder / "out/hidden").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("task", [TASK, "acme__wordkit-4"])
def test_gold_is_resolved_and_a_patch_that_fixes_nothing_is_not(
    imported: tuple[PullRepository, ImportResult], task: str
) -> None:
    out = imported[0].folder / "out"
    assert graded(out, task, open_source(out).row(task).patch) is Outcome.RESOLVED
    assert graded(out, task, one_line('"""Words."""', '"""Word."""')) is Outcome.FAILED
    assert graded(out, task, "") is Outcome.PATCH_EMPTY


@pytest.mark.slow
def test_imported_tasks_are_sound(imported: tuple[PullRepository, ImportResult]) -> None:
    out = imported[0].folder / "out"

    async def check() -> list[tuple[str, ...]]:
        sandboxes = backend("local")
        try:
            ids = [TASK]
            return [r.problems async for r in check_tasks(open_source(out), ids, sandboxes)]
        finally:
            await sandboxes.aclose()

    assert asyncio.run(check()) == [()]


def test_the_same_import_again_tries_nothing(
    imported: tuple[PullRepository, ImportResult],
) -> None:
    made, result = imported
    before = (made.folder / "out/tasks.jsonl").read_bytes()
    again = run(made, num_allowed=0)
    assert again == result
    assert (made.folder / "out/tasks.jsonl").read_bytes() == before


def test_filters_may_change_between_runs(imported: tuple[PullRepository, ImportResult]) -> None:
    made, result = imported
    stricter = run(made, num_allowed=0, filters=FilterConfig(min_stars=1000))
    assert stricter.refusals == {"repository": 3}
    assert (made.folder / "out/tasks.jsonl").read_bytes() == b""
    assert run(made, num_allowed=0) == result


def test_an_import_that_was_stopped_goes_on(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    run(made)
    made.issue(3, CHUNKS_ISSUE)
    fixed = FIXED_PLURAL.replace('most `size`."""\n', 'most `size`."""\n' + CHECK)
    test = """

def test_size():
    with pytest.raises(ValueError, match="at least 1, got -1"):
        chunks([1], -1)
"""
    tests = "import pytest\n\n" + PLURAL_TESTS + test
    made.pull(4, {"wordkit/__init__.py": fixed, "tests/test_words.py": tests}, closes=3)
    stopped = run(made, num_allowed=0)
    assert decided(stopped, 2) == TASK
    assert decided(stopped, 4) == "infrastructure: no sandbox any more"
    assert stopped.num_faults == 1
    again = run(made)
    assert again.tasks == (TASK, "acme__wordkit-4")
    assert again.num_faults == 0


def test_a_killed_import_loses_no_trial(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    config = config_of(made)

    async def killed() -> None:
        sandboxes = backend("local")

        def die(decision: Decision) -> None:
            raise KeyboardInterrupt

        try:
            await import_pulls(config, backend=sandboxes, observe=die)
        finally:
            await sandboxes.aclose()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(killed())
    assert not (made.folder / "out/tasks.jsonl").exists()
    assert run(made, num_allowed=0).tasks == (TASK,)


def test_a_folder_of_another_repository_is_refused(
    imported: tuple[PullRepository, ImportResult], tmp_path: Path
) -> None:
    made = one_pull(tmp_path)
    made.repository["full_name"] = "acme/other"
    with pytest.raises(UsageError, match="was begun with repository 'acme/wordkit'"):
        run(made, out=imported[0].folder / "out")


def test_tests_that_do_not_import_without_the_fix_are_tests_to_fix(tmp_path: Path) -> None:
    source = SOURCE + '\n\ndef loud(word):\n    """Shout."""\n    return word.upper() + "!"\n'
    tests = 'from wordkit import loud\n\n\ndef test_loud():\n    assert loud("a") == "A!"\n'
    made = one_pull(tmp_path, {"wordkit/__init__.py": source, "tests/test_loud.py": tests})
    assert run(made).tasks == (TASK,)
    out = made.folder / "out"
    row = open_source(out).row(TASK)
    assert row.FAIL_TO_PASS == ["tests/test_loud.py::test_loud"]
    assert len(row.PASS_TO_PASS) == 4
    assert graded(out, TASK, one_line('"""Words."""', '"""Word."""')) is Outcome.FAILED


def test_flaky_tests_are_left_out_and_named(tmp_path: Path) -> None:
    text = """

SEEN = []


def test_first():
    SEEN.append(1)


def test_second():
    SEEN.append(2)


def test_by_order():
    assert SEEN == [1, 2]


def test_fix_by_order():
    assert SEEN == [1, 2] and plural("city") == "cities"
"""
    made = one_pull(tmp_path, with_tests(text))
    assert run(made).tasks == (TASK,)
    row = open_source(made.folder / "out").row(TASK)
    assert row.katgym.validation["flaky"] == [
        "tests/test_words.py::test_by_order",
        "tests/test_words.py::test_fix_by_order",
    ]
    assert "tests/test_words.py::test_first" in row.PASS_TO_PASS
    assert len(row.FAIL_TO_PASS) == 2
    assert len(row.PASS_TO_PASS) == 7


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {**FIX, "tests/test_words.py": TESTS + "\n\ndef test_a():\n    assert plural('day')\n"},
            "no_fail_to_pass: no test passes with the fix only",
        ),
        (
            {**FIX, "tests/test_words.py": TESTS.replace("cats", "cat")},
            "no_fail_to_pass: ",
        ),
        ({**FIX, "tests/test_words.py": "import nowhere\n"}, "gold_broken: "),
        ({**FIX, "tests/test_words.py": "import os\nos._exit(3)\n"}, "gold_broken: "),
        (
            with_tests("\n\ndef test_wait():\n    import time\n\n    time.sleep(60)\n"),
            "timeout: its tests take too long with gold",
        ),
        (
            {**FIX, "tests/test_words.py": PLURAL_TESTS.replace("test_consonant", "test_citys")
             .replace("def test_counted", "def citys")},
            None,
        ),
    ],
)  # fmt: skip
def test_a_trial_refuses_with_the_reason(tmp_path: Path, files: Files, told: str | None) -> None:
    made = one_pull(tmp_path, files)
    result = run(made, trial=TrialConfig(timeout_s=3.0))
    if told is None:
        assert result.tasks == (TASK,)
    else:
        assert decided(result, 2).startswith(told)


def test_an_issue_that_names_a_hidden_test_is_refused(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1, "The test named test_consonant fails on every machine that I have tried it on.")
    made.pull(2, closes=1)
    assert decided(run(made), 2) == "test_in_text: the issue names a hidden test"


@pytest.mark.slow
def test_tests_that_notice_few_wrong_fixes_are_refused(tmp_path: Path) -> None:
    weak = TESTS + '\n\ndef test_city():\n    assert plural("city").endswith("ies")\n'
    made = one_pull(tmp_path, {**FIX, "tests/test_words.py": weak})
    told = decided(run(made, trial=TrialConfig(min_killed_share=0.9)), 2)
    assert told.startswith("weak_tests: its tests notice ")
    assert run(made, trial=TrialConfig(max_mutants=0)).tasks == (TASK,)


@pytest.mark.slow
def test_tests_elsewhere_are_kept_or_not_by_scope(tmp_path: Path) -> None:
    base = {**BASE, "tests/test_other.py": "def test_other():\n    assert True\n",
            "tests/test_broken.py": "import nowhere\n"}  # fmt: skip
    made = one_pull(tmp_path, base=base)
    assert run(made).tasks == (TASK,)
    row = open_source(made.folder / "out").row(TASK)
    assert "tests/test_other.py::test_other" in row.PASS_TO_PASS
    run(made, trial=TrialConfig(scope=Scope.CHANGED))
    row = open_source(made.folder / "out").row(TASK)
    assert "tests/test_other.py::test_other" not in row.PASS_TO_PASS
    assert len(row.PASS_TO_PASS) == 5


def test_generated_tests_count_only_if_gold_passes_and_base_and_a_wrong_fix_fail(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "generated"
    folder.mkdir()
    (folder / "2.py").write_text("""\
import wordkit
from wordkit import plural


def test_good():
    assert plural("city") == "cities"


def test_fails_with_gold():
    assert plural("city") == "citiez"


def test_passes_before():
    assert plural("cat") == "cats"


def test_notices_no_wrong_fix():
    with open(wordkit.__file__) as file:
        assert "# By Ann" in file.read()
""")
    source = FIXED_PLURAL + "# By Ann\n"
    made = one_pull(tmp_path / "repository", {"wordkit/__init__.py": source})
    generated = read_generated_tests(folder)
    assert run(made).refusals == {"no_tests": 1}
    result = run(made, generated=generated, trial=TrialConfig(max_mutants=8))
    assert result.tasks == (TASK,), result
    row = open_source(made.folder / "out").row(TASK)
    assert row.FAIL_TO_PASS == ["tests/test_more_1.py::test_good"]
    refused = row.katgym.validation["generated_refused"]
    assert refused["tests/test_more_1.py::test_fails_with_gold"].startswith("does not pass with")
    assert refused["tests/test_more_1.py::test_passes_before"] == "passes without the fix"
    told = refused["tests/test_more_1.py::test_notices_no_wrong_fix"]
    assert told == "passes with every wrong variant of the fix"
    out = made.folder / "out"
    assert graded(out, TASK, row.patch) is Outcome.RESOLVED


def test_generated_tests_that_notice_no_wrong_fix_make_no_task(tmp_path: Path) -> None:
    module = b"""\
import wordkit


def test_file():
    with open(wordkit.__file__) as file:
        assert "# By Ann" in file.read()
"""
    made = one_pull(tmp_path, {"wordkit/__init__.py": FIXED_PLURAL + "# By Ann\n"})
    told = decided(run(made, generated={2: (module,)}), 2)
    assert told == (
        "no_fail_to_pass: no generated test counts: tests/test_more_1.py::test_file passes with"
        " every wrong variant of the fix"
    )


def test_generated_tests_are_named_by_pull_request(tmp_path: Path) -> None:
    (tmp_path / "generated" / "2").mkdir(parents=True)
    (tmp_path / "generated/2/a.py").write_text("A = 1\n")
    (tmp_path / "generated/2/b.py").write_text("B = 1\n")
    assert read_generated_tests(tmp_path / "generated") == {2: (b"A = 1\n", b"B = 1\n")}
    (tmp_path / "generated/other.py").write_text("")
    with pytest.raises(UsageError, match=r"named by pull request, '12\.py'"):
        read_generated_tests(tmp_path / "generated")
    with pytest.raises(UsageError, match="pull request 9 is not in"):
        run(one_pull(tmp_path / "r"), generated={9: (b"",)})


def test_requirements_that_cannot_be_met_refuse_the_pull(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    recipe = EnvironmentRecipe(requirements=("--upgrade",))
    told = decided(run(made, recipes=Recipes(by_pull={2: recipe})), 2)
    assert told.startswith("environment: a requirement is like")


def test_requirements_that_install_the_product_refuse_the_pull(tmp_path: Path) -> None:
    base = {**BASE, "pluggy/__init__.py": SOURCE}
    made = one_pull(tmp_path, base=base)
    assert decided(run(made), 2) == (
        "environment: its requirements install another copy of 'pluggy'"
    )


def test_faults_in_a_row_end_the_import(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    for number in (4, 6):
        made.issue(number + 1)
        lines = "".join(f"# {n}\n" for n in range(number))
        source, tests = FIXED_PLURAL + lines, PLURAL_TESTS + lines
        made.pull(
            number, {"wordkit/__init__.py": source, "tests/test_words.py": tests}, closes=number + 1
        )
    with pytest.raises(InfrastructureError, match="no sandbox any more"):
        run(made, num_allowed=0)
    assert run(made).tasks[0] == TASK


@pytest.mark.docker
def test_a_recipe_may_name_an_image(tmp_path: Path) -> None:
    image = os.environ.get("KATGYM_DOCKER_IMAGE")
    if not image:
        pytest.skip("KATGYM_DOCKER_IMAGE names no image with Python and pytest")
    made = one_pull(tmp_path)
    recipe = EnvironmentRecipe(kind="image", image=image)
    config = config_of(made, recipes=Recipes(default=recipe))

    async def go() -> ImportResult:
        sandboxes = backend("docker")
        try:
            return await import_pulls(config, backend=sandboxes)
        finally:
            await sandboxes.aclose()

    assert asyncio.run(go()).tasks == (TASK,)
    row = open_source(made.folder / "out").row(TASK)
    assert (row.image, row.katgym.env.kind) == (image, "image")
