"""The filters a pull request goes through before anything of it is run, in this order.

Each is a function that returns why it refuses, or "". Not here: bounds (`import_config.py`), what
running its tests tells (`pull_trial.py`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

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
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig
from katgym_plugin_swe_factory.statements.statement import is_leaking


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something makes no task.

    Example:
        Refusal(filter="issue_content", reason="issue 12 has 14 characters, at least 60 are asked")
    """

    filter: str
    reason: str


def refuse_repository(repository: Repository, config: FilterConfig) -> Refusal | None:
    """Return why the whole repository is left out, or None."""
    bounds = (
        ("stars", repository.stargazers_count, config.min_stars, config.max_stars),
        ("forks", repository.forks_count, config.min_forks, None),
    )
    for name, value, low, high in bounds:
        if value is None and (low is not None or high is not None):
            return Refusal(filter="repository", reason=f"the dump does not tell its {name}")
        if value is not None and low is not None and value < low:
            return Refusal(filter="repository", reason=f"{value} {name}, at least {low} are asked")
        if value is not None and high is not None and value > high:
            return Refusal(filter="repository", reason=f"{value} {name}, at most {high} are asked")
    if repository.archived and not config.is_archived_allowed:
        return Refusal(filter="repository", reason="it is archived")
    return None


def refuse_pull(
    pull: PullRequest, issues: tuple[Issue, ...], config: FilterConfig
) -> Refusal | None:
    """Return why a pull request is left out by what the dump says of it, or None."""
    skipped = {label.lower() for label in config.skipped_labels}
    label = next((label.name for label in pull.labels if label.name.lower() in skipped), None)
    remarks = sum(_count(r) for r in (pull.comments, pull.review_comments, pull.reviews))
    letters, words = num_letters(issues), num_words_of_prose(issues)
    if pull.merged_at is None:
        return Refusal(filter="not_merged", reason="it was not merged")
    merged = pull.merged_at.astimezone(datetime.UTC).date()
    if pull.user is not None and pull.user.is_bot:
        return Refusal(filter="author", reason=f"its author {pull.user.login!r} is a bot")
    if label:
        return Refusal(filter="label", reason=f"it is labelled {label!r}")
    if remarks < config.min_activity:
        reason = f"{remarks} comments and reviews, at least {config.min_activity} are asked"
        return Refusal(filter="activity", reason=reason)
    if config.since is not None and merged < config.since:
        reason = f"merged on {merged:%Y-%m-%d}, before {config.since:%Y-%m-%d}"
        return Refusal(filter="age", reason=reason)
    if config.until is not None and merged > config.until:
        reason = f"merged on {merged:%Y-%m-%d}, after {config.until:%Y-%m-%d}"
        return Refusal(filter="age", reason=reason)
    if not issues:
        return Refusal(filter="no_issue", reason="it closes no dumped issue")
    if letters < config.min_issue_letters:
        reason = (
            f"{letters} characters besides links, at least {config.min_issue_letters} are asked"
        )
        return Refusal(filter="issue_content", reason=reason)
    if words < config.min_issue_words:
        reason = f"{words} words of prose, at least {config.min_issue_words} are asked"
        return Refusal(filter="issue_content", reason=reason)
    return None


def refuse_diff(
    diff: PullDiff, config: FilterConfig, *, has_generated_tests: bool = False
) -> Refusal | None:
    """Return why a pull request is left out by what it changes, or None."""
    modules = [p for p in diff.paths.tests if p in diff.gold_modules and is_test_module(p)]
    share = diff.paths.python_share
    if not modules and not has_generated_tests:
        return Refusal(filter="no_tests", reason="it changes no test module")
    if not diff.paths.product:
        return Refusal(filter="no_product", reason="it changes no code of the product")
    if share < config.min_python_share:
        reason = (
            f"{share:.0%} of its code is Python, at least {config.min_python_share:.0%} is asked"
        )
        return Refusal(filter="language", reason=reason)
    for num, limit, what in (
        (diff.paths.num_files, config.max_files, "files are changed"),
        (len(diff.paths.product), config.max_product_files, "files of the product are changed"),
        (diff.num_lines, config.max_lines, "lines of the product are changed"),
    ):
        if num > limit:
            return Refusal(filter="diff_size", reason=f"{num} {what}, at most {limit} may be")
    return Refusal(filter="diff_kind", reason=diff.unsupported) if diff.unsupported else None


def refuse_text(
    statement: str, gold_lines: list[str], test_names: frozenset[str]
) -> Refusal | None:
    """Return why a text is no problem statement: it holds the fix or names a test; or None."""
    if leaks(statement, gold_lines):
        return Refusal(filter="fix_in_text", reason="the issue holds a line of the fix or a patch")
    if is_leaking(statement, (), test_names):
        return Refusal(filter="test_in_text", reason="the issue names a hidden test")
    return None


def _count(remarks: Remarks) -> int:
    """Return how many remarks there are; a bot's do not count when we see who wrote them."""
    if isinstance(remarks, int):
        return remarks
    return sum(not (remark.user and remark.user.is_bot) for remark in remarks)
