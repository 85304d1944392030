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
            FilterConfig(since=datetime.date(2025, 4, 1)),
            "age: merged on 2025-03-01, before 2025-04-01",
        ),
        (
            FilterConfig(until=datetime.date(2025, 2, 1)),
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
    ("repository", "filters", "told"),
    [
        ({"stargazers_count": 10}, FilterConfig(min_stars=11), "10 stars, at least 11 are asked"),
        ({"stargazers_count": 10}, FilterConfig(max_stars=9), "10 stars, at most 9 are asked"),
        ({}, FilterConfig(min_stars=1), "the dump does not tell its stars"),
        ({"forks_count": 1}, FilterConfig(min_forks=2), "1 forks, at least 2 are asked"),
        ({"archived": True}, FilterConfig(is_archived_allowed=False), "it is archived"),
    ],
)
def test_a_repository_is_refused_as_a_whole(
    repository: dict[str, Any], filters: FilterConfig, told: str
) -> None:
    with pytest.raises(Refused) as caught:
        check_repository(Repository(full_name="a/b", **repository), filters)
    assert str(caught.value) == f"repository: {told}"


def test_bounds_are_inside() -> None:
    filters = FilterConfig(min_stars=10, max_stars=10)
    check_repository(Repository(full_name="a/b", stargazers_count=10), filters)
