"""The filters a pull request goes through before anything of it is run, in this order.

Each is a function that returns why it refuses, or "". Not here: bounds (`import_config.py`), what
running its tests tells (`pull_trial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from katgym_envs.swe.making.statement import is_leaking
from katgym_envs.swe.pull_requests.changed_paths import is_test_module
from katgym_envs.swe.pull_requests.import_config import FilterConfig
from katgym_envs.swe.pull_requests.issue_text import (
    leaks,
    num_letters,
    num_words_of_prose,
)
from katgym_envs.swe.pull_requests.pull_diff import PullDiff
from katgym_envs.swe.pull_requests.tracker_dump import Issue, PullRequest, Remarks, Repository


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
    return _first(
        ("not_merged", lambda: "" if pull.merged_at else "it was not merged"),
        ("author", lambda: _author(pull)),
        ("label", lambda: _label(pull, config)),
        ("activity", lambda: _activity(pull, config)),
        ("age", lambda: _age(pull, config)),
        ("no_issue", lambda: "" if issues else "it closes no dumped issue"),
        ("issue_content", lambda: _issue_content(issues, config)),
    )


def refuse_diff(
    diff: PullDiff, config: FilterConfig, *, has_generated_tests: bool = False
) -> Refusal | None:
    """Return why a pull request is left out by what it changes, or None."""
    return _first(
        ("no_tests", lambda: "" if has_generated_tests else _no_tests(diff)),
        ("no_product", lambda: "" if diff.paths.product else "it changes no code of the product"),
        ("language", lambda: _language(diff, config)),
        ("diff_size", lambda: _size(diff, config)),
        ("diff_kind", lambda: diff.unsupported),
    )


def refuse_text(
    statement: str, gold_lines: list[str], test_names: frozenset[str]
) -> Refusal | None:
    """Return why a text is no problem statement: it holds the fix or names a test; or None."""
    if leaks(statement, gold_lines):
        return Refusal(filter="fix_in_text", reason="the issue holds a line of the fix or a patch")
    if is_leaking(statement, (), test_names):
        return Refusal(filter="test_in_text", reason="the issue names a hidden test")
    return None


def _first(*filters: tuple[str, Callable[[], str]]) -> Refusal | None:
    for name, check in filters:
        reason = check()
        if reason:
            return Refusal(filter=name, reason=reason)
    return None


def _author(pull: PullRequest) -> str:
    if pull.user is not None and pull.user.is_bot:
        return f"its author {pull.user.login!r} is a bot"
    return ""


def _label(pull: PullRequest, config: FilterConfig) -> str:
    skipped = {label.lower() for label in config.skipped_labels}
    found = next((label.name for label in pull.labels if label.name.lower() in skipped), None)
    return f"it is labelled {found!r}" if found else ""


def _activity(pull: PullRequest, config: FilterConfig) -> str:
    num = sum(_num(remarks) for remarks in (pull.comments, pull.review_comments, pull.reviews))
    if num < config.min_activity:
        return f"{num} comments and reviews, at least {config.min_activity} are asked"
    return ""


def _num(remarks: Remarks) -> int:
    """Return how many remarks there are; a bot's do not count when we see who wrote them."""
    if isinstance(remarks, int):
        return remarks
    return sum(not (remark.user and remark.user.is_bot) for remark in remarks)


def _age(pull: PullRequest, config: FilterConfig) -> str:
    merged = pull.merged_at
    if merged is None:
        return ""
    if config.since is not None and merged < config.since:
        return f"merged on {merged:%Y-%m-%d}, before {config.since:%Y-%m-%d}"
    if config.until is not None and merged > config.until:
        return f"merged on {merged:%Y-%m-%d}, after {config.until:%Y-%m-%d}"
    return ""


def _issue_content(issues: tuple[Issue, ...], config: FilterConfig) -> str:
    letters, words = num_letters(issues), num_words_of_prose(issues)
    if letters < config.min_issue_letters:
        return f"{letters} characters besides links, at least {config.min_issue_letters} are asked"
    if words < config.min_issue_words:
        return f"{words} words of prose, at least {config.min_issue_words} are asked"
    return ""


def _no_tests(diff: PullDiff) -> str:
    modules = [p for p in diff.paths.tests if p in diff.gold_modules and is_test_module(p)]
    return "" if modules else "it changes no test module"


def _language(diff: PullDiff, config: FilterConfig) -> str:
    share = diff.paths.python_share
    if share < config.min_python_share:
        return f"{share:.0%} of its code is Python, at least {config.min_python_share:.0%} is asked"
    return ""


def _size(diff: PullDiff, config: FilterConfig) -> str:
    for num, limit, what in (
        (diff.paths.num_files, config.max_files, "files are changed"),
        (len(diff.paths.product), config.max_product_files, "files of the product are changed"),
        (diff.num_lines, config.max_lines, "lines of the product are changed"),
    ):
        if num > limit:
            return f"{num} {what}, at most {limit} may be"
    return ""
