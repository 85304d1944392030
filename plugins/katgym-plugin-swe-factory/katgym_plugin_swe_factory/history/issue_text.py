"""Makes a problem statement and hints of issues, and looks whether they give the fix away.

Not here: which issues (`closing_issues.py`), and how long a text must be (`pull_filters.py`).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence

from katgym_plugin_swe_factory.history.tracker_dump import Issue
from katgym_plugin_swe_factory.statements.statement import is_leaking

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\([^)]*\)|<?https?://\S+>?")
_REFERENCE = re.compile(r"(?:[\w.-]+/[\w.-]+)?#\d+|\b[0-9a-f]{7,40}\b")
_DIFF = re.compile(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+|```\s*(?:diff|patch)\b)", re.MULTILINE)


def problem_statement(issues: Sequence[Issue]) -> str:
    """Return titles and bodies, without the comments of templates."""
    parts = []
    for issue in issues:
        body = _COMMENT.sub("", issue.body or "").replace("\r\n", "\n").strip()
        parts += [part for part in (issue.title.strip(), body) if part]
    return "\n\n".join(parts) + "\n"


def hints(
    issues: Sequence[Issue], before: datetime.datetime | None, gold_lines: Collection[str]
) -> str:
    """Return what people answered before the pull request; what holds the fix is left out."""
    texts = []
    for issue in issues:
        for remark in [] if isinstance(issue.comments, int) else issue.comments:
            body = _COMMENT.sub("", remark.body or "").strip()
            is_early = before is None or (
                remark.created_at is not None and remark.created_at < before
            )
            is_bot = remark.user is not None and remark.user.is_bot
            if body and is_early and not is_bot and not leaks(body, gold_lines):
                texts.append(body)
    return "\n\n".join(texts)


def num_letters(issues: Sequence[Issue]) -> int:
    """Return how much the issues say: characters of prose and code without links and references."""
    text = problem_statement(issues)
    return len(" ".join(_REFERENCE.sub("", _LINK.sub("", text)).split()))


def num_words_of_prose(issues: Sequence[Issue]) -> int:
    """Return the words that are neither code, link nor reference."""
    text = _CODE.sub(" ", problem_statement(issues))
    return len(re.findall(r"[^\W\d_]{2,}", _REFERENCE.sub("", _LINK.sub("", text))))


def leaks(text: str, gold_lines: Collection[str]) -> bool:
    """Return whether a text holds a patch, or a line of the fix."""
    return bool(_DIFF.search(text)) or is_leaking(text, gold_lines, ())


def find_added_lines(patch: str) -> list[str]:
    """Return the lines that a unified diff adds, stripped: what a statement may not hold."""
    return [
        line[1:].strip()
        for line in patch.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]
