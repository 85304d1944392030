"""What goes into sandboxes and comes out: layers, specs, and lists of changes, which may lie."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.errors import UsageError
from katgym.sandbox import LayerStore, SandboxLimits, SandboxSpec
from katgym.sandbox.changes import FileChange, parse_changes
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.supervisor.change_list import ChangeList


def test_equal_trees_are_stored_once_whatever_their_order(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    one = store.add_files({"a": b"1", "d/b": FileEntry(content=b"2", is_executable=True)})
    two = store.add_files({"d/b": FileEntry(content=b"2", is_executable=True), "a": b"1"})
    assert one == two
    assert [p.name for p in tmp_path.iterdir()] == [one.digest]
    assert (one.path / "a").read_bytes() == b"1"
    assert stat.S_IMODE((one.path / "d/b").stat().st_mode) == 0o755
    assert store.get(one.digest) == one and store.get("0" * 64) is None


def test_whatever_differs_changes_the_digest(tmp_path: Path) -> None:
    trees: list[dict[str, bytes | FileEntry]] = [
        {"a": b"1"},
        {"a": b"2"},
        {"b": b"1"},
        {"a": FileEntry(content=b"1", is_executable=True)},
        {"a": FileEntry(link_target="1")},
        {"a": b"1", "b": b""},
    ]
    store = LayerStore(tmp_path)
    assert len({store.add_files(tree).digest for tree in trees}) == len(trees)


@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=4))
def test_content_cannot_pass_for_a_path(pairs: list[tuple[bytes, bytes]]) -> None:
    from katgym.sandbox.layer import _digest

    tree = {os.fsdecode(b"f" + k.replace(b"/", b"").replace(b"\0", b"")): v for k, v in pairs}
    entries = {path: FileEntry(content=content) for path, content in tree.items()}
    joined = {"f": FileEntry(content=b"".join(k.encode("utf-8", "replace") for k in tree))}
    assert (_digest(entries) == _digest(joined)) == (entries == joined)


def test_a_directory_is_copied_without_git_and_caches(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    (source / ".git/config").write_text("x")
    (source / "pkg/__pycache__").mkdir(parents=True)
    (source / "pkg/__pycache__/a.pyc").write_text("x")
    (source / "pkg/a.py").write_text("a")
    (source / "link").symlink_to("pkg/a.py")
    (source / "folder_link").symlink_to("pkg")
    layer = LayerStore(tmp_path / "store").add_directory(source)
    found = sorted(p.relative_to(layer.path).as_posix() for p in layer.path.rglob("*"))
    assert found == ["folder_link", "link", "pkg", "pkg/a.py"]
    assert (layer.path / "folder_link").readlink() == Path("pkg")


def test_paths_and_links_that_lead_out_are_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    store = LayerStore(tmp_path)
    for path in ("/a", "../a", "a/../b", "a//b", "./a", "", "a\0b", "a/"):
        with subtests.test(path=path), pytest.raises(UsageError, match="not a relative path"):
            store.add_files({path: b""})
    for path, target in (("l", "/etc"), ("l", ".."), ("d/l", "../../x")):
        leads_out = pytest.raises(UsageError, match="leads out of the tree")
        with subtests.test(path=path, target=target), leads_out:
            store.add_files({path: FileEntry(link_target=target)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_also_a_directory_and_special_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a file and the directory of 'a/b'"):
        LayerStore(tmp_path / "s").add_files({"a": b"", "a/b": b""})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="'pipe' is neither file, link nor directory"):
        LayerStore(tmp_path / "s").add_directory(tmp_path)
    with pytest.raises(UsageError, match="no such directory"):
        LayerStore(tmp_path / "s").add_directory(tmp_path / "none")


def test_limits_are_positive_or_none(subtests: pytest.Subtests) -> None:
    for field in ("wall_s", "memory_bytes", "max_files"):
        for value in (0, -1, float("nan"), float("inf"), "7", True):
            text = f"{field} is a finite number > 0 or None, got {value!r}"
            with subtests.test(text), pytest.raises(UsageError, match=text):
                SandboxLimits(**{field: value})  # type: ignore[arg-type]


def test_tightening_takes_the_smaller_of_each() -> None:
    one = SandboxLimits(wall_s=5, cpu_s=None, max_processes=10)
    two = SandboxLimits(wall_s=None, cpu_s=3, max_processes=20)
    both = one.tighten(two)
    assert (both.wall_s, both.cpu_s, both.max_processes) == (5, 3, 10)
    assert both == two.tighten(one)


def test_further_folders_are_absolute_and_lie_apart() -> None:
    assert SandboxSpec(workdir="/app", folders=("/logs", "/applications")).folders[0] == "/logs"
    for folders in (("/app/logs",), ("/app",), ("/logs/a", "/logs")):
        with pytest.raises(UsageError, match="workdir and folders lie apart"):
            SandboxSpec(workdir="/app", folders=folders)
    with pytest.raises(UsageError, match="each of folders is an absolute path"):
        SandboxSpec(folders=("logs",))


def test_workdirs_are_below_the_root_and_variables_have_names() -> None:
    for workdir in ("workspace", "/", "/a/../b"):
        with pytest.raises(UsageError, match="workdir is an absolute path below /"):
            SandboxSpec(workdir=workdir)
    for env in ({"A=B": "1"}, {"": "1"}, {"A": "\0"}):
        with pytest.raises(UsageError, match="not an environment variable"):
            SandboxSpec(env=env)


def parsed(row: list[Any], payload: bytes = b"") -> FileChange:
    """Return the change of a list of one, which a sandbox sent."""
    manifest = json.dumps([row]).encode()
    reply = {"manifest_bytes": len(manifest), "omitted": 0, "omitted_base": 0}
    return parse_changes(reply, manifest + payload)[str(row[0])]


def test_changes_that_are_packed_are_parsed_in_order_with_contents() -> None:
    changes = ChangeList()
    for path, size in (("b", 3), ("a", 2), ("c\udcff", 200)):
        changes.add(path, "added", 0o100644, size, None)
    changes.add("l", "added", 0o120777, 7, "over/there")
    reply, payload = changes.pack(
        lambda path, size: path.encode()[:1] * size, max_file_bytes=100, max_bytes=4, most=3
    )
    diff = parse_changes(reply, payload)
    told = [(c.path, c.size, c.content) for c in diff]
    assert told == [("a", 2, b"aa"), ("b", 3, None), ("c\udcff", 200, None)]
    assert diff.num_omitted == 1 and not diff.is_complete


def test_what_is_added_takes_no_room_of_what_is_changed() -> None:
    changes = ChangeList(max_manifest_bytes=5 * 150)
    for number in range(9):
        changes.add(f"a/{number}", "added", 0o100644, 1 + number, None)
    changes.add("z/changed", "modified", 0o100644, 9, None)
    changes.add("z/gone", "deleted", 0o100644, 9, None)
    changes.add("new", "added", 0o100644, 3, None)
    reply, payload = changes.pack(
        lambda path, size: path.encode()[:1] * size, max_file_bytes=100, max_bytes=12, most=5
    )
    diff = parse_changes(reply, payload)
    told = {c.path: c.content for c in diff}
    assert told == {"a/0": b"a", "a/1": b"aa", "a/2": None, "z/changed": b"z" * 9, "z/gone": None}
    assert (diff.num_omitted, diff.num_omitted_base) == (7, 0)


def test_a_list_of_changes_that_makes_no_sense_is_refused(subtests: pytest.Subtests) -> None:
    assert parsed(["x", "added", "file", 0o644, 2, None, 2], b"12").content == b"12"
    cases = (
        *(((path, "added", "file"), "not a path below the workspace")
          for path in ("/etc/passwd", "../x", "a/../../x", 7)),
        (("x", "added", "device"), "not a type of file: 'device'"),
        (("x", "lost", "file"), "'lost' is not a valid ChangeKind"),
    )  # fmt: skip
    for row, text in cases:
        with subtests.test(row=row), pytest.raises(ValueError, match=text):
            parsed([*row, 0o644, 0, None, -1])
    with pytest.raises(ValueError, match="of which the list explains"):
        parsed(["x", "added", "file", 0o644, 2, None, 2], b"123")
    with pytest.raises(ValueError, match="not a list of changes"):
        parse_changes({"omitted": 0}, b"")
    with pytest.raises(OSError, match="the diff failed: no memory"):
        parse_changes({"error": "no memory"}, b"")
