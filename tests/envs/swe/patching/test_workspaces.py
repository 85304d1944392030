"""What has changed in workspaces and directories, as a patch holds it."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from katgym.sandbox import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.layer import FileEntry, write_tree
from katgym_envs.swe.patching import (
    PatchError,
    apply_patches,
    directory_diff,
    make_workspace_diff,
    parse_diff,
    update_tree,
    workspace_changes,
)

TREE = {"a.py": b"class A:\n    pass\n", "end": b"x\ny"}


def diff_of(*changes: FileChange) -> WorkspaceDiff:
    return WorkspaceDiff(changes=changes)


def test_what_git_and_programs_leave_is_no_change() -> None:
    found = diff_of(
        FileChange(path=".git/HEAD", kind=ChangeKind.ADDED, content=b"x"),
        FileChange(path="d", kind=ChangeKind.ADDED, file_type="dir", mode=0o755),
        FileChange(path="d/__pycache__/m.pyc", kind=ChangeKind.ADDED, content=b"\0"),
        FileChange(path="end", kind=ChangeKind.MODIFIED, content=b"new\n"),
        FileChange(path="a.py", kind=ChangeKind.DELETED),
        FileChange(path="image.png", kind=ChangeKind.ADDED, content=b"\0\1"),
        FileChange(path="l", kind=ChangeKind.ADDED, file_type="link", link_target="end"),
    )
    changes = workspace_changes(found)
    assert changes.left_out == changes.unreadable == {}
    assert set(changes.changes) == {"d/__pycache__/m.pyc", "end", "a.py", "image.png", "l"}
    text = make_workspace_diff(TREE, found)
    assert update_tree(TREE, apply_patches(TREE, parse_diff(text))) == {
        "end": FileEntry(content=b"new\n"),
        "l": FileEntry(link_target="end"),
    }


LINK = FileChange(path="x", kind=ChangeKind.ADDED, file_type="link", link_target="/etc")
NEW = FileChange(path="x", kind=ChangeKind.ADDED, content=b"")
DIR = replace(NEW, content=None, file_type="dir", mode=0o755)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (replace(NEW, content=None, file_type="other"), "is neither a file nor a link"),
        (replace(NEW, content=None, size=1 << 30), "has 1073741824 bytes"),
        (LINK, "the link's target '/etc' leads out of the repository"),
        (replace(NEW, path=".GIT/x"), "patches do not touch git's own directory"),
    ],
)
def test_what_no_patch_may_hold_is_left_out_if_it_is_new(change: FileChange, why: str) -> None:
    fix = FileChange(path="end", kind=ChangeKind.MODIFIED, content=b"new\n")
    found = workspace_changes(diff_of(change, fix))
    assert (list(found.changes), found.left_out) == (["end"], {change.path: why})
    assert not found.unreadable
    told = parse_diff(make_workspace_diff(TREE, diff_of(change, fix)))
    assert [part.path for part in told] == ["end"]
    changed = replace(change, kind=ChangeKind.MODIFIED)
    found = workspace_changes(diff_of(changed, fix))
    assert (found.left_out, found.unreadable) == ({}, {change.path: why})
    with pytest.raises(PatchError, match=re.escape(why)):
        make_workspace_diff(TREE, diff_of(changed, fix))


def test_special_bits_are_no_change_of_what_was_there() -> None:
    bits = [replace(NEW, mode=0o4755), replace(DIR, path="d", mode=0o2755)]
    found = workspace_changes(diff_of(*bits, replace(NEW, path="d/a")))
    assert list(found.changes) == ["d/a"]
    assert found.left_out == {"x": "mode 4755", "d": "mode 2755: the special bits alone"}
    there = workspace_changes(diff_of(*(replace(c, kind=ChangeKind.MODE) for c in bits)))
    assert there.changes == {"x": FileEntry(is_executable=True)}
    assert not there.left_out and not there.unreadable


def tree_changes(*paths: str, base: tuple[str, ...] = ()) -> WorkspaceDiff:
    """Return files added at some paths, with the folders that `base` lacks."""
    folders = {f.as_posix() for p in paths for f in PurePosixPath(p).parents} - {".", *base}
    return diff_of(*(replace(DIR, path=f) for f in sorted(folders)),
                   *(replace(NEW, path=p) for p in paths))  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "base", "kept", "left_out"),
    [
        (("s/.git/HEAD", "s/a.py", "s/t/b.py"), (), [], {"s": "a repository of its own"}),
        (("s/.git", "s/a.py"), (), [], {"s": "a repository of its own"}),  # a worktree
        (("s/.git/HEAD", "s/a.py"), ("s",), ["s/a.py"], {"s/.git": "git's own folder"}),
        (("s/t/.git/HEAD", "s/a.py"), (), ["s/a.py"], {"s/t": "a repository of its own"}),
        ((".git/HEAD", ".git/sub/.git", "a.py"), (), ["a.py"], {}),
        (("v/pyvenv.cfg", "v/lib/a.py", "b.py"), (), ["b.py"], {"v": "a virtual environment"}),
        (
            ("pyvenv.cfg", "lib/p/a.py", "bin/x", "library/b.py"), (),
            ["pyvenv.cfg", "library/b.py"],
            dict.fromkeys(["bin", "lib"], "a virtual environment"),
        ),
        (
            ("s/pyvenv.cfg", "s/lib/a.py", "s/Scripts/x", "s/b.py"), ("s", "s/lib"),
            ["s/pyvenv.cfg", "s/lib/a.py", "s/b.py"],
            {"s/Scripts": "a virtual environment"},
        ),
        (("v/.git/HEAD", "v/e/pyvenv.cfg"), (), [], {"v": "a repository of its own"}),
    ],
)  # fmt: skip
def test_folders_of_others_are_left_out_whole(
    paths: tuple[str, ...], base: tuple[str, ...], kept: list[str], left_out: dict[str, str]
) -> None:
    found = workspace_changes(tree_changes(*paths, base=base))
    assert sorted(found.changes) == sorted(kept)
    assert found.left_out == left_out


def test_changes_that_are_not_listed_are_told_unless_they_are_of_what_was_there() -> None:
    fix = FileChange(path="end", kind=ChangeKind.MODIFIED, content=b"new\n")
    found = workspace_changes(WorkspaceDiff(changes=(fix,), num_omitted=7))
    assert list(found.changes) == ["end"]
    assert found.left_out == {"": "7 new files or folders that were not listed"}
    with pytest.raises(PatchError, match="2 changes of files that were there are too many"):
        workspace_changes(WorkspaceDiff(changes=(fix,), num_omitted=7, num_omitted_base=2))


def test_a_folder_in_the_place_of_a_file_deletes_it() -> None:
    diff = diff_of(
        replace(DIR, path="a.py", kind=ChangeKind.MODIFIED), replace(NEW, path="a.py/b.py")
    )
    assert workspace_changes(diff).changes == {"a.py": None, "a.py/b.py": FileEntry()}


def test_a_directory_is_compared_as_a_sandbox_would(tmp_path: Path) -> None:
    base: dict[str, bytes | FileEntry] = {
        "same": b"1", "same.sh": FileEntry(content=b"1", is_executable=True), "changed": b"1",
        "made.sh": b"1", "gone": b"1", "d/same": b"1", "l": FileEntry(link_target="same"),
        "moved": FileEntry(link_target="same"), "folder": b"1", "file/a": b"1",
    }  # fmt: skip
    write_tree(tmp_path / "w", base)
    root = tmp_path / "w"
    (root / "changed").write_bytes(b"2")
    (root / "made.sh").chmod(0o755)
    (root / "gone").unlink()
    (root / "moved").unlink()
    (root / "moved").symlink_to("changed")
    (root / "folder").unlink()
    (root / "folder/.git/objects").mkdir(parents=True)
    shutil.rmtree(root / "file")
    (root / "file").write_bytes(b"2")
    os.mkfifo(root / "pipe")
    (root / ".git/objects").mkdir(parents=True)
    with (root / "sparse").open("wb") as file:
        file.truncate(17 << 20)
    diff = directory_diff(base, root)
    assert [(c.path, str(c.kind), c.file_type) for c in diff] == [
        (".git", "added", "dir"), ("changed", "modified", "file"), ("file", "modified", "file"),
        ("file/a", "deleted", "file"), ("folder", "modified", "dir"),
        ("folder/.git", "added", "dir"), ("gone", "deleted", "file"), ("made.sh", "mode", "file"),
        ("moved", "modified", "link"), ("pipe", "added", "other"), ("sparse", "added", "file"),
    ]  # fmt: skip
    found = workspace_changes(diff)
    assert found.changes == {
        "changed": FileEntry(content=b"2"), "file": FileEntry(content=b"2"), "file/a": None,
        "folder": None, "gone": None, "made.sh": FileEntry(content=b"1", is_executable=True),
        "moved": FileEntry(link_target="changed"),
    }  # fmt: skip
    assert set(found.left_out) == {"pipe", "sparse", "folder/.git"}
    with pytest.raises(PatchError, match="no such directory"):
        directory_diff(base, tmp_path / "none")
