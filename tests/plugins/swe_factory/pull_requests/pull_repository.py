"""A real git repository with pull requests, and the dump of its tracker, built by git itself.

Not here: what is made of them (the tests).
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = '''\
"""Words."""


def plural(word):
    """Return the plural of a word."""
    if word.endswith(("s", "x")):
        return word + "es"
    return word + "s"


def chunks(items, size):
    """Return the items in lists of at most `size`."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def label(word, number):
    """Return a number with its noun."""
    return f"{number} {word if number == 1 else plural(word)}"
'''
TESTS = """\
from wordkit import chunks, label, plural


def test_plain():
    assert plural("cat") == "cats"


def test_hiss():
    assert plural("box") == "boxes"


def test_chunks():
    assert chunks([1, 2, 3], 2) == [[1, 2], [3]]


def test_label():
    assert label("cat", 1) == "1 cat"
"""
FIXED_PLURAL = SOURCE.replace(
    """    return word + "s"


def chunks""",
    """    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def chunks""",
)
PLURAL_TESTS = (
    TESTS
    + """

def test_consonant():
    assert plural("city") == "cities"


def test_vowel():
    assert plural("day") == "days"


def test_counted():
    assert label("pony", 3) == "3 ponies"
"""
)
ISSUE = """\
Words that end in a consonant and "y" get a wrong plural: asking for the plural of `city` returns
`citys`, where everybody would write `cities`. Words like `day` are fine as they are.
"""
BASE = {
    "README.md": "# wordkit\n",
    "pyproject.toml": '[project]\nname = "wordkit"\nversion = "1"\n',
    "wordkit/__init__.py": SOURCE,
    "tests/test_words.py": TESTS,
}
FIX = {"wordkit/__init__.py": FIXED_PLURAL, "tests/test_words.py": PLURAL_TESTS}
DAY = "2025-03-01T12:00:00Z"
Files = Mapping[str, str | bytes | None]
"""Path -> content; None deletes it."""


class PullRepository:
    """A repository under `folder/clone`, and its dump, which `write_dump` puts in `folder/dump`."""

    def __init__(self, folder: Path, base: Files = BASE) -> None:
        self.folder = folder
        self.clone = folder / "clone"
        self.dump = folder / "dump"
        self.repository: dict[str, Any] = {
            "full_name": "acme/wordkit",
            "stargazers_count": 900,
            "forks_count": 30,
            "license": {"spdx_id": "MIT"},
        }
        self.pulls: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.clone.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.commit(base, "start")

    def git(self, *arguments: str) -> str:
        """Run git in the clone."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            **{f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in (
                ("NAME", "Ann"), ("EMAIL", "ann@example.org"), ("DATE", DAY))},
        }  # fmt: skip
        done = subprocess.run(
            ["git", *arguments], cwd=self.clone, env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, files: Files, message: str) -> str:
        """Commit changes on the branch that is checked out, and return the commit."""
        for name, content in files.items():
            path = self.clone / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def issue(self, number: int, body: str = ISSUE, **more: Any) -> None:
        """Add an issue to the dump."""
        self.issues.append(
            {"number": number, "title": f"Odd result {number}", "body": body, **more}
        )

    def pull(
        self, number: int, files: Files = FIX, *, closes: int | None = None, how: str = "merge",
        **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Merge a pull request and add it to the dump; `how` is merge, squash or rebase.

        It has two commits if it changes more than one file.
        """
        base = self.git("rev-parse", "main")
        self.git("checkout", "-q", "-b", f"pull-{number}")
        names = list(files)
        parts = [names[:1], names[1:]] if len(names) > 1 else [names]
        for index, part in enumerate(parts):
            self.commit({name: files[name] for name in part}, f"part {index} of {number}")
        head = self.git("rev-parse", "HEAD")
        self.git("checkout", "-q", "main")
        if how == "merge":
            self.git("merge", "-q", "--no-ff", "-m", f"Merge pull request #{number}", head)
        elif how == "squash":
            self.git("merge", "-q", "--squash", head)
            self.git("commit", "-q", "-m", f"Change words (#{number})")
        else:
            self.git("merge", "-q", "--ff-only", head)
        made = {
            "number": number,
            "title": f"Change words {number}",
            "body": f"Fixes #{closes}" if closes else "Something better",
            "created_at": DAY,
            "merged_at": DAY,
            "base": {"sha": base},
            "head": {"sha": head},
            "merge_commit_sha": self.git("rev-parse", "HEAD"),
            "user": {"login": "ann", "type": "User"},
            "labels": [],
            "comments": 2,
            "commits": len(parts),
            **more,
        }
        self.pulls.append(made)
        return made

    def told_otherwise(self, folder: Path, **more: Any) -> PullRepository:
        """Return the same clone with a dump of its own, in which the last pull request differs."""
        other = copy.copy(self)
        other.folder, other.dump = folder, folder / "dump"
        other.repository, other.issues = {**self.repository}, [*self.issues]
        other.pulls = [*self.pulls[:-1], {**self.pulls[-1], **more}]
        return other

    def write_dump(self) -> Path:
        """Write the dump, and return its folder."""
        self.dump.mkdir(parents=True, exist_ok=True)
        (self.dump / "repository.json").write_text(json.dumps(self.repository))
        for name, items in (("pulls", self.pulls), ("issues", self.issues)):
            text = "".join(json.dumps(item) + "\n" for item in items)
            (self.dump / f"{name}.jsonl").write_text(text)
        return self.dump


def one_pull(
    folder: Path, files: Files = FIX, *, base: Files = BASE, **more: Any
) -> PullRepository:
    """Return a repository with issue 1 and pull request 2, which closes it."""
    made = PullRepository(folder, base)
    made.issue(1)
    made.pull(2, files, **{"closes": 1, **more})
    return made
