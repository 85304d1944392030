"""Every filter that runs nothing, and what is read off a clone, on a repository git has made."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pull_repository import (
    BASE,
    FIX,
    FIXED_PLURAL,
    ISSUE,
    PLURAL_TESTS,
    SOURCE,
    TESTS,
    Files,
    PullRepository,
)

from katgym.errors import UsageError
from katgym_envs.swe.pull_requests.commit_range import commit_range
from katgym_envs.swe.pull_requests.environment import Recipes, declared, read_recipes
from katgym_envs.swe.pull_requests.git_clone import GitClone, GitError
from katgym_envs.swe.pull_requests.import_config import FilterConfig
from katgym_envs.swe.pull_requests.preparation import Preparation
from katgym_envs.swe.pull_requests.prepared_pull import PreparedPull
from katgym_envs.swe.pull_requests.pull_filters import Refusal, refuse_repository
from katgym_envs.swe.pull_requests.tracker_dump import Repository, read_dump


def prepare(
    made: PullRepository, number: int, filters: FilterConfig | None = None, **more: Any
) -> PreparedPull | Refusal:
    dump = read_dump(made.write_dump())
    filters = filters or FilterConfig()
    preparation = Preparation(GitClone(made.clone), dump, filters, Recipes(), **more)
    return preparation.prepare(number)


def prepared(made: PullRepository, number: int, **more: Any) -> PreparedPull:
    found = prepare(made, number, **more)
    assert isinstance(found, PreparedPull), found
    return found


def refused(made: PullRepository, number: int, **more: Any) -> str:
    found = prepare(made, number, **more)
    assert isinstance(found, Refusal), found
    return f"{found.filter}: {found.reason}"


def one_pull(folder: Path, files: Files = FIX, **more: Any) -> PullRepository:
    made = PullRepository(folder)
    made.issue(1)
    made.pull(2, files, **{"closes": 1, **more})
    return made


@pytest.mark.parametrize("how", ["merge", "squash", "rebase"])
def test_merged_squashed_and_rebased_pulls_have_the_same_two_states(
    tmp_path: Path, how: str
) -> None:
    made = PullRepository(tmp_path)
    base = made.commit({"other.txt": "x\n"}, "before")
    made.issue(1)
    made.pull(2, closes=1, how=how)
    made.commit({"later.txt": "x\n"}, "after")
    found = prepared(made, 2)
    assert found.diff.range.base == base
    assert set(found.diff.before) == set(FIX)
    assert found.states.base_files["tests/test_words.py"] == TESTS.encode()
    assert found.states.hidden_files == {"tests/test_words.py": PLURAL_TESTS.encode()}
    assert found.instance_id == "acme__wordkit-2"


def test_a_merge_commit_does_not_count_what_came_to_main_meanwhile(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.git("checkout", "-q", "-b", "side")
    made.commit(FIX, "fix")
    head = made.git("rev-parse", "HEAD")
    made.git("checkout", "-q", "main")
    base = made.commit({"meanwhile.py": "A = 1\n"}, "meanwhile")
    made.git("merge", "-q", "--no-ff", "-m", "Merge", head)
    made.issue(1)
    made.pulls.append(
        {"number": 2, "body": "closes #1", "merged_at": "2025-03-01T12:00:00Z", "comments": 1,
         "merge_commit_sha": made.git("rev-parse", "HEAD"), "head": {"sha": head}}
    )  # fmt: skip
    found = prepared(made, 2)
    assert found.diff.range.base == base
    assert set(found.diff.after) == set(FIX)
    assert "meanwhile.py" in found.states.workspace


def test_a_rebased_pull_whose_head_is_gone_is_counted_back(tmp_path: Path) -> None:
    made = one_pull(tmp_path, how="rebase", head={"sha": "12" * 20})
    dump = read_dump(made.write_dump())
    found = commit_range(GitClone(made.clone), dump.pulls[2])
    assert found.base == made.pulls[0]["base"]["sha"]


def test_a_pull_that_the_clone_lacks_says_so(tmp_path: Path) -> None:
    made = one_pull(tmp_path, merge_commit_sha="ab" * 20, head={"sha": "cd" * 20})
    with pytest.raises(GitError, match="neither the merge commit nor the head"):
        prepare(made, 2)


def test_documents_are_in_neither_patch(tmp_path: Path) -> None:
    files = {**FIX, "CHANGELOG.md": "plural of city\n", "docs/a.png": b"\0\1", "data.txt": "a\n"}
    found = prepared(one_pull(tmp_path, files), 2)
    assert "CHANGELOG" not in found.patch + found.test_patch
    assert "docs/a.png" not in found.patch
    assert "+++ b/data.txt" in found.patch
    assert "+++ b/wordkit/__init__.py" in found.patch
    assert "+++ b/tests/test_words.py" in found.test_patch
    assert set(found.states.gold) == {"wordkit/__init__.py", "data.txt"}


def test_a_renamed_file_is_deleted_and_added(tmp_path: Path) -> None:
    made = PullRepository(tmp_path, {**BASE, "wordkit/old.py": "A = 1\nB = 2\nC = 3\n"})
    made.issue(1)
    made.pull(
        2, {**FIX, "wordkit/old.py": None, "wordkit/new.py": "A = 1\nB = 2\nC = 3\n"}, closes=1
    )
    found = prepared(made, 2)
    assert found.states.gold["wordkit/old.py"] is None
    new = found.states.gold["wordkit/new.py"]
    assert new is not None
    assert new.content == b"A = 1\nB = 2\nC = 3\n"
    after = found.states.after(found.recipe)
    assert "wordkit/new.py" in after
    assert "wordkit/old.py" not in after


def test_an_executable_bit_is_part_of_the_patch(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1)
    (made.clone / "wordkit/__init__.py").chmod(0o755)
    made.pull(2, closes=1)
    found = prepared(made, 2)
    assert "old mode 100644\nnew mode 100755\n" in found.patch


@pytest.mark.parametrize(
    ("files", "more", "told"),
    [
        (FIX, {"closes": None}, "no_issue: it closes no dumped issue"),
        (FIX, {"closes": 9}, "no_issue: it closes no dumped issue"),
        (FIX, {"body": "`fixes #1` <!-- closes #1 -->"}, "no_issue: "),
        (FIX, {"body": "fixes other/repo#1"}, "no_issue: "),
        (FIX, {"merged_at": None}, "not_merged: it was not merged"),
        (FIX, {"comments": 0}, "activity: 0 comments and reviews, at least 1"),
        (FIX, {"comments": [{"user": {"login": "x[bot]"}}]}, "activity: 0 comments"),
        (FIX, {"user": {"login": "renovate[bot]", "type": "Bot"}}, "author: its author"),
        ({"wordkit/__init__.py": FIXED_PLURAL}, {}, "no_tests: it changes no test module"),
        (
            {"wordkit/__init__.py": FIXED_PLURAL, "tests/conftest.py": "A = 1\n"},
            {},
            "no_tests: it changes no test module",
        ),
        ({"tests/test_words.py": PLURAL_TESTS, "README.md": "x"}, {}, "no_product: "),
        ({**FIX, "a.c": "1\n", "b.c": "1\n"}, {}, "language: 33% of its code is Python"),
        ({**FIX, "wordkit/big.py": "A = 1\n" * 500}, {}, "diff_size: 502 lines of the product"),
        (
            {**FIX, **{f"wordkit/m{i}.py": "A = 1\n" for i in range(9)}},
            {},
            "diff_size: 10 files of the product are changed, at most 8",
        ),
        (
            {**FIX, **{f"tests/data/m{i}": "A\n" for i in range(20)}},
            {},
            "diff_size: 22 files are changed, at most 20",
        ),
        ({**FIX, "wordkit/table.bin": b"\0\1"}, {}, "diff_kind: 'wordkit/table.bin' is binary"),
        ({**FIX, "tests/picture.png": b"\0\1"}, {}, "diff_kind: 'tests/picture.png' is binary"),
    ],
)
def test_a_pull_is_refused_with_the_reason(
    tmp_path: Path, files: Files, more: dict[str, Any], told: str
) -> None:
    assert refused(one_pull(tmp_path, files, **more), 2).startswith(told)


def test_a_link_in_the_patch_is_refused(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1)
    (made.clone / "wordkit/alias.py").symlink_to("__init__.py")
    made.pull(2, closes=1)
    assert refused(made, 2) == "diff_kind: 'wordkit/alias.py' is a link"


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        (FilterConfig(min_activity=3), "activity: 2 comments and reviews, at least 3"),
        (FilterConfig(skipped_labels=("CHORE",)), "label: it is labelled 'chore'"),
        (FilterConfig(min_issue_letters=900), "issue_content: "),
        (FilterConfig(min_issue_words=99), "issue_content: "),
        (FilterConfig(max_lines=1), "diff_size: 2 lines"),
        (
            FilterConfig(since=datetime.datetime(2025, 4, 1, tzinfo=datetime.UTC)),
            "age: merged on 2025-03-01, before 2025-04-01",
        ),
        (
            FilterConfig(until=datetime.datetime(2025, 2, 1, tzinfo=datetime.UTC)),
            "age: merged on 2025-03-01, after 2025-02-01",
        ),
    ],
)
def test_bounds_can_be_set(tmp_path: Path, filters: FilterConfig, told: str) -> None:
    made = one_pull(tmp_path, labels=[{"name": "chore"}])
    assert refused(made, 2, filters=filters).startswith(told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "Broken. See https://example.org/a/very/long/address/that/says/nothing/at/all",
            "issue_co",
        ),
        (
            ISSUE + "\nI would write:\n\n    return word[:-1]  +  'ies'\n"
            '    return word[:-1] + "ies"\n',
            "fix_in_text: the issue holds a line of the fix",
        ),
        (ISSUE + "\n```diff\n- a\n+ b\n```\n", "fix_in_text: "),
    ],
)
def test_an_issue_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, body: str, told: str
) -> None:
    made = PullRepository(tmp_path)
    made.issue(1, body)
    made.pull(2, closes=1)
    assert refused(made, 2).startswith(told)


@pytest.mark.parametrize(
    ("pull", "issue"),
    [
        ({"title": "Resolve #1: plurals"}, {}),
        ({"body": "Closes: https://github.com/Acme/WordKit/issues/1"}, {}),
        ({"commits": [{"sha": "", "commit": {"message": "x\n\nFixes GH-1"}}]}, {}),
        ({"timeline": [{"event": "connected", "source": {"issue": {"number": 1}}}]}, {}),
        ({}, {"timeline": [{"event": "connected", "source": {"issue": {"number": 2}}}]}),
    ],
)
def test_an_issue_is_linked_by_keyword_or_event(
    tmp_path: Path, pull: dict[str, Any], issue: dict[str, Any]
) -> None:
    made = PullRepository(tmp_path)
    made.issue(1, **issue)
    made.pull(2, **pull)
    assert "a wrong plural" in prepared(made, 2).statement


def test_an_issue_closed_by_the_merge_is_linked(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    pull = made.pull(2)
    made.issue(1, timeline=[{"event": "closed", "commit_id": pull["merge_commit_sha"]}])
    assert prepared(made, 2).statement.startswith("Odd result 1\n\n")


def test_hints_are_what_people_said_before_the_pull_without_the_fix(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    day = "2025-02-01T00:00:00Z"
    made.issue(
        1,
        comments=[
            {"body": "Also `pony`.", "created_at": day, "user": {"login": "bo"}},
            {"body": 'Try\n    return word[:-1] + "ies"', "created_at": day},
            {"body": "Stale.", "created_at": day, "user": {"login": "stale[bot]"}},
            {"body": "Thanks!", "created_at": "2025-04-01T00:00:00Z"},
        ],
    )
    made.pull(2, closes=1)
    assert prepared(made, 2).hints == "Also `pony`."


@pytest.mark.parametrize(
    ("repository", "filters", "told"),
    [
        ({"stargazers_count": 10}, FilterConfig(min_stars=11), "10 stars, at least 11 are asked"),
        ({"stargazers_count": 10}, FilterConfig(max_stars=9), "10 stars, at most 9 are asked"),
        ({}, FilterConfig(min_stars=1), "the dump does not tell its stars"),
        ({"forks_count": 1}, FilterConfig(min_forks=2), "1 forks, at least 2 are asked"),
        ({"archived": True}, FilterConfig(is_archived_allowed=False), "it is archived"),
        ({"stargazers_count": 10}, FilterConfig(min_stars=10, max_stars=10), None),
    ],
)
def test_a_repository_is_refused_as_a_whole(
    repository: dict[str, Any], filters: FilterConfig, told: str | None
) -> None:
    found = refuse_repository(Repository(full_name="a/b", **repository), filters)
    assert (found.reason if found else None) == told


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("repository.json", "{", "repository.json"),
        ("repository.json", "{}", "full_name"),
        ("repository.json", '{"full_name": "../x/y"}', "'owner/name'"),
        ("pulls.jsonl", '{"number": 1}\n{"number": "x"}\n', r"line 2: .*\$\.number"),
        ("pulls.jsonl", '{"number": 1}\n{"number": 1}\n', "line 2: number 1 occurs twice"),
        ("pulls.jsonl", '{"number": 1, "merged_at": "soon"}\n', r"line 1: .*\$\.merged_at"),
        ("pulls.jsonl", "[1]\n", "line 1: a row is a JSON object"),
        ("issues.jsonl", "nope\n", "line 1: not JSON"),
        ("issues.jsonl", None, "holds neither issues.jsonl nor issues.json"),
    ],
)
def test_a_broken_dump_is_named_by_file_and_line(
    tmp_path: Path, name: str, text: str | None, told: str
) -> None:
    dump = one_pull(tmp_path).write_dump()
    if text is None:
        (dump / name).unlink()
    else:
        (dump / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        read_dump(dump)


def test_issues_that_are_pull_requests_are_no_issues(tmp_path: Path) -> None:
    made = one_pull(tmp_path)
    made.issue(2, pull_request={"url": "..."})
    assert set(read_dump(made.write_dump()).issues) == {1}


def test_a_folder_that_is_no_clone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no git clone at"):
        GitClone(tmp_path)


def test_reading_a_clone_runs_nothing_that_it_brings_along(tmp_path: Path) -> None:
    made = one_pull(tmp_path, {**FIX, ".gitattributes": "*.py diff=evil filter=evil\n"})
    ran = tmp_path / "ran"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "core.sshCommand",
                 "diff.evil.textconv", "diff.evil.command", "filter.evil.smudge",
                 "filter.evil.clean", "uploadpack.packObjectsHook"):  # fmt: skip
        made.git("config", name, str(script))
    hooks = made.clone / ".git/hooks"
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    assert prepared(made, 2).states.base_files["wordkit/__init__.py"] == SOURCE.encode()
    assert not ran.exists()


def test_generated_tests_stand_in_for_the_pulls_own(tmp_path: Path) -> None:
    made = one_pull(tmp_path, {"wordkit/__init__.py": FIXED_PLURAL})
    found = prepared(made, 2, generated={2: (b"def test_a(): pass\n",)})
    assert found.states.generated == {"tests/test_more_1.py"}
    assert found.states.hidden_files["tests/test_more_1.py"] == b"def test_a(): pass\n"
    assert "tests/test_more_1.py" not in found.states.workspace


def test_requirements_are_read_off_the_settings_without_addresses() -> None:
    files = {
        "pyproject.toml": b"""
[project]
name = "Word-Kit"
dependencies = ["attrs>=23", "evil @ https://x/y.whl", "./here", "word_kit"]
[project.optional-dependencies]
test = ["pytest-cov", "pytest>=7", "hypothesis==6.0 ; python_version > '3'", "word-kit[extra]"]
docs = ["sphinx"]
[dependency-groups]
dev = ["Attrs", "idna"]
""",
        "setup.cfg": b"[options]\ninstall_requires =\n    six\n    # none\n",
    }
    found = declared(files)
    assert found == ["attrs>=23", "hypothesis==6.0 ; python_version > '3'", "idna", "six"]
    recipe = Recipes(is_declared_installed=True, requirements=("idna==3.10",)).of(1, files)
    assert recipe.requirements[0].startswith("pytest==")
    assert "idna==3.10" in recipe.requirements
    assert "idna" not in recipe.requirements
    assert Recipes().of(1, files).requirements == (recipe.requirements[0],)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "holds no recipes"),
        ('{"pulls": {"x": {}}}', "keyed by numbers"),
        ('{"default": {"kind": "conda"}}', "'venv' or 'image'"),
        ('{"default": {"kind": "image"}}', "needs an image"),
        ('{"default": {"python": "3.11"}}', "python"),
    ],
)
def test_a_broken_recipe_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_recipes(path)


def test_a_recipe_of_the_pull_goes_before_the_default(tmp_path: Path) -> None:
    path = tmp_path / "recipes.json"
    path.write_text(
        '{"default": {"requirements": ["a==1"]}, "pulls": {"2": {"requirements": ["b==1"]}}}'
    )
    recipes = replace(read_recipes(path), requirements=("c==1",))
    assert recipes.of(2, {}).requirements == ("b==1",)
    assert recipes.of(3, {}).requirements == ("a==1",)
