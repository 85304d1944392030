"""Issues that a pull request closes, by keyword in its texts, and by events of its timeline.

Not here: whether such an issue makes a good statement (`pull_filters.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from katgym_plugin_swe_factory.history.tracker_dump import Issue, PullRequest, TimelineEvent

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
    numbers: set[int] = set()
    for text in (pull.title, pull.body or "", *pull.messages):
        for found in _REFERENCE.finditer(_NOT_SAID.sub(" ", text)):
            named = found["repo"] or found["url_repo"]
            if not named or not repository or named.lower() == repository.lower():
                numbers.add(int(found["number"]))
    connected = (_source_number(event) for event in pull.timeline if event.event == "connected")
    numbers |= {number for number in connected if number is not None}
    for number, issue in issues.items():
        for event in issue.timeline:
            is_merge = event.commit_id and event.commit_id == pull.merge_commit_sha
            is_connected = event.event == "connected" and _source_number(event) == pull.number
            if (event.event == "closed" and is_merge) or is_connected:
                numbers.add(number)
    return tuple(issues[n] for n in sorted(numbers) if n in issues)


def _source_number(event: TimelineEvent) -> int | None:
    source = event.source.issue if event.source is not None else None
    return source.number if source is not None else None
