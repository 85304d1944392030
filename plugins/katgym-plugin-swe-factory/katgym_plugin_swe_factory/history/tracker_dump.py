"""A dump of pull requests, issues and the repository, in the shape of GitHub's REST API.

    FOLDER/repository.json
    FOLDER/pulls.jsonl      or pulls.json, a JSON array
    FOLDER/issues.jsonl     or issues.json

Only the fields below are read; comments, reviews, commits and timeline may be counts, lists of
objects, or absent. Not here: which issue a pull request closes (`closing_issues.py`).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from katgym.errors import UsageError
from katgym_plugin_swe_factory.rows.broken_row import RowError
from katgym_plugin_swe_factory.rows.row_file import read_objects

_FULL_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


class User(msgspec.Struct, frozen=True):
    """Who wrote something; `type` is "Bot" for GitHub's own."""

    login: str = ""
    type: str = "User"

    @property
    def is_bot(self) -> bool:
        """Whether it is a program, by type or by the usual ending of its name."""
        return self.type == "Bot" or self.login.lower().endswith(("[bot]", "-bot"))


class Label(msgspec.Struct, frozen=True):
    """A label's name."""

    name: str = ""


class Revision(msgspec.Struct, frozen=True):
    """One end of a pull request."""

    sha: str = ""


class Remark(msgspec.Struct, frozen=True):
    """A comment or review."""

    body: str | None = None
    user: User | None = None
    created_at: datetime.datetime | None = None


class CommitText(msgspec.Struct, frozen=True):
    """The inner `commit` of a commit."""

    message: str = ""


class PullCommit(msgspec.Struct, frozen=True):
    """A commit of a pull request."""

    commit: CommitText = CommitText()


class SourceIssue(msgspec.Struct, frozen=True):
    """The issue or pull request a timeline event comes from."""

    number: int = 0


class EventSource(msgspec.Struct, frozen=True):
    """Where a timeline event comes from."""

    issue: SourceIssue | None = None


class TimelineEvent(msgspec.Struct, frozen=True):
    """One event: "closed" with a commit, "connected" or "cross-referenced" with a source."""

    event: str = ""
    commit_id: str | None = None
    source: EventSource | None = None


Remarks = int | list[Remark]


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pull request, as `GET /repos/O/R/pulls/N` gives it."""

    number: int
    title: str = ""
    body: str | None = None
    created_at: datetime.datetime | None = None
    merged_at: datetime.datetime | None = None
    base: Revision = Revision()
    head: Revision = Revision()
    merge_commit_sha: str | None = None
    user: User | None = None
    labels: list[Label] = []
    comments: Remarks = 0
    review_comments: Remarks = 0
    reviews: Remarks = 0
    commits: int | list[PullCommit] = 0
    timeline: list[TimelineEvent] = []
    html_url: str = ""

    @property
    def num_commits(self) -> int:
        """How many commits it has; 0 when the dump does not say."""
        return self.commits if isinstance(self.commits, int) else len(self.commits)

    @property
    def messages(self) -> list[str]:
        """Messages of its commits, as far as they were dumped."""
        return [] if isinstance(self.commits, int) else [c.commit.message for c in self.commits]


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue, as `GET /repos/O/R/issues/N` gives it."""

    number: int
    title: str = ""
    body: str | None = None
    comments: Remarks = 0
    timeline: list[TimelineEvent] = []
    pull_request: Any = None
    """Set on what is a pull request: the API lists them as issues, too."""


class License(msgspec.Struct, frozen=True):
    """A repository's licence."""

    spdx_id: str | None = None


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository, as `GET /repos/O/R` gives it."""

    full_name: str
    stargazers_count: int | None = None
    forks_count: int | None = None
    archived: bool = False
    license: License | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerDump:
    """All three files."""

    repository: Repository
    pulls: Mapping[int, PullRequest]
    issues: Mapping[int, Issue]


_T = TypeVar("_T", PullRequest, Issue)


def read_dump(folder: Path) -> TrackerDump:
    """Return the dump of a folder; `UsageError` names file, line and field of what is broken."""
    if not folder.is_dir():
        raise UsageError(f"no such folder with a dump: {str(folder)!r}")
    return TrackerDump(
        repository=_read_repository(folder / "repository.json"),
        pulls=_read(folder, "pulls", PullRequest),
        issues={n: i for n, i in _read(folder, "issues", Issue).items() if not i.pull_request},
    )


def _read_repository(path: Path) -> Repository:
    try:
        found = msgspec.convert(json.loads(path.read_bytes()), Repository)
    except OSError as e:
        raise UsageError(f"cannot read {str(path)!r}: {e.strerror}") from e
    except (ValueError, msgspec.ValidationError) as e:
        raise UsageError(f"{str(path)!r}: {e}") from e
    if not _FULL_NAME.fullmatch(found.full_name):
        raise UsageError(f"{str(path)!r}: full_name is 'owner/name', got {found.full_name!r}")
    return found


def _read(folder: Path, name: str, kind: type[_T]) -> dict[int, _T]:
    """Return pull requests or issues by number."""
    paths = (folder / f"{name}.jsonl", folder / f"{name}.json")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise UsageError(f"{str(folder)!r} holds neither {name}.jsonl nor {name}.json")
    found: dict[int, _T] = {}
    for line, data in read_objects(path):
        try:
            if isinstance(data, RowError):
                raise data
            # null stands for a deleted user or an empty text.
            known = {name: value for name, value in data.items() if value is not None}
            item: _T = msgspec.convert(known, kind)
        except (RowError, msgspec.ValidationError) as e:
            raise UsageError(f"{str(path)!r} line {line}: {e}") from e
        if item.number in found:
            raise UsageError(f"{str(path)!r} line {line}: number {item.number} occurs twice")
        found[item.number] = item
    return found
