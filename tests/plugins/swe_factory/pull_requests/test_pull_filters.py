"""Every filter that runs nothing: which pull requests are refused, and the reason told."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from pull_preparation import refused
from pull_repository import FIX, FIXED_PLURAL, ISSUE, PLURAL_TESTS, Files, PullRepository, one_pull

from katgym_plugin_swe_factory.history.tracker_dump import Repository
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig
from katgym_plugin_swe_factory.pull_requests.pull_filters import check_repository

TOLD: list[tuple[str, dict[str, Any]]] = [
    ("no_issue: it closes no dumped issue", {"body": "Something better"}),
    ("no_issue: it closes no dumped issue", {"body": "Fixes #9"}),
    ("no_issue: ", {"body": "`fixes #1` <!-- closes #1 -->"}),
    ("no_issue: ", {"body": "fixes other/repo#1"}),
    ("not_merged: it was not merged", {"merged_at": None}),
    ("activity: 0 comments and reviews, at least 1", {"comments": 0}),
    ("activity: 0 comments", {"comments": [{"user": {"login": "x[bot]"}}]}),
    ("author: its author", {"user": {"login": "renovate[bot]", "type": "Bot"}}),
]
CHANGED: list[tuple[str, Files]] = [
    ("no_tests: it changes no test module", {"wordkit/__init__.py": FIXED_PLURAL}),
    (
        "no_tests: it changes no test module",
        {"wordkit/__init__.py": FIXED_PLURAL, "tests/conftest.py": "A = 1\n"},
    ),
    ("no_product: ", {"tests/test_words.py": PLURAL_TESTS, "README.md": "x"}),
    ("language: 33% of its code is Python", {**FIX, "a.c": "1\n", "b.c": "1\n"}),
    ("diff_size: 502 lines of the product", {**FIX, "wordkit/big.py": "A = 1\n" * 500}),
    (
        "diff_size: 10 files of the product are changed, at most 8",
        {**FIX, **{f"wordkit/m{i}.py": "A = 1\n" for i in range(9)}},
    ),
    (
        "diff_size: 22 files are changed, at most 20",
        {**FIX, **{f"tests/data/m{i}": "A\n" for i in range(20)}},
    ),
    ("diff_kind: 'wordkit/table.bin' is binary", {**FIX, "wordkit/table.bin": b"\0\1"}),
    ("diff_kind: 'tests/picture.png' is binary", {**FIX, "tests/picture.png": b"\0\1"}),
]
BOUNDS = [
    ("activity: 2 comments and reviews, at least 3", FilterConfig(min_activity=3)),
    ("label: it is labelled 'chore'", FilterConfig(skipped_labels=("CHORE",))),
    ("issue_content: ", FilterConfig(min_issue_letters=900)),
    ("issue_content: ", FilterConfig(min_issue_words=99)),
    ("diff_size: 2 lines", FilterConfig(max_lines=1)),
    (
        "age: merged on 2025-03-01, before 2025-04-01",
        FilterConfig(since=datetime.date(2025, 4, 1)),
    ),
    ("age: merged on 2025-03-01, after 2025-02-01", FilterConfig(until=datetime.date(2025, 2, 1))),
]
ISSUES = [
    ("issue_co", "Broken. See https://example.org/a/very/long/address/that/says/nothing/at/all"),
    (
        "fix_in_text: the issue holds a line of the fix",
        ISSUE + "\nI would write:\n\n    return word[:-1]  +  'ies'\n"
        '    return word[:-1] + "ies"\n',
    ),
    ("fix_in_text: ", ISSUE + "\n```diff\n- a\n+ b\n```\n"),
]


def test_what_the_tracker_tells_of_a_pull_refuses_it(
    sound_pull: PullRepository, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, (told, more) in enumerate(TOLD):
        with subtests.test(told, **more):
            other = sound_pull.told_otherwise(tmp_path / str(number), **more)
            assert refused(other, 2).startswith(told)


def test_what_a_pull_changes_refuses_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (told, files) in enumerate(CHANGED):
        with subtests.test(told):
            assert refused(one_pull(tmp_path / str(number), files), 2).startswith(told)


def test_bounds_can_be_set(
    sound_pull: PullRepository, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    made = sound_pull.told_otherwise(tmp_path)
    for told, filters in BOUNDS:
        with subtests.test(told):
            assert refused(made, 2, filters=filters).startswith(told)


def test_an_issue_that_says_too_little_or_too_much_is_refused(
    sound_pull: PullRepository, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    made = sound_pull.told_otherwise(tmp_path)
    for told, body in ISSUES:
        with subtests.test(told, body=body):
            made.issues = []
            made.issue(1, body)
            assert refused(made, 2).startswith(told)


def test_a_link_in_the_patch_is_refused(tmp_path: Path) -> None:
    made = PullRepository(tmp_path)
    made.issue(1)
    (made.clone / "wordkit/alias.py").symlink_to("__init__.py")
    made.pull(2, closes=1)
    assert refused(made, 2) == "diff_kind: 'wordkit/alias.py' is a link"


REPOSITORIES: list[tuple[str, dict[str, Any], FilterConfig]] = [
    ("10 stars, at least 11 are asked", {"stargazers_count": 10}, FilterConfig(min_stars=11)),
    ("10 stars, at most 9 are asked", {"stargazers_count": 10}, FilterConfig(max_stars=9)),
    ("the dump does not tell its stars", {}, FilterConfig(min_stars=1)),
    ("1 forks, at least 2 are asked", {"forks_count": 1}, FilterConfig(min_forks=2)),
    ("it is archived", {"archived": True}, FilterConfig(is_archived_allowed=False)),
]


def test_a_repository_is_refused_as_a_whole(subtests: pytest.Subtests) -> None:
    for told, repository, filters in REPOSITORIES:
        with subtests.test(told):
            with pytest.raises(Refused) as caught:
                check_repository(Repository(full_name="a/b", **repository), filters)
            assert str(caught.value) == f"repository: {told}"
    inside = FilterConfig(min_stars=10, max_stars=10)
    check_repository(Repository(full_name="a/b", stargazers_count=10), inside)
