"""What counts as the state that a task wants, on changes made by hand."""

from __future__ import annotations

import pytest

from katgym.sandbox.changes import ChangeKind, FileChange
from katgym_envs.terminal.state.entries import (
    Archive,
    Database,
    Entry,
    File,
    Folder,
    GitCommit,
    GitRepository,
    Ini,
    Json,
    Symlink,
    Table,
)
from katgym_envs.terminal.state.final_state import FinalState

FIRST, SECOND = GitCommit("one", {"a": "1\n"}), GitCommit("two", {"a": "2\n"}, (0,))
REPOSITORY = GitRepository((FIRST, SECOND), {"main": 1}, tags={"v1": 0})


def file(content: bytes, mode: int = 0o644) -> FileChange:
    return FileChange(path="d/f", kind=ChangeKind.ADDED, mode=mode, content=content)


def other(file_type: str, **more: str) -> FileChange:
    return FileChange(path="d/f", kind=ChangeKind.ADDED, file_type=file_type, **more)  # type: ignore[arg-type]


def differences(entry: Entry, change: FileChange | None, answer: object = None) -> list[str]:
    """Return what differs where `entry` should be at d/f."""
    found = {"d": FileChange(path="d", kind=ChangeKind.ADDED, file_type="dir")}
    found |= {} if change is None else {"d/f": change}
    return FinalState(found, {} if answer is None else {"d/f": answer}).differences({"d/f": entry})


def test_what_is_as_wanted_differs_in_nothing() -> None:
    cases: list[tuple[Entry, FileChange]] = [
        (File("x\n"), file(b"x")),
        (File("x\n"), file(b"x\n", 0o777)),
        (File("x\n", mode=0o600), file(b"x\n", 0o600)),
        (Folder(), other("dir")),
        (Symlink("a/b"), other("link", link_target="a/b")),
        (Json({"a": [1, True], "b": None}), file(b'{"b": null,\n "a": [1, true]}')),
        (Ini({"s": {"Key": "1"}, "t": {}}), file(b"; note\n[t]\n[s]\nKey=1\n")),
    ]
    for entry, change in cases:
        assert differences(entry, change) == [], entry


def test_each_difference_is_named(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Entry, FileChange | None, str]] = [
        (File("x"), None, "is missing"),
        (File("x"), file(b"x "), "has other content"),
        (File("x"), file(b"\nx"), "has other content"),
        (File("x", mode=0o600), file(b"x", 0o4600), "has mode 4600"),
        (File("x"), other("file"), "is too large"),
        (File("x"), other("link", link_target="x"), "is no file"),
        (File("x"), other("other"), "is no file"),
        (Folder(), file(b""), "is no dir"),
        (Symlink("a"), other("link", link_target="./a"), "leads elsewhere"),
        (Json({"a": 1}), file(b'{"a": true}'), "has other content"),
        (Json({"a": 1}), file(b'{"a": 2, "a": 1}'), "has other content"),
        (Json([]), file(b"[" * 100_000), "has other content"),
        (Json([]), file(b"\xff"), "has other content"),
        (Ini({"s": {"a": "1"}}), file(b"[s]\na=1\na=1\n"), "has other content"),
        (Ini({"s": {"a": "1"}}), file(b"a=1"), "has other content"),
        (Ini({"s": {"a": "1"}}), file(b"[s]\na" + b" " * 10**6 + b"x"), "has other content"),
        (REPOSITORY, file(b"gitdir: x"), "is no dir"),
        (REPOSITORY, other("dir"), "holds something else"),
        (Database({}), file(b""), "holds something else"),
    ]
    for number, (entry, change, problem) in enumerate(cases):
        with subtests.test(number, problem=problem):
            assert differences(entry, change) == [f"d/f: {problem}"]


def test_what_is_beside_it_differs_but_not_what_lies_in_a_repository() -> None:
    names = ("d", "d/f", "d/f/config", "d/g")
    found = {n: FileChange(path=n, kind=ChangeKind.ADDED, file_type="dir") for n in names}
    assert FinalState(found, {}).differences({"d/f": Folder()}) == [
        "d/f/config: should not be there",
        "d/g: should not be there",
    ]
    assert FinalState(found, {}).differences({"d/f": REPOSITORY}) == [
        "d/g: should not be there",
        "d/f: holds something else",
    ]


def test_archives_and_databases_count_by_what_they_hold() -> None:
    archive = Archive("zip", {"a": "1\n", "b/c": "2\n"})
    assert differences(archive, file(b"..."), {"b/c": "2", "a": "1\n"}) == []
    assert differences(archive, file(b"..."), {"a": "1\n"}) == ["d/f: holds something else"]
    table = Table((("n", "INTEGER"),), ((1,), (2,)))
    database = Database({"t": table}, indexes={"t(n)": True})
    answer = {"tables": {"t": {"columns": [["n", "integer"]], "rows": [[2], [1]]}}}
    assert differences(database, file(b"..."), {**answer, "indexes": {"t(n)": True}}) == []
    assert differences(database, file(b"..."), {**answer, "indexes": {}}) != []


def test_repositories_count_by_history_head_and_index() -> None:
    commits = {
        "x": {"subject": "one", "files": {"a": "1\n"}, "parents": []},
        "y": {"subject": "two", "files": {"a": "2\n"}, "parents": ["x"]},
    }
    answer = {
        "head": "ref: refs/heads/main",
        "refs": {"refs/heads/main": "y", "refs/tags/v1": "x"},
        "commits": commits,
        "index": {"a": "2\n"},
    }
    assert differences(REPOSITORY, other("dir"), answer) == []
    for key, value in {
        "head": "ref: refs/heads/other",
        "refs": {"refs/heads/main": "y"},
        "commits": {**commits, "y": {**commits["y"], "parents": []}},
        "index": {"a": "1\n"},
    }.items():
        assert differences(REPOSITORY, other("dir"), {**answer, key: value}) != []
