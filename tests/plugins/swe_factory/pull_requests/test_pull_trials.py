"""What becomes of one pull request: which of its tests count, and why there is no task."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest
from nightly import some_of
from pull_play import TASK, Result, config_of, decided, graded, one_line, run, with_tests
from pull_repository import (
    BASE,
    FIX,
    FIXED_PLURAL,
    PLURAL_TESTS,
    SOURCE,
    TESTS,
    PullRepository,
    one_pull,
)

from katgym.errors import InfrastructureError, UsageError
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_swe_factory.making.set_maker import make_set
from katgym_plugin_swe_factory.pull_requests.environment import Recipes
from katgym_plugin_swe_factory.pull_requests.generated_tests import read_generated_tests
from katgym_plugin_swe_factory.pull_requests.import_config import ModuleScope, TrialConfig
from katgym_plugin_swe_factory.pull_requests.pull_source import PullSource


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_trial_refuses_with_the_reason(tmp_path: Path, subtests: pytest.Subtests) -> None:
    refusals = [
        (
            "no_fail_to_pass: no test passes with the fix only",
            TESTS + "\n\ndef test_a():\n    assert plural('day')\n",
        ),
        ("no_fail_to_pass: ", TESTS.replace("cats", "cat")),
        ("gold_broken: ", "import nowhere\n"),
        ("gold_broken: ", "import os\nos._exit(3)\n"),
    ]
    for number, (told, tests) in enumerate(some_of(refusals, 2)):
        with subtests.test(told, tests=tests):
            made = one_pull(tmp_path / str(number), {**FIX, "tests/test_words.py": tests})
            assert decided(run(made), 2).startswith(told)


@pytest.mark.slow  # there is time for a run to start
def test_tests_that_wait_for_long_are_refused(tmp_path: Path) -> None:
    text = "\n\ndef test_wait():\n    import time\n\n    time.sleep(3600)\n"
    result = run(one_pull(tmp_path, with_tests(text)), trial=TrialConfig(timeout_s=8.0))
    assert decided(result, 2).startswith("timeout: its tests take too long with gold")


@pytest.mark.slow
def test_tests_that_a_clock_may_decide_are_left_out(tmp_path: Path) -> None:
    text = "\n\ndef test_clock():\n    import time\n\n    assert time.time() > 0\n"
    made = one_pull(tmp_path, with_tests(text))
    assert run(made).tasks == (TASK,)
    row = open_source(made.folder / "out").row(TASK)
    assert row.katgym.validation["flaky"] == ["tests/test_words.py::test_clock"]
    assert not any("test_clock" in node for node in (*row.FAIL_TO_PASS, *row.PASS_TO_PASS))


@pytest.mark.slow
def test_words_of_the_issue_may_be_in_names_of_tests(tmp_path: Path) -> None:
    tests = PLURAL_TESTS.replace("test_consonant", "test_citys")
    tests = tests.replace("def test_counted", "def citys")
    assert run(one_pull(tmp_path, {**FIX, "tests/test_words.py": tests})).tasks == (TASK,)


@pytest.mark.slow
def test_an_issue_that_names_a_hidden_test_is_refused(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1, "The test named test_consonant fails on every machine that I have tried it on.")
    made.pull(2, closes=1)
    assert decided(run(made), 2) == "test_in_text: the issue names a hidden test"


@pytest.mark.slow
def test_tests_that_notice_few_wrong_fixes_are_refused(tmp_path: Path) -> None:
    weak = TESTS + '\n\ndef test_city():\n    assert plural("city")[-3:] == "ies"\n'
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
    run(made, trial=TrialConfig(scope=ModuleScope.CHANGED))
    row = open_source(made.folder / "out").row(TASK)
    assert "tests/test_other.py::test_other" not in row.PASS_TO_PASS
    assert len(row.PASS_TO_PASS) == 5


@pytest.mark.slow
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


@pytest.mark.slow
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
        "environment: pytest or a requirement installs another copy of 'pluggy', which would be"
        " tested in its place"
    )


@pytest.mark.slow
def test_faults_in_a_row_end_the_import(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    for number in (4, 6):
        made.issue(number + 1)
        lines = "".join(f"# {n}\n" for n in range(number))
        source, tests = FIXED_PLURAL + lines, PLURAL_TESTS + lines
        made.pull(
            number, {"wordkit/__init__.py": source, "tests/test_words.py": tests}, closes=number + 1
        )
    with pytest.raises(InfrastructureError, match="no sandbox today"):
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

    async def go() -> Result:
        async with aclosing(backend("docker")) as sandboxes:
            return await make_set(PullSource(config, sandboxes))

    assert asyncio.run(go()).tasks == (TASK,)
    row = open_source(made.folder / "out").row(TASK)
    assert (row.image, row.katgym.env.kind) == (image, "image")
