"""The filters a pull request goes through before anything of it is run, in this order.

Each raises `Refused`. Not here: bounds (`import_config.py`), what running its tests tells
(`pull_trial.py`).
"""

from __future__ import annotations

import datetime

from katgym_plugin_swe_factory.history.changed_paths import is_test_module
from katgym_plugin_swe_factory.history.issue_text import (
    leaks,
    num_letters,
    num_words_of_prose,
)
from katgym_plugin_swe_factory.history.pull_diff import PullDiff
from katgym_plugin_swe_factory.history.tracker_dump import (
    Issue,
    PullRequest,
    Remarks,
    Repository,
)
from katgym_plugin_swe_factory.making.trial import Refused
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig
from katgym_plugin_swe_factory.statements.statement import is_leaking


def check_repository(repository: Repository, config: FilterConfig) -> None:
    """Refuse all pull requests of a repository."""
    bounds = (
        ("stars", repository.stargazers_count, config.min_stars, config.max_stars),
        ("forks", repository.forks_count, config.min_forks, None),
    )
    for name, value, low, high in bounds:
        if value is None and (low is not None or high is not None):
            raise Refused("repository", f"the dump does not tell its {name}")
        if value is not None and low is not None and value < low:
            raise Refused("repository", f"{value} {name}, at least {low} are asked")
        if value is not None and high is not None and value > high:
            raise Refused("repository", f"{value} {name}, at most {high} are asked")
    if repository.archived and not config.is_archived_allowed:
        raise Refused("repository", "it is archived")


def check_pull(pull: PullRequest, issues: tuple[Issue, ...], config: FilterConfig) -> None:
    """Refuse a pull request by what the dump says of it."""
    skipped = {label.lower() for label in config.skipped_labels}
    label = next((label.name for label in pull.labels if label.name.lower() in skipped), None)
    remarks = sum(_count(r) for r in (pull.comments, pull.review_comments, pull.reviews))
    letters, words = num_letters(issues), num_words_of_prose(issues)
    if pull.merged_at is None:
        raise Refused("not_merged", "it was not merged")
    merged = pull.merged_at.astimezone(datetime.UTC).date()
    if pull.user is not None and pull.user.is_bot:
        raise Refused("author", f"its author {pull.user.login!r} is a bot")
    if label:
        raise Refused("label", f"it is labelled {label!r}")
    if remarks < config.min_activity:
        raise Refused(
            "activity", f"{remarks} comments and reviews, at least {config.min_activity} are asked"
        )
    if config.since is not None and merged < config.since:
        raise Refused("age", f"merged on {merged:%Y-%m-%d}, before {config.since:%Y-%m-%d}")
    if config.until is not None and merged > config.until:
        raise Refused("age", f"merged on {merged:%Y-%m-%d}, after {config.until:%Y-%m-%d}")
    if not issues:
        raise Refused("no_issue", "it closes no dumped issue")
    if letters < config.min_issue_letters:
        raise Refused(
            "issue_content",
            f"{letters} characters besides links, at least {config.min_issue_letters} are asked",
        )
    if words < config.min_issue_words:
        raise Refused(
            "issue_content", f"{words} words of prose, at least {config.min_issue_words} are asked"
        )


def check_diff(diff: PullDiff, config: FilterConfig, *, has_generated_tests: bool = False) -> None:
    """Refuse a pull request by what it changes."""
    modules = [p for p in diff.paths.tests if p in diff.gold_modules and is_test_module(p)]
    share = diff.paths.python_share
    if not modules and not has_generated_tests:
        raise Refused("no_tests", "it changes no test module")
    if not diff.paths.product:
        raise Refused("no_product", "it changes no code of the product")
    if share < config.min_python_share:
        raise Refused(
            "language",
            f"{share:.0%} of its code is Python, at least {config.min_python_share:.0%} is asked",
        )
    for num, limit, what in (
        (diff.paths.num_files, config.max_files, "files are changed"),
        (len(diff.paths.product), config.max_product_files, "files of the product are changed"),
        (diff.num_lines, config.max_lines, "lines of the product are changed"),
    ):
        if num > limit:
            raise Refused("diff_size", f"{num} {what}, at most {limit} may be")
    if diff.unsupported:
        raise Refused("diff_kind", diff.unsupported)


def check_text(statement: str, gold_lines: list[str], test_names: frozenset[str]) -> None:
    """Refuse a text that is no problem statement: it holds the fix, or names a test."""
    if leaks(statement, gold_lines):
        raise Refused("fix_in_text", "the issue holds a line of the fix or a patch")
    if is_leaking(statement, (), test_names):
        raise Refused("test_in_text", "the issue names a hidden test")


def _count(remarks: Remarks) -> int:
    """Return how many remarks there are; a bot's do not count when we see who wrote them."""
    if isinstance(remarks, int):
        return remarks
    return sum(not (remark.user and remark.user.is_bot) for remark in remarks)
