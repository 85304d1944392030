"""Trees inside a sandbox: put there, and what changed since."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

from katgym.sandbox.supervisor import files
from katgym.sandbox.supervisor.trees import Tree


def make(root: Path) -> Tree:
    root.mkdir(exist_ok=True)
    return Tree(files.Folders((os.fsencode(root), b"/tmp"), None))


def put(tree: Tree, entries, *, removed=(), payload=b"", is_complete=True) -> None:
    request = {"removed": list(removed), "entries": entries}
    tree.put({**request, "is_marked": True, "is_complete": is_complete}, payload, [])


def changes(tree: Tree, **options) -> tuple[dict[str, list], int]:
    """Return path -> row with its content in the last place, and how much was left out."""
    request = {"max_bytes": 1000, "max_file_bytes": 100, "max_changes": 100}
    request = {**request, "max_manifest_bytes": 10_000, **options}
    reply, data = tree.changes(request, b"", [])
    end = reply["manifest_bytes"]
    rows = {}
    for row in json.loads(data[:end]):
        content = None
        if row[5]:
            content, end = data[end : end + row[3]], end + row[3]
        rows[row[0]] = [*row[1:5], content]
    assert end == len(data)
    return rows, reply["omitted"]


def settled(tree: Tree) -> None:
    """Mark again once the clock has ticked, so that nothing is a candidate for its age only."""
    time.sleep(0.02)
    put(tree, [])


def test_entries_are_made_with_modes_and_links(tmp_path):
    tree = make(tmp_path / "w")
    entries = [
        ["a", "dir", 0o755, None],
        ["a/run", "file", 0o755, 3],
        ["a/text", "file", 0o644, 2],
        ["l", "link", 0o777, "a/text"],
    ]
    put(tree, entries, payload=b"runhi")
    assert (tmp_path / "w/a/run").read_bytes() == b"run"
    assert stat.S_IMODE((tmp_path / "w/a/run").stat().st_mode) == 0o755
    assert (tmp_path / "w/l").read_text() == "hi"
    assert changes(tree)[0].keys() <= {"a/run", "a/text", "l"}  # of this tick, perhaps


def test_every_kind_of_change_is_told(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    names = ("same", "edited", "gone", "mode", "sub/x")
    put(
        tree,
        [["sub", "dir", 0o755, None], *([n, "file", 0o644, 1] for n in names)],
        payload=b"abcde",
    )
    settled(tree)
    (root / "edited").write_bytes(b"B")
    (root / "gone").unlink()
    (root / "mode").chmod(0o600)
    (root / "sub").chmod(0o700)
    (root / "new").write_bytes(b"x" * 101)
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    rows, omitted = changes(tree)
    assert omitted == 0
    assert rows["edited"] == ["file", 0o644, 1, None, b"B"]
    assert rows["gone"][0] is None
    assert rows["mode"] == ["file", 0o600, 1, None, b"d"]
    assert rows["sub"][:2] == ["dir", 0o700]
    assert rows["new"] == ["file", 0o644, 101, None, None]  # over `max_file_bytes`
    assert rows["link"][3] == "/etc/passwd"
    assert rows["pipe"][0] == "other"
    assert "same" not in rows
    assert "sub/x" not in rows


def test_edit_that_keeps_size_and_mtime_is_seen(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [["f", "file", 0o644, 3]], payload=b"abc")
    settled(tree)
    before = (root / "f").stat()
    with (root / "f").open("r+b") as file:
        file.write(b"xyz")
    os.utime(root / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changes(tree)[0]["f"][4] == b"xyz"


def test_edit_right_after_the_mark_is_seen(tmp_path):
    for number in range(50):
        root = tmp_path / str(number)
        tree = make(root)
        put(tree, [["f", "file", 0o644, 1]], payload=b"a")
        with (root / "f").open("r+b") as file:
            file.write(b"b")
        assert changes(tree)[0]["f"][4] == b"b"


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


def test_folder_without_permissions_keeps_them(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    entries = [["d", "dir", 0, None], ["d/f", "file", 0o644, 1]]
    put(tree, entries, payload=b"1")
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0
    (root / "d").chmod(0o755)
    assert (root / "d/f").read_bytes() == b"1"


def test_changes_beyond_the_limit_are_counted(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [])
    for number in range(7):
        (root / str(number)).write_text("x")
    rows, omitted = changes(tree, max_changes=5)
    assert (len(rows), omitted) == (5, 2)


def test_fetch_returns_what_fits_and_at_least_one(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    for name, size in (("a", 10), ("b", 10), ("c", 10)):
        (root / name).write_bytes(name.encode() * size)
    request = {"paths": ["a", "b", "c"], "max_bytes": 20}
    assert tree.fetch(request, b"", []) == ({"lengths": [10, 10]}, b"a" * 10 + b"b" * 10)
    assert tree.fetch({**request, "max_bytes": 1}, b"", [])[0] == {"lengths": [10]}


def test_part_that_is_put_again_is_no_change(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [["a", "file", 0o644, 1], ["b", "file", 0o644, 1]], payload=b"12")
    settled(tree)
    (root / "a").write_text("edited")
    (root / "new").write_text("new")
    put(tree, [["a", "file", 0o644, 1]], removed=["new"], payload=b"1", is_complete=False)
    time.sleep(0.02)
    rows, _ = changes(tree)
    assert rows.keys() <= {"a"}
    assert (root / "a").read_bytes() == b"1"
    assert not (root / "new").exists()


def test_long_list_is_cut_and_counted(tmp_path):
    root = tmp_path / "w"
    tree = make(root)
    put(tree, [])
    for number in range(9):
        (root / f"{number}{'ü' * 100}").write_text("x")
    rows, omitted = changes(tree, max_manifest_bytes=4000)
    assert len(rows) + omitted == 9
    assert omitted > 0
    request = {"max_bytes": 0, "max_file_bytes": 0, "max_changes": 9, "max_manifest_bytes": 4000}
    assert tree.changes(request, b"", [])[0]["manifest_bytes"] <= 4000


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
    _, omitted = changes(tree, max_changes=1000, max_manifest_bytes=1 << 20)
    assert omitted == 1
    tree.clear({}, b"", [])
    assert os.listdir(root) == []
