"""`katgym swe from-prs`: output, files and exit codes."""

import json
from pathlib import Path

import pytest
from pull_repository import FIXED_PLURAL, PullRepository

from katgym.cli.main import main


def arguments(made: PullRepository, *more: str) -> list[str]:
    made.write_dump()
    fixed = ["--clone", str(made.clone), "--dump", str(made.dump), "--out", str(made.folder / "o")]
    return ["swe", "from-prs", *fixed, *more]


@pytest.fixture(scope="module")
def pulls(tmp_path_factory: pytest.TempPathFactory) -> PullRepository:
    """Two pull requests, of which the second closes no issue."""
    made = PullRepository(tmp_path_factory.mktemp("pulls"))
    made.issue(1)
    made.pull(2, closes=1)
    made.pull(3, {"wordkit/more.py": "A = 1\n"})
    return made


def test_help_shows_an_example_and_every_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swe", "from-prs", "--help"]) == 0
    told = capsys.readouterr().out
    assert "katgym swe from-prs --clone ./attrs --dump ./attrs-dump --out tasks" in told
    for option in ("min_stars", "min_activity", "min_issue_words", "max_lines", "--filters",
                   "--generated-tests", "--recipes", "scope", "--sandbox"):  # fmt: skip
        assert option in told


@pytest.mark.slow
def test_tasks_are_made_shown_and_graded(
    pulls: PullRepository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pulls.told_otherwise(tmp_path)
    assert main(arguments(made)) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == f"1 tasks of 2 pull requests in {str(tmp_path / 'o')!r}"
    assert told.out.splitlines()[1:] == ["       1 in split train", "       1 refused: no_issue"]
    assert "#2 task acme__wordkit-2" in told.err
    assert "#3 no_issue: it closes no dumped issue" in told.err
    assert main(["swe", "list", str(tmp_path / "o"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    row = json.loads((tmp_path / "o/hidden/rows.jsonl").read_text())
    (tmp_path / "gold.diff").write_text(row["patch"])
    patch = ["--patch", str(tmp_path / "gold.diff")]
    assert main(["swe", "grade", "--task", str(tmp_path / "o"), *patch]) == 0


def test_json_counts_what_was_refused(
    pulls: PullRepository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pulls.told_otherwise(tmp_path)
    assert main(arguments(made, "--json", "--pull", "3")) == 1
    told = json.loads(capsys.readouterr().out)
    out = str(tmp_path / "o")
    refused = {"no_issue": 1}
    assert told == {"out": out, "tasks": [], "splits": {}, "refused": refused, "left_out": {}}


def test_filters_are_read_from_a_file(
    pulls: PullRepository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pulls.told_otherwise(tmp_path)
    made.repository["archived"] = True
    path = tmp_path / "filters.toml"
    for line, told in (
        ("min_stars = 901", "repository: 900 stars, at least 901"),
        ("is_archived_allowed = false", "repository: it is archived"),
        ("min_activity = 9", "activity: 2 comments"),
        ("since = 2025-03-02", "age: merged on 2025-03-01"),
        ("until = 2025-02-28", "age: merged on 2025-03-01"),
        ("max_lines = 1", "diff_size: 2 lines"),
        ("min_issue_words = 99", "issue_content: "),
    ):
        path.write_text(line)
        assert main(arguments(made, "--pull", "2", "--filters", str(path))) == 1
        assert f"#2 {told}" in capsys.readouterr().err


MISTAKES = [
    (["--pull", "9"], "pull request 9 is not in"),
    (["--set", "min_killed_share=2"], "min_killed_share is a share from 0 to 1, got 2"),
    (["--workers", "0"], "num_sandboxes is at least 1, got 0"),
    (["--set", "timeout_s=0"], "timeout_s is above 0, got 0"),
    (["--set", "timeout=0"], "Did you mean 'timeout_s'?"),
    (["--filters", "nowhere.toml"], "cannot read 'nowhere.toml'"),
    (["--sandbox", "locl"], "Did you mean 'local'?"),
    (["--generated-tests", "nowhere"], "no such folder of generated tests: 'nowhere'"),
    (["--recipes", "nowhere.json"], "cannot read 'nowhere.json'"),
    (["--clone", "nowhere"], "no git clone at"),
    (["--dump", "nowhere"], "no such folder with a dump: 'nowhere'"),
]
FILTERS = {
    "max_lines = -1": "filters.toml: max_lines is at least 0, got -1",
    "min_python_share = 2.0": "filters.toml: min_python_share is a share from 0 to 1, got 2",
    "since = 'soon'": "filters.toml since: ",
    "max_line = 1": "unknown key of filters.toml 'max_line'. Did you mean 'max_lines'?",
}


def test_mistakes_exit_with_2_and_say_what_is_allowed(
    pulls: PullRepository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    subtests: pytest.Subtests,
) -> None:
    made = pulls.told_otherwise(tmp_path)
    mistakes = [*MISTAKES]
    for number, (line, told) in enumerate(FILTERS.items()):
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / "filters.toml"
        path.write_text(line)
        mistakes.append((["--filters", str(path)], told))
    for more, told in mistakes:
        with subtests.test(told):
            assert main(arguments(made, *more)) == 2
            assert told in " ".join(capsys.readouterr().err.split())
            assert not (tmp_path / "o/tasks.jsonl").exists()
    given = arguments(made)
    (tmp_path / "dump/pulls.jsonl").write_text('{"number": 1}\n{"title": "no number"}\n')
    assert main(given) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "pulls.jsonl' line 2: Object missing required field `number`" in told


@pytest.mark.slow
def test_files_that_a_build_makes_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = PullRepository(tmp_path)
    made.commit({"wordkit/extra.py": "from wordkit.made import A\n"}, "extra")
    made.issue(1)
    tests = "from wordkit import extra, plural\n\n\ndef test_a():\n    assert extra.A == 1\n\n\n"
    tests += 'def test_city():\n    assert plural("city") == "cities"\n'
    made.pull(2, {"wordkit/__init__.py": FIXED_PLURAL, "tests/test_more.py": tests}, closes=1)
    assert main(arguments(made)) == 1
    assert "ModuleNotFoundError: No module named 'wordkit.made'" in capsys.readouterr().err
    (tmp_path / "recipes.json").write_text('{"files": {"wordkit/made.py": "A = 1\\n"}}')
    assert main(arguments(made, "--recipes", str(tmp_path / "recipes.json"))) == 0
    assert "#2 task acme__wordkit-2" in capsys.readouterr().err
    (tmp_path / "recipes.json").write_text('{"files": {"../made.py": "A = 1\\n"}}')
    assert main(arguments(made, "--recipes", str(tmp_path / "recipes.json"))) == 2
