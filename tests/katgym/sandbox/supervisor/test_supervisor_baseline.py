"""The workspace inside a sandbox: put there, and what differs from that."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from katgym.sandbox import ChangeKind, WorkspaceDiff
from katgym.sandbox.changes import parse_changes
from katgym.sandbox.supervisor import files
from katgym.sandbox.supervisor.baseline import BaselineTree


def make(root: Path) -> BaselineTree:
    root.mkdir(exist_ok=True)
    return BaselineTree(files.Folders((os.fsencode(root), b"/tmp"), None))


def put(tree: BaselineTree, entries, *, removed=(), payload=b"", is_baseline=True) -> None:
    request = {"removed": list(removed), "entries": entries, "is_baseline": is_baseline}
    tree.put(request, payload)


def changes(tree: BaselineTree, **options) -> WorkspaceDiff:
    request = {"max_bytes": 1000, "max_file_bytes": 100, "max_changes": 100}
    request = {**request, "max_manifest_bytes": 100_000, **options}
    return parse_changes(*tree.changes(request, b""))


def paths(tree: BaselineTree) -> list[str]:
    return [change.path for change in changes(tree)]


def test_entries_are_made_with_modes_and_links(tmp_path):
    tree = make(tmp_path / "w")
    entries = [
        ["a", "dir", 0o755, None],
        ["a/run", "file", 0o755, 3],
        ["a/text", "file", 0o644, 2],
        ["l", "link", 0o777, "a/text"],
        ["locked", "dir", 0, None],
        ["locked/f", "file", 0o644, 1],
    ]
    put(tree, entries, payload=b"runhi1")
    assert (tmp_path / "w/a/run").read_bytes() == b"run"
    assert stat.S_IMODE((tmp_path / "w/a/run").stat().st_mode) == 0o755
    assert (tmp_path / "w/l").read_text() == "hi"
    assert paths(tree) == []
    assert stat.S_IMODE((tmp_path / "w/locked").stat().st_mode) == 0
    (tmp_path / "w/locked").chmod(0o755)
    assert (tmp_path / "w/locked/f").read_bytes() == b"1"


def test_every_kind_of_change_is_told(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    names = ("same", "edited", "gone", "mode", "sub/x")
    put(
        tree,
        [["sub", "dir", 0o755, None], *([n, "file", 0o644, 1] for n in names)],
        payload=b"abcde",
    )
    (root / "edited").write_bytes(b"B")
    (root / "gone").unlink()
    (root / "mode").chmod(0o600)
    (root / "sub").chmod(0o700)
    (root / "new").write_bytes(b"x" * 101)
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    diff = changes(tree)
    assert diff.num_omitted == 0
    told = {c.path: (c.kind, c.file_type, c.mode, c.content) for c in diff}
    assert told == {
        "edited": (ChangeKind.MODIFIED, "file", 0o644, b"B"),
        "gone": (ChangeKind.DELETED, "file", 0o644, None),
        "mode": (ChangeKind.MODE, "file", 0o600, b"d"),
        "sub": (ChangeKind.MODE, "dir", 0o700, None),
        "new": (ChangeKind.ADDED, "file", stat.S_IMODE((root / "new").stat().st_mode), None),
        "link": (ChangeKind.ADDED, "link", 0o777, None),
        "pipe": (ChangeKind.ADDED, "other", stat.S_IMODE((root / "pipe").stat().st_mode), None),
    }
    assert diff["new"].size == 101  # over `max_file_bytes`
    assert diff["link"].link_target == "/etc/passwd"


def test_edit_that_keeps_size_and_times_or_goes_through_a_mapping_is_seen(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [["f", "file", 0o644, 3], ["g", "file", 0o644, 3]], payload=b"abcabc")
    before = (root / "f").stat()
    with (root / "f").open("r+b") as file:
        file.write(b"xyz")
    os.utime(root / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
    with (root / "g").open("r+b") as file, mmap.mmap(file.fileno(), 3) as mapped:
        assert mapped[0] == ord("a")  # on a tmpfs a page that was read first changes no time
        mapped[0] = ord("x")
    found = changes(tree)
    assert (found["f"].content, found["g"].content) == (b"xyz", b"xbc")


def test_change_of_the_baselines_type_or_target_is_a_modification(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    entries = [["d", "dir", 0o755, None], ["d/x", "file", 0o644, 0], ["l", "link", 0o777, "a"]]
    put(tree, entries)
    (root / "d/x").unlink()
    (root / "d").rmdir()
    (root / "d").write_bytes(b"1")
    (root / "l").unlink()
    (root / "l").symlink_to("b")
    told = {c.path: (c.kind, c.file_type, c.link_target) for c in changes(tree)}
    assert told == {
        "d": (ChangeKind.MODIFIED, "file", None),
        "d/x": (ChangeKind.DELETED, "file", None),
        "l": (ChangeKind.MODIFIED, "link", "b"),
    }


def test_put_replaces_whatever_is_in_the_way(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    (root / "a").symlink_to(outside)
    (root / "d").write_text("a file where a folder goes")
    (root / "f").mkdir()
    (root / "f/below").write_text("x")
    entries = [
        ["a", "dir", 0o755, None],
        ["a/f", "file", 0o644, 1],
        ["d", "dir", 0o755, None],
        ["f", "file", 0o644, 1],
    ]
    put(tree, entries, removed=["missing/too"], payload=b"12")
    assert (root / "a/f").read_bytes() == b"1"
    assert (root / "f").read_bytes() == b"2"
    assert (root / "d").is_dir()
    assert (outside / "f").read_text() == "untouched"


def test_changes_beyond_a_limit_are_cut_and_counted(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [])
    for number in range(9):
        (root / f"{number}{'ü' * 100}").write_text("x")
    diff = changes(tree, max_changes=5)
    assert [c.path[0] for c in diff] == ["0", "1", "2", "3", "4"]
    assert diff.num_omitted == 4
    diff = changes(tree, max_manifest_bytes=4000)
    assert len(diff) + diff.num_omitted == 9
    assert diff.num_omitted > 0
    request = {"max_bytes": 0, "max_file_bytes": 0, "max_changes": 9, "max_manifest_bytes": 4000}
    assert tree.changes(request, b"")[0]["manifest_bytes"] <= 4000


def test_fetch_returns_what_fits_and_at_least_one(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    for name, size in (("a", 10), ("b", 10), ("c", 10)):
        (root / name).write_bytes(name.encode() * size)
    request = {"paths": ["a", "b", "c"], "max_bytes": 20}
    assert tree.fetch(request, b"") == ({"lengths": [10, 10]}, b"a" * 10 + b"b" * 10)
    assert tree.fetch({**request, "max_bytes": 1}, b"")[0] == {"lengths": [10]}


def test_part_that_is_put_again_is_no_change_and_another_content_is(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [["a", "file", 0o644, 1], ["b", "file", 0o644, 1]], payload=b"12")
    (root / "a").write_text("edited")
    (root / "new").write_text("new")
    assert paths(tree) == ["a", "new"]
    put(tree, [["a", "file", 0o644, 1]], removed=["new"], payload=b"1", is_baseline=False)
    assert paths(tree) == []
    assert (root / "a").read_bytes() == b"1"
    assert not (root / "new").exists()
    put(tree, [["a", "file", 0o644, 1]], payload=b"2", is_baseline=False)
    assert changes(tree)["a"].content == b"2"


def test_clear_removes_what_is_too_deep_to_be_named(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [["f", "file", 0o644, 1]], payload=b"1")
    before = os.getcwd()
    os.chdir(root)
    try:
        for _ in range(300):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    assert changes(tree, max_changes=1000, max_manifest_bytes=1 << 20).num_omitted == 1
    tree.clear({}, b"")
    assert os.listdir(root) == []
