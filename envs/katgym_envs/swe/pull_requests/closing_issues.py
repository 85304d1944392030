"""Which issues a pull request closes: by keyword in its texts, and by events of its timeline.

Not here: whether such an issue makes a good statement (`pull_filters.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from katgym_envs.swe.pull_requests.tracker_dump import Issue, PullRequest, TimelineEvent

_KEYWORD = r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)\b"
_NAME = r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"
_REFERENCE = re.compile(
    rf"{_KEYWORD}:?\s+(?:(?P<repo>{_NAME})?#|GH-"
    rf"|https?://[^\s/]+/(?P<url_repo>{_NAME})/issues/)(?P<number>\d+)\b",
    re.IGNORECASE,
)
# A template's comments and code say "fixes #1" without meaning it.
_NOT_SAID = re.compile(r"<!--.*?(?:-->|\Z)|```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def closing_issues(
    pull: PullRequest, issues: Mapping[int, Issue], repository: str = ""
) -> tuple[Issue, ...]:
    """Return the dumped issues that the pull request closes, by number.

    A cross-reference counts only if the issue was closed by the pull request's merge: people
    mention pull requests for many reasons. `repository` ("owner/name") tells references to other
    repositories apart.
    """
    numbers = _by_keyword(pull, repository) | _by_events(pull)
    numbers |= {n for n, issue in issues.items() if _is_closed_by(issue, pull)}
    return tuple(issues[n] for n in sorted(numbers) if n in issues)


def _by_keyword(pull: PullRequest, repository: str) -> set[int]:
    numbers = set()
    for text in (pull.title, pull.body or "", *pull.messages):
        for found in _REFERENCE.finditer(_NOT_SAID.sub(" ", text)):
            named = found["repo"] or found["url_repo"]
            if not named or not repository or named.lower() == repository.lower():
                numbers.add(int(found["number"]))
    return numbers


def _by_events(pull: PullRequest) -> set[int]:
    return {
        event.source.issue.number
        for event in pull.timeline
        if event.event == "connected"
        and event.source is not None
        and event.source.issue is not None
    }


def _is_closed_by(issue: Issue, pull: PullRequest) -> bool:
    by_commit = any(
        e.event == "closed" and e.commit_id and e.commit_id == pull.merge_commit_sha
        for e in issue.timeline
    )
    return by_commit or any(e.event == "connected" and _comes_from(e, pull) for e in issue.timeline)


def _comes_from(event: TimelineEvent, pull: PullRequest) -> bool:
    source = event.source.issue if event.source is not None else None
    return source is not None and source.number == pull.number
