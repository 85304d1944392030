"""Says what repositories, databases and archives hold: a program of its own, in a fresh sandbox.

Reads files that an agent left, as data: of a repository only objects, refs, index and HEAD are
there, beside a config of ours. Standard library only. Not here: what is made of it
(`final_state.py`).
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Readable(Protocol):
        def read(self, size: int, /) -> bytes: ...


MAX_ITEMS = 2_000
MAX_BYTES = 4 << 20


def describe_archive(path: str, form: str) -> dict[str, str]:
    """Return the text of each regular file; other members are named with their kind."""
    found: dict[str, str] = {}
    room = MAX_BYTES

    def add(name: str, file: Readable) -> None:
        nonlocal room
        data = file.read(room + 1)
        room -= len(data)
        if room < 0 or name in found or len(found) >= MAX_ITEMS:
            raise ValueError("too large, or a name occurs twice")
        found[name] = data.decode("utf-8", "backslashreplace")

    if form == "gz":
        with gzip.open(path) as unpacked:
            add("", unpacked)
    elif form == "zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with archive.open(info) as file:
                        add(os.path.normpath(info.filename), file)
    else:
        with tarfile.open(path, "r:gz" if form == "tar.gz" else "r:") as tar:
            for member in tar:
                data = tar.extractfile(member) if member.isreg() else None
                if data is not None:
                    add(os.path.normpath(member.name), data)
                elif not member.isdir():
                    found[member.name] = f"member of type {member.type!r}"
    return found


def describe_database(path: str) -> dict[str, Any]:
    """Return columns and rows of each table, and the indexes that were made by hand."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    tables, indexes = {}, {}
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    for kind, name, table, sql in rows:
        quoted = '"' + name.replace('"', '""') + '"'
        if kind == "table" and not name.startswith("sqlite_"):
            columns = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
            found = connection.execute(f"SELECT * FROM {quoted} LIMIT {MAX_ITEMS + 1}").fetchall()
            if len(found) > MAX_ITEMS:
                raise ValueError("too many rows")
            tables[name] = {"columns": [[c[1], c[2]] for c in columns], "rows": found}
        elif kind == "index" and sql:
            parts = [c[2] for c in connection.execute(f"PRAGMA index_info({quoted})")]
            unique = sql.split()[1].upper() == "UNIQUE"
            indexes[f"{table}({', '.join(map(str, parts))})"] = unique
        elif kind in ("view", "trigger"):
            indexes[f"{kind} {name}"] = False
    return {"tables": tables, "indexes": indexes}


class _Objects:
    """Objects of a repository, from one `git cat-file`."""

    def __init__(self, git: list[str]) -> None:
        self._process = subprocess.Popen(
            [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._room = MAX_BYTES

    def read(self, name: str, kind: str) -> bytes:
        """Return an object's content; `ValueError` if there is none of the kind."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(name.encode() + b"\n")
        self._process.stdin.flush()
        head = self._process.stdout.readline().decode().split()
        if len(head) != 3 or head[1] != kind or int(head[2]) > self._room:
            raise ValueError(f"no {kind} {name}, or too large")
        self._room -= int(head[2])
        return self._process.stdout.read(int(head[2]) + 1)[:-1]

    def files(self, tree: str, prefix: str = "") -> dict[str, str]:
        """Return path -> text of a tree; what is no plain file shows its mode."""
        found: dict[str, str] = {}
        data = self.read(tree, "tree")
        while data:
            head, _, rest = data.partition(b"\0")
            mode, _, name = head.decode("utf-8", "backslashreplace").partition(" ")
            sha, data = rest[:20].hex(), rest[20:]
            if mode == "40000":
                found.update(self.files(sha, f"{prefix}{name}/"))
            elif mode == "100644":
                found[prefix + name] = self.read(sha, "blob").decode("utf-8", "backslashreplace")
            else:
                found[prefix + name] = f"mode {mode}"
        return found


def describe_repository(path: str) -> dict[str, Any]:
    """Return HEAD, refs, the commits they reach, and the index."""
    git = ["git", f"--git-dir={path}", "--no-replace-objects"]

    def run(*command: str) -> list[str]:
        return subprocess.run(
            [*git, *command], check=True, capture_output=True, text=True
        ).stdout.splitlines()

    names = "%(refname) %(objectname) %(*objectname)"
    refs = {
        line.split()[0]: line.split()[-1]
        for line in run("for-each-ref", f"--format={names}", "refs/heads", "refs/tags")
    }
    objects = _Objects(git)
    commits: dict[str, Any] = {}
    pending = list(refs.values())
    while pending:
        name = pending.pop()
        if name in commits:
            continue
        if len(commits) >= 200:
            raise ValueError("too many commits")
        text = objects.read(name, "commit").decode("utf-8", "backslashreplace")
        head, _, message = text.partition("\n\n")
        fields = [line.split(" ", 1) for line in head.splitlines()]
        parents = [value for key, value in fields if key == "parent"]
        tree = next(value for key, value in fields if key == "tree")
        commits[name] = {
            "subject": message.strip(),
            "parents": parents,
            "files": objects.files(tree),
        }
        pending += parents
    index = {}
    for line in run("ls-files", "--stage"):
        head, _, name = line.partition("\t")
        mode, sha, stage = head.split()
        blob = objects.read(sha, "blob").decode("utf-8", "backslashreplace")
        index[name] = blob if (mode, stage) == ("100644", "0") else f"mode {mode}, stage {stage}"
    head = Path(path, "HEAD").read_text(encoding="utf-8")[:1000].strip()
    return {"head": head, "refs": refs, "commits": commits, "index": index}


def main() -> None:
    """Answer the questions of the command line (path and kind of each) as one JSON object."""
    answers: dict[str, Any] = {}
    for path, kind in json.loads(sys.argv[1]):
        try:
            if kind == "repository":
                answers[path] = describe_repository(path)
            elif kind == "database":
                answers[path] = describe_database(path)
            else:
                answers[path] = describe_archive(path, kind)
        except Exception as e:  # whatever an agent left is an answer, and a wrong one
            answers[path] = f"{type(e).__name__}: {e}"[:300]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
