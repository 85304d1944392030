"""Diffs that git and other tools write: applied as git applies them, and the other way round."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching import (
    PatchError,
    PatchFailure,
    apply_patches,
    parse_diff,
    update_tree,
)

Tree = dict[str, FileEntry]


def noise(seed: int, size: int) -> bytes:
    """Return bytes that no compression shortens."""
    return random.Random(seed).randbytes(size)


def file(content: bytes, *, is_executable: bool = False) -> FileEntry:
    return FileEntry(content=content, is_executable=is_executable)


LINES = b"".join(b"line %d\n" % i for i in range(60))
TREES: list[Tree] = [
    {
        "a.py": file(LINES),
        "bin/tool": file(b"#!/bin/sh\necho\n", is_executable=True),
        "bin/run me.sh": file(b"echo\n"),
        "caf\u00e9.txt": file(b"\xff\xfe\n"),
        "crlf.txt": file(b"one\r\ntwo\r\nthree\r\n"),
        "empty": file(b""),
        "gone/x": file(b"no newline"),
        "gone/binary": file(noise(1, 100) + b"\0"),
        "image.png": file(noise(2, 3000) + b"\0"),
        "link": FileEntry(link_target="a.py"),
        "old name.py": file(b"".join(b"def f%d(): pass\n" % i for i in range(30))),
        "exact.py": file(b"".join(b"x%d = %d\n" % (i, i) for i in range(30))),
        'q"uo\\te': file(b"x\n"),
        "tab\tbed\nand broken": file(b"x\n"),
        "turns": file(b"into a link\n"),
        "-- dashes": file(b"-- \n--- a/x\n+++ b/x\n@@ -1 +1 @@\ntext\n"),
    }
]
TREES.append(
    TREES[0]
    | {
        "a.py": file(LINES.replace(b"line 3\n", b"").replace(b"line 50\n", b"x\ny\n")),
        "bin/tool": file(b"#!/bin/sh\necho 1\n", is_executable=True),
        "bin/run me.sh": file(b"echo 1", is_executable=True),
        "caf\u00e9.txt": file(b"\xff\xff\n"),
        "crlf.txt": file(b"one\r\n2\r\nthree\r\nfour"),
        "image.png": file(noise(2, 2900) + b"!\0" + noise(2, 3000)[1000:]),
        "image 2.png": file(noise(3, 500) + b"\0", is_executable=True),
        "link": FileEntry(link_target="bin/run me.sh"),
        "new/deep/file": file(b"new\n"),
        "new/empty": file(b""),
        "new name.py": file(TREES[0]["old name.py"].content.replace(b"f7", b"g7")),
        "moved/ex\u00e4ct.py": TREES[0]["exact.py"],
        "copy.py": file(LINES + b"more\n"),
        'q"uo\\te': file(b"y\n"),
        "tab\tbed\nand broken": file(b"y\n"),
        "turns": FileEntry(link_target="empty"),
        "-- dashes": file(b"--- a/x\n+++ b/x\n@@ -1 +1 @@\ntext\n-- \n"),
    }
)
for name in ("gone/x", "gone/binary", "old name.py", "exact.py"):
    del TREES[1][name]
TREES.append(
    TREES[1]
    | {
        "a.py": file(b"first\n" + TREES[1]["a.py"].content),
        "bin/tool": file(b"#!/bin/sh\necho 1\n"),
        "image 2.png": file(noise(3, 500) + b"\0\0"),
        "new/empty": file(b"not empty\n"),
        "turns": file(b"a file again\n"),
        "gone/x": file(b"back\n"),
    }
)
del TREES[2]["new/deep/file"]


def git(folder: Path, *arguments: str, data: bytes = b"") -> bytes:
    """Return what git prints; nobody's settings count."""
    env = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(folder)}
    env |= {f"GIT_{who}_{what}": "x@x" for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(["git", *arguments], cwd=folder, input=data, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_tree(folder: Path, tree: Tree) -> None:
    for path, entry in tree.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        if entry.link_target is not None:
            place.symlink_to(entry.link_target)
        else:
            place.write_bytes(entry.content)
            place.chmod(0o755 if entry.is_executable else 0o644)


def read_tree(folder: Path) -> Tree:
    tree: Tree = {}
    for place in folder.rglob("*"):
        path = str(place.relative_to(folder))
        if place.is_symlink():
            tree[path] = FileEntry(link_target=str(place.readlink()))
        elif place.is_file() and not path.startswith(".git/"):
            is_executable = bool(place.stat().st_mode & 0o100)
            tree[path] = FileEntry(content=place.read_bytes(), is_executable=is_executable)
    return tree


def commit(folder: Path, tree: Tree, message: str) -> None:
    if (folder / ".git").exists():
        git(folder, "rm", "-rqf", "--ignore-unmatch", ".")
    else:
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", ".")
    write_tree(folder, tree)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a commit for each of TREES, tagged 0, 1 and 2."""
    folder = tmp_path_factory.mktemp("repository")
    message = "Change much\n\n- one thing\n--- another ---\n\n  @@ -1 +1 @@\n"
    for index, tree in enumerate(TREES):
        commit(folder, tree, message)
        git(folder, "tag", f"v{index}")
    return folder


def applied_by_git(folder: Path, start: str, text: bytes, *arguments: str) -> Tree:
    git(folder, "checkout", "-qf", start)
    git(folder, "clean", "-fdq")
    git(folder, *arguments, data=text)
    return read_tree(folder)


def applied(tree: Tree | dict[str, bytes], text: str | bytes) -> Tree:
    return update_tree(tree, apply_patches(tree, parse_diff(text)))


DIFFS = [
    ("diff", "v0", "v1"),
    ("diff", "-M", "-C", "--find-copies-harder", "v0", "v1"),
    ("diff", "-B", "-M", "v0", "v1"),
    ("diff", "--no-renames", "v0", "v1"),
    ("diff", "--no-prefix", "v0", "v1"),
    ("diff", "--no-prefix", "-M", "v0", "v1"),
    ("diff", "--src-prefix=old/", "--dst-prefix=new/", "v0", "v1"),
    ("diff", "--src-prefix=before/", "--dst-prefix=now/", "-M", "v0", "v1"),
    ("diff", "--full-index", "--function-context", "--inter-hunk-context=9", "v0", "v1"),
    ("diff", "-U1", "--minimal", "v0", "v1"),
    ("diff", "-U99", "v0", "v1"),
    ("diff", "--raw", "--stat", "--summary", "-p", "v0", "v1"),
    ("diff", "-R", "v1", "v0"),
    ("-c", "core.quotePath=false", "diff", "v0", "v1"),
    ("show", "v1"),
    ("show", "--format=email", "--stat", "-p", "v1"),
    ("show", "--format=fuller", "-M", "v1"),
    ("log", "-p", "-1", "v1"),
    ("log", "-p", "-1", "--oneline", "-M", "v1"),
    ("format-patch", "--stdout", "v0..v1"),
    ("format-patch", "--stdout", "--base=v0", "--no-stat", "v0..v1"),
    ("format-patch", "--stdout", "--attach", "v0..v1"),
    ("format-patch", "--stdout", "--cover-letter", "--signature=so long", "v0..v1"),
]  # fmt: skip


@pytest.mark.parametrize("command", DIFFS, ids=" ".join)
def test_what_git_writes_is_applied_as_git_applies_it(
    repository: Path, command: tuple[str, ...]
) -> None:
    at = next(
        i for i, word in enumerate(command) if word in ("diff", "show", "log", "format-patch")
    )
    text = git(repository, *command[: at + 1], "--binary", *command[at + 1 :])
    strip = "-p0" if "--no-prefix" in command else "-p1"
    assert applied_by_git(repository, "v0", text, "apply", strip) == TREES[1]
    assert applied(TREES[0], text) == TREES[1]


@pytest.mark.parametrize(
    "sides", [("--cached", "v0"), ("v1",), (), ("--cached", "-R", "v0")], ids=" ".join
)
def test_mnemonic_prefixes_are_read(tmp_path: Path, sides: tuple[str, ...]) -> None:
    commit(tmp_path, TREES[0], "before")
    git(tmp_path, "tag", "v0")
    commit(tmp_path, TREES[1], "after")
    git(tmp_path, "tag", "v1")
    write_tree(tmp_path, {"a.py": file(b"worktree\n"), "empty": file(b"1\n")})
    prefixes = "-c", "diff.mnemonicPrefix=true"
    text = git(tmp_path, *prefixes, "diff", "--binary", *sides)
    assert b"diff --git a/" not in text
    start = "v1" if "v0" not in sides or "-R" in sides else "v0"
    git(tmp_path, "stash", "-q")
    assert applied(TREES[int(start[1:])], text) == applied_by_git(tmp_path, start, text, "apply")


@pytest.mark.parametrize("base", ["v0", "v1"])
def test_mails_and_logs_are_applied_commit_by_commit(repository: Path, base: str) -> None:
    number = int(base[1:])
    mails = git(repository, "format-patch", "--stdout", "--binary", f"{base}..v2")
    assert applied_by_git(repository, base, mails, "am", "-q", "--keep-cr") == TREES[2]
    git(repository, "checkout", "-qf", "v0")
    assert applied(TREES[number], mails) == TREES[2]
    for form in ("medium", "oneline", "email", "raw"):
        log = git(repository, "log", "-p", "--reverse", "--binary", f"--format={form}",
                  "-M", f"{base}..v2")  # fmt: skip
        assert applied(TREES[number], log) == TREES[2]
    diffs = [git(repository, "diff", "--binary", *v) for v in (("v0", "v1"), ("v1", "v2"))]
    with pytest.raises(PatchError, match="twice"):
        applied(TREES[0], b"".join(diffs))


@pytest.mark.parametrize("line_end", [rb"\r?\n", rb"\n"], ids=["unix2dos", "naive"])
def test_mails_in_crlf_are_applied_to_files_with_and_without(
    repository: Path, line_end: bytes
) -> None:
    mail = git(repository, "format-patch", "--stdout", "--binary", "v0..v1")
    mail = re.sub(line_end, b"\r\n", mail)
    if line_end == rb"\n":  # git takes one CR off each line
        assert applied_by_git(repository, "v0", mail, "am", "-q", "--no-keep-cr") == TREES[1]
    assert applied(TREES[0], mail) == TREES[1]


def test_a_part_with_headers_in_lf_is_exact_beside_one_in_crlf() -> None:
    text = FIRST.replace("\n", "\r\n") + SECOND.replace("+q\n", "+q\r\n")
    crlf = {"x.py": file(SMALL["x.py"].content.replace(b"\n", b"\r\n"))}
    assert applied(crlf, text) == {"x.py": file(b"1\r\ntwo\r\n"), "n": file(b"q\r\n")}


def test_an_executable_file_stays_so_where_the_tree_knows_no_modes(repository: Path) -> None:
    before = {p: e.content for p, e in TREES[0].items() if e.link_target is None}
    text = git(repository, "diff", "v0", "v1", "--", "bin", "a.py")
    after = applied(before, text)
    for path in ("bin/tool", "bin/run me.sh", "a.py"):
        assert after[path] == TREES[1][path]
    # Modes named win over a file's own, a mode that is left alone does not.
    executable = {"a.py": file(LINES, is_executable=True)}
    text = git(repository, "diff", "v0", "v1", "--", "a.py")
    assert applied(executable, text)["a.py"].is_executable
    text = b"diff --git a/a.py b/a.py\nold mode 100755\nnew mode 100644\nindex 1..2 100755\n"
    assert applied(executable, text)["a.py"] == file(LINES)


def test_a_merge_is_refused_with_the_way_out(tmp_path: Path) -> None:
    commit(tmp_path, {"a": file(b"1\n2\n3\n")}, "base")
    git(tmp_path, "checkout", "-qb", "other")
    commit(tmp_path, {"a": file(b"1\n2\n4\n")}, "other")
    git(tmp_path, "checkout", "-q", "-")
    commit(tmp_path, {"a": file(b"0\n2\n3\n")}, "one")
    git(tmp_path, "merge", "-q", "--no-commit", "other")
    write_tree(tmp_path, {"a": file(b"0\nboth\n4\n")})
    git(tmp_path, "commit", "-qam", "merge")
    for option in ("--cc", "-c"):
        with pytest.raises(PatchError, match="git diff PARENT MERGE"):
            parse_diff(git(tmp_path, "show", option))
    text = git(tmp_path, "diff", "HEAD^", "HEAD")
    assert applied({"a": file(b"0\n2\n3\n")}, text)["a"].content == b"0\nboth\n4\n"


@pytest.mark.parametrize("form", ["short", "log", "diff"])
def test_a_submodule_is_left_out_or_refused(tmp_path: Path, form: str) -> None:
    commit(tmp_path, {"a": file(b"1\n")}, "none")
    for number, name in ((1, "new"), (2, "changed")):
        git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{number:040x},my sub")
        write_tree(tmp_path, {"a": file(b"%d\n" % (number + 1))})
        git(tmp_path, "add", "a")
        git(tmp_path, "commit", "-qm", name)
    git(tmp_path, "rm", "-q", "--cached", "my sub")
    write_tree(tmp_path, {"a": file(b"4\n")})
    git(tmp_path, "commit", "-qam", "deleted")
    for number in (1, 2, 3):
        tree = {"a": file(b"%d\n" % number)}
        text = git(tmp_path, "diff", f"--submodule={form}", f"HEAD~{4 - number}",
                   f"HEAD~{3 - number}")  # fmt: skip
        with pytest.raises(PatchError, match="my sub: a submodule"):
            applied(tree, text)
        left_out: dict[str, str] = {}
        changes = apply_patches(tree, parse_diff(text), left_out=left_out)
        assert changes == {"a": file(b"%d\n" % (number + 1))}
        assert list(left_out) == ["my sub"]


def test_what_diff_writes_of_two_folders_is_applied_as_git_applies_it(tmp_path: Path) -> None:
    texts = {path: entry for path, entry in TREES[0].items() if entry.link_target is None}
    texts = {p: e for p, e in texts.items() if b"\0" not in e.content and p.isascii()}
    del texts["tab\tbed\nand broken"]
    after = texts | {"a.py": TREES[1]["a.py"], "new/deep": file(b"new\n")}
    del after["gone/x"]
    repository = tmp_path / "repository"
    commit(repository, texts, "before")
    git(repository, "tag", "v0")
    for name, tree in (("old", texts), ("new", after)):
        write_tree(tmp_path / name, tree)
    for names in (("old", "new"), ("./old", "./new")):
        done = subprocess.run(
            ["diff", "-ruN", *names], cwd=tmp_path, capture_output=True, check=False
        )
        text = done.stdout.replace(b"./", b"")
        assert applied_by_git(repository, "v0", text, "apply") == after
        assert applied(texts, text) == after


SMALL = {"x.py": file(b"one\ntwo\n"), "d/y": file(b"p"), "empty": file(b"")}
BODY = "-one\n+1\n two\n"
HUNK = f"@@ -1,2 +1,2 @@\n{BODY}"
TEXTS = {
    "timestamps": f"--- a/x.py\t2024-05-01 10:00:00.1 +0200\n+++ b/x.py\t2024-05-01\n{HUNK}",
    "timestamps behind a blank": "--- a/x.py 2024-05-01 10:00:00.000000000 +0000\n"
    f"+++ b/x.py 2024-05-01 10:00:00.000000000 +0000\n{HUNK}",
    "no folder": f"--- x.py\t2024-05-01\n+++ x.py\t2024-05-01\n{HUNK}",
    "a saved copy": f"--- x.py.orig\n+++ x.py\n{HUNK}",
    "a new copy": f"--- x.py\n+++ x.py~\n{HUNK}",
    "other folders": f"--- one-1.0/x.py\n+++ one-1.1/x.py\n{HUNK}",
    "this folder": f"--- ./x.py\n+++ ./x.py\n{HUNK}",
    "mercurial": "# HG changeset patch\n# User x\n# Date 0 0\n"
    f"# Node ID {'1' * 40}\n# Parent  {'0' * 40}\ntext\n\n"
    f"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n{HUNK}"
    "diff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1,1 @@\n+q\n",
    "mercurial without git": "diff -r 1 -r 2 x.py\n--- a/x.py\tThu Jan 01 00:00:00 2024 +0000\n"
    f"+++ b/x.py\tThu Jan 01 00:00:01 2024 +0000\n{HUNK}diff -r 1 -r 2 n\n"
    "--- /dev/null\tThu Jan 01 00:00:00 1970 +0000\n+++ b/n\tThu Jan 01 00:00:01 2024 +0000\n"
    "@@ -0,0 +1,1 @@\n+q\n",
    "subversion": "Index: n\n" + 67 * "=" + "\n--- n\t(nonexistent)\n+++ n\t(working copy)\n"
    f"@@ -0,0 +1 @@\n+q\nIndex: x.py\n{67 * '='}\n--- x.py\t(revision 1)\n"
    f"+++ x.py\t(working copy)\n{HUNK}",
    "new by /dev/null, no folder": "--- /dev/null\n+++ n\n@@ -0,0 +1 @@\n+q\n",
    "new under two names": "--- a/n\n+++ b/n\n@@ -0,0 +1 @@\n+q\n",
    "into an empty file": "--- a/empty\n+++ b/empty\n@@ -0,0 +1 @@\n+q\n",
    "empty, not gone": "--- a/x.py\t2024-05-01 00:00:00 +0000\n"
    "+++ b/x.py\t1970-01-01 00:00:01 +0000\n@@ -1,2 +0,0 @@\n-one\n-two\n",
    "gone by its timestamp": "--- a/x.py\t2024-05-01 00:00:00 +0000\n"
    "+++ b/x.py\t1970-01-01 01:00:00.000 +0100\n@@ -1,2 +0,0 @@\n-one\n-two\n",
    "a marker in another language": "--- a/d/y\n+++ b/d/y\n@@ -1 +1 @@\n-p\n"
    "\\ Kein Zeilenumbruch am Dateiende.\n+q\n\\ Kein Zeilenumbruch am Dateiende.\n",
    "text behind @@": f"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@ def f(): @@ -1 +1 @@\n{BODY}",
    "names change places": "diff --git a/x.py b/d/y\nsimilarity index 100%\nrename from x.py\n"
    "rename to d/y\ndiff --git a/d/y b/x.py\nsimilarity index 100%\nrename from d/y\n"
    "rename to x.py\n",
    "a quoted rename": 'diff --git a/x.py "b/\\303\\251\\t\\"\\\\"\nsimilarity index 60%\n'
    'rename from x.py\nrename to "\\303\\251\\t\\"\\\\"\nindex 1..2 100644\n--- a/x.py\n'
    f'+++ "b/\\303\\251\\t\\"\\\\"\n{HUNK}',
    "headers in CRLF, lines in LF": f"--- a/x.py\r\n+++ b/x.py\r\n@@ -1,2 +1,2 @@\r\n{BODY}",
    "a mode alone": "diff --git a/x.py b/x.py\nold mode 100644\nnew mode 100755\n",
    "two files": f"--- a/x.py\n+++ b/x.py\n{HUNK}\n\n--- a/empty\n+++ b/empty\n@@ -0,0 +1 @@\n+q\n",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_other_tools_are_applied_as_git_applies_them(tmp_path: Path, kind: str) -> None:
    commit(tmp_path, SMALL, "before")
    git(tmp_path, "tag", "v0")
    text = TEXTS[kind].encode()
    expected = applied_by_git(tmp_path, "v0", text, "apply")
    assert applied(SMALL, text) == expected != SMALL


# Text between parts: what is known is skipped, what may be a damaged header is not.

FIRST = f"--- a/x.py\n+++ b/x.py\n{HUNK}"
SECOND = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+q\n"
SKIPPED = {
    "a mail's end": "-- \n2.39.5\n\n\n",
    "a mail's end without its blank": "--\n2.39.5\n\n",
    "a footer": "-- \n2.39.5\n\n_______\nA list\nhttps://lists.invalid\n\n"
    "From a@b Mon Jan 1 10:00:00 2024\nFrom: a\nSubject: b\n\n- one\n+ two\n---\n x | 2 +-\n\n",
    "the end of an attachment": "\n--------------2.39.5--\n\n",
    "a mail program's head": "Return-Path: <a@b>\nReceived: from a\n by b; x\nX-Spam: no\n"
    "From: =?UTF-8?q?x?= <a@b>\nSubject: [PATCH] change\n more\nDate: x\n\nSome text\n---\n\n",
    "a log's head": f"\ncommit {'1' * 40} (HEAD -> main, tag: v1)\nAuthor: x <a@b>\n\n"
    "    Text\n\n    diff --git a/z b/z\n    @@ -1 +1 @@\n\n",
    "a short log's head": "\n1234567 Merge\n\n2345678 Subject\n",
    "a hash alone": f"{'a' * 40}\n\n",
    "mercurial's head": "# HG changeset patch\n# User x\n\ntext\n\n",
    "mercurial's log": "\nchangeset:   1:1234567890ab\nuser:        x\nsummary:     y\n\n",
    "names of files": f"Only in new: z\nIndex: n\n{'=' * 67}\ndiff -ru old/n new/n\n",
    "a base": f"\nbase-commit: {'1' * 40}\nprerequisite-patch-id: {'2' * 40}\n-- \n2.39.5\n",
    "a dirty submodule": "Submodule sub contains modified content\n",
    "an untouched file": "diff --git a/d/y b/d/y\n",
}  # fmt: skip
DAMAGED = {
    "prose": "I also changed this:\n",
    "a damaged header": "dif --git a/n b/n\n",
    "a header line alone": "new file mode 100644\n",
    "lines beyond the hunk's count": " three\n+four\n",
    "such lines after a removed dash": "-- \n three\n-four\n",
    "such lines, then a mail": " three\nFrom: x\n\n",
    "a hunk in a mail's text": "From: x\nSubject: y\n\ndif --git a/n b/n\n@@ -1 +1 @@\n",
    "a hash and prose": "1234567 Subject\nprose\n",
}


@pytest.mark.parametrize("kind", SKIPPED)
def test_what_tools_write_between_parts_is_skipped(kind: str) -> None:
    expected = applied(SMALL, FIRST + SECOND)
    assert applied(SMALL, FIRST + SKIPPED[kind] + SECOND) == expected
    assert applied(SMALL, (FIRST + SKIPPED[kind] + SECOND).replace("\n", "\r\n")) == expected
    assert applied(SMALL, FIRST + SECOND + SKIPPED[kind]) == expected


@pytest.mark.parametrize("kind", DAMAGED)
def test_what_may_be_a_damaged_header_is_not_skipped(kind: str) -> None:
    for text in (FIRST + DAMAGED[kind] + SECOND, FIRST + DAMAGED[kind]):
        with pytest.raises(PatchError) as caught:
            parse_diff(text)
        assert caught.value.reason is PatchFailure.MALFORMED


# Parts that cannot be applied.

LINK_OUT = (
    "diff --git a/out b/out\nnew file mode 120000\n--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n"
    "+/etc\n\\ No newline at end of file\n"
)
NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\nindex 0000000..1234567\n"
ADDED = {
    "binary": NEW.format("out", 100644) + "Binary files /dev/null and b/out differ\n",
    "binary of diff": "Binary files /dev/null and b/out differ\n",
    "binary, abbreviated": NEW.format("out", 100755)
    + "GIT binary patch\nliteral 0\nHcmV?d00001\n\n",
    "submodule": NEW.format("out", 160000)
    + f"--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n+Subproject commit {'1' * 40}\n",
    "submodule's log": "Submodule out 0000000...1234567 (new submodule)\n",
    "setuid": NEW.format("out", 104755) + "--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n+x\n",
    "folder": NEW.format("out", "040000"),
    "link": LINK_OUT,
    "copy": "diff --git a/x.py b/out\nsimilarity index 50%\ncopy from x.py\ncopy to out\n"
    "index 1234567..2345678 100644\nBinary files a/x.py and b/out differ\n",
}
CHANGED = {
    "binary": "diff --git a/x.py b/x.py\nindex 1..2 100644\n"
    "Binary files a/x.py and b/x.py differ\n",
    "binary of diff": "Binary files old/x.py and new/x.py differ\n",
    "deleted": "diff --git a/x.py b/x.py\ndeleted file mode 100644\nindex 1..0\n"
    "Binary files a/x.py and /dev/null differ\n",
    "mode": "diff --git a/x.py b/x.py\nold mode 100644\nnew mode 104755\n",
    "submodule over a file": NEW.format("x.py", 160000),
    "link over a file": LINK_OUT.replace("out", "x.py"),
    "unknown": "diff --git a/z b/z\nindex 1..2 100644\nBinary files a/z and b/z differ\n",
    "renamed": "diff --git a/x.py b/z\nsimilarity index 50%\nrename from x.py\nrename to z\n"
    "index 1234567..2345678 100644\nBinary files a/x.py and b/z differ\n",
}


@pytest.mark.parametrize("kind", ADDED)
def test_a_part_that_only_adds_what_cannot_be_applied_is_left_out(kind: str) -> None:
    text = ADDED[kind] + SECOND
    with pytest.raises(PatchError) as caught:
        applied(SMALL, text)
    left_out: dict[str, str] = {}
    assert apply_patches(SMALL, parse_diff(text), left_out=left_out) == {"n": file(b"q\n")}
    assert left_out == {"out": caught.value.text}
    assert not any(part.hunks for part in parse_diff(text) if part.problem is not None)
    # Over a path that is there it is an error all the same.
    with pytest.raises(PatchError):
        apply_patches(SMALL | {"out": file(b"")}, parse_diff(text), left_out={})


@pytest.mark.parametrize("kind", CHANGED)
def test_a_part_that_changes_a_file_and_cannot_be_applied_is_an_error(kind: str) -> None:
    patches = parse_diff(CHANGED[kind] + SECOND)
    for left_out in (None, {}):
        with pytest.raises(PatchError):
            apply_patches(SMALL, patches, left_out=left_out)
        assert not left_out


def test_what_one_commit_adds_and_a_later_one_deletes_is_no_change() -> None:
    delete = (
        "diff --git a/n b/n\ndeleted file mode 100644\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-q\n"
    )
    changes = apply_patches(SMALL, parse_diff(f"{SECOND}commit 1234567\n\n{delete}"))
    assert changes == {}


def test_later_commits_about_a_path_that_is_left_out_are_left_out_too() -> None:
    head = "From 1234567 Mon Sep 17 00:00:00 2001\nSubject: x\n\n"
    change = "diff --git a/out b/out\nindex 1..2 100644\nBinary files a/out and b/out differ\n"
    rename = "diff --git a/out b/out2\nsimilarity index 100%\nrename from out\nrename to out2\n"
    delete = "diff --git a/out2 b/out2\ndeleted file mode 100644\nindex 1..0\n"
    delete += "Binary files a/out2 and /dev/null differ\n"
    text = head.join(["", ADDED["binary"] + SECOND, change, rename, delete])
    left_out: dict[str, str] = {}
    assert apply_patches(SMALL, parse_diff(text), left_out=left_out) == {"n": file(b"q\n")}
    assert set(left_out) == {"out", "out2"}


def test_nothing_is_put_below_a_link_that_is_left_out() -> None:
    text = LINK_OUT + "--- /dev/null\n+++ b/out/n\n@@ -0,0 +1 @@\n+q\n"
    with pytest.raises(PatchError) as caught:
        apply_patches(SMALL, parse_diff(text), left_out={})
    assert caught.value.reason is PatchFailure.PATH_ESCAPES


HOSTILE = ("/etc/x", "../x", "d/../../x", ".git/config", "d/.GIT/x", "a\\000b")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_path_out_of_the_repository_is_refused_in_every_form(name: str) -> None:
    forms = [
        '--- "a/{0}"\n+++ "b/{0}"\n@@ -1 +1 @@\n-a\n+b\n',
        '--- "{0}"\n+++ "{0}"\n@@ -1 +1 @@\n-a\n+b\n',
        '--- /dev/null\n+++ "b/{0}"\n@@ -0,0 +1 @@\n+b\n',
        'diff --git "a/{0}" "b/{0}"\nnew file mode 100644\n',
        'diff --git "{0}" "{0}"\nnew file mode 100644\n',
        'diff --git a/x.py "b/{0}"\nrename from x.py\nrename to "{0}"\n',
        'diff --git "a/{0}" "b/{0}"\nnew file mode 160000\nindex 0..1\n',
    ]
    if "\\" not in name:
        forms += ["Submodule {0} 0000000...1234567 (new submodule)\n",
                  "Binary files /dev/null and b/{0} differ\n",
                  "Binary files a/{0} and b/{0} differ\n"]  # fmt: skip
    for form in forms:
        with pytest.raises(PatchError) as caught:
            parse_diff(form.format(name))
        assert caught.value.reason.startswith("path_"), (form, caught.value)


@pytest.mark.parametrize("prefix", ["..", ""])
def test_no_prefix_leads_out_of_the_repository(prefix: str) -> None:
    texts = (
        f"--- {prefix}/x.py\n+++ b/x.py\n{HUNK}",
        f"diff --git {prefix}/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n{HUNK}",
        f"diff --git a/x.py b/x.py\n--- a/x.py\n+++ {prefix}/x.py\n{HUNK}",
        f"Binary files {prefix}/x.py and b/x.py differ\n",
    )
    for text in texts:
        with pytest.raises(PatchError) as caught:
            parse_diff(text)
        assert caught.value.reason in (PatchFailure.PATH_ESCAPES, PatchFailure.PATH_ABSOLUTE)


# Binary patches.


def base85(data: bytes) -> bytes:
    """Return `literal` lines of data, as git writes them."""
    packed, lines = zlib.compress(data), b""
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        letter = bytes([64 + len(piece) if len(piece) < 27 else 70 + len(piece)])
        lines += letter + base64.b85encode(piece + b"\0" * (-len(piece) % 4)) + b"\n"
    return lines


def blob_name(data: bytes) -> bytes:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest().encode()


def binary_patch(old: bytes, new: bytes, kind: bytes, data: bytes, size: int = -1) -> bytes:
    size = len(data) if size < 0 else size
    head = b"diff --git a/f b/f\nindex %s..%s 100644\nGIT binary patch\n" % (
        blob_name(old),
        blob_name(new),
    )
    return head + b"%s %d\n" % (kind, size) + base85(data) + b"\n"


OLD, LONG = b"old\0content" * 9, noise(5, 0x10020)
PAST = b"\x63\x02\x91\x62\x02"
"""98 bytes on, 2 bytes: one too many."""
DELTAS = {
    "copy": (OLD, OLD[3:50], b"\x63\x2f\x91\x03\x2f"),
    "insert": (OLD, b"new\0" + OLD, b"\x63\x67\x04new\0\x90\x63"),
    "copy of 65536 bytes": (LONG, LONG[2:0x10002], b"\xa0\x80\x04\x80\x80\x04\x81\x02"),
    "copy with long numbers": (
        LONG,
        LONG[0x110:0x310],
        b"\xa0\x80\x04\x80\x04\xb3\x10\x01\x00\x02",
    ),
}


@pytest.mark.parametrize("kind", DELTAS)
def test_a_delta_is_applied_as_git_applies_it(tmp_path: Path, kind: str) -> None:
    old, new, delta = DELTAS[kind]
    text = binary_patch(old, new, b"delta", delta)
    commit(tmp_path, {"f": file(old)}, "before")
    git(tmp_path, "tag", "v0")
    assert applied_by_git(tmp_path, "v0", text, "apply") == {"f": file(new)}
    assert applied({"f": file(old)}, text) == {"f": file(new)}


GOOD = binary_patch(OLD, b"new\0", b"literal", b"new\0")
BROKEN = {
    "another base": (GOOD.replace(blob_name(OLD), blob_name(b"other")), "made from"),
    "another result": (GOOD.replace(blob_name(b"new\0"), blob_name(b"other")), "another content"),
    "abbreviated": (GOOD.replace(blob_name(OLD), blob_name(OLD)[:10]), "index line"),
    "no index line": (re.sub(rb"index .*\n", b"", GOOD), "index line"),
    "a size too small": (GOOD.replace(b"literal 4", b"literal 3"), "3 bytes"),
    "a size too large": (GOOD.replace(b"literal 4", b"literal 5"), "5 bytes"),
    "a bomb": (binary_patch(OLD, b"", b"literal", bytes(1 << 20), size=9), "9 bytes"),
    "a bomb that says so": (binary_patch(OLD, b"", b"literal", b"", size=65 << 20), "more than"),
    "a bomb of many parts": (
        b"".join(
            binary_patch(OLD, b"", b"literal", bytes(1 << 20)).replace(b"/f", b"/f%d" % i)
            for i in range(65)
        ),
        "more than",
    ),
    "a bomb of a delta": (binary_patch(OLD, b"", b"delta", b"\x63\x80\x80\x80\x7f"), "more than"),
    "no contents": (GOOD[: GOOD.index(b"literal")], "literal SIZE"),
    "no lines": (GOOD[: GOOD.index(b"literal 4\n") + 10], "does not inflate"),
    "no base 85": (re.sub(rb"(literal 4\n.)....", rb"\1,,,,", GOOD), "no line"),
    "too large a group": (re.sub(rb"(literal 4\n.).....", rb"\1~~~~~", GOOD), "base 85"),
    "another length": (re.sub(rb"(literal 4\n).", rb"\1z", GOOD), "as long as"),
    "no zlib": (re.sub(rb"(literal 4\n.).....", rb"\g<1>00000", GOOD), "zlib"),
    "more lines": (GOOD.replace(b"\n\n", b"\n" + base85(b"x") + b"\n"), "does not inflate"),
    "a delta of another size": (binary_patch(OLD, b"", b"delta", b"\x62\x00"), "98 bytes"),
    "a delta that makes less": (binary_patch(OLD, b"x", b"delta", b"\x63\x02\x01x"), "names 2"),
    "a delta that makes more": (binary_patch(OLD, b"x", b"delta", b"\x63\x00\x01x"), "broken"),
    "a delta beyond its base": (binary_patch(OLD, b"x", b"delta", PAST), "broken"),
    "a delta that ends early": (binary_patch(OLD, b"x", b"delta", b"\x63\x02\x02x"), "broken"),
    "a delta that ends in a copy": (binary_patch(OLD, b"x", b"delta", b"\x63\x02\x9f\1"), "broken"),
    "a reserved instruction": (binary_patch(OLD, b"x", b"delta", b"\x63\x02\x00"), "broken"),
    "a delta without sizes": (binary_patch(OLD, b"x", b"delta", b"\x63\x82"), "sizes"),
    "a broken way back": (GOOD + b"literal 9\n,,\n", "no line"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_binary_patch_is_refused(kind: str) -> None:
    text, words = BROKEN[kind]
    with pytest.raises(PatchError, match=words) as caught:
        applied({"f": file(OLD)}, text)
    assert caught.value.reason is PatchFailure.BINARY
    assert applied({"f": file(OLD)}, GOOD.rstrip()) == {"f": file(b"new\0")}


# Damaged diffs.


@pytest.fixture(scope="module")
def diffs(repository: Path) -> list[bytes]:
    commands = [c for c in DIFFS if c[0] in ("diff", "format-patch", "log")]
    texts = [git(repository, c[0], "--binary", *c[1:]) for c in commands]
    texts.append(git(repository, "diff", "v0", "v1"))
    return [*texts, *(text.replace(b"\n", b"\r\n") for text in texts[:2])]


@given(data=st.data())
def test_a_damaged_diff_is_read_or_refused(diffs: list[bytes], data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(diffs)).split(b"\n")
    places = st.integers(0, len(lines) - 1)
    pieces = st.sampled_from(
        [
            b"\n",
            b" ",
            b"\r",
            b"\0",
            b"\\ ",
            b'"',
            b"-",
            b"+",
            b"0",
            b"9" * 9,
            b"a/",
            b"../",
            b"\xff",
        ]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = data.draw(places) % len(lines), data.draw(places) % len(lines)
        column = data.draw(st.integers(0, len(lines[at])))
        kind = data.draw(st.sampled_from(["cut", "put", "swap", "drop", "end"]))
        if kind == "cut":
            lines[at] = lines[at][:column] + lines[at][column + 1 :]
        elif kind == "put":
            lines[at] = lines[at][:column] + data.draw(pieces) + lines[at][column:]
        elif kind == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "end":
            lines = lines[: at + 1]
    try:
        apply_patches(TREES[0], parse_diff(b"\n".join(lines)), left_out={})
    except PatchError as e:
        assert str(e)
