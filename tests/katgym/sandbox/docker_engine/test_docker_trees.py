"""Trees as the host of containers knows them."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.sandbox import ChangeKind, LayerStore
from katgym.sandbox.docker_engine import trees
from katgym.sandbox.docker_engine.image_tree import read_tree
from katgym.sandbox.docker_engine.trees import Entry, Row
from katgym.sandbox.layer import FileEntry


def row(path="f", kind="file", mode=0o644, size=1, link=None, content=b"x") -> Row:
    return Row(path=path, kind=kind, mode=mode, size=size, link=link, content=content)


@pytest.fixture
def entry(tmp_path) -> Entry:
    """Return the entry of a file "x"."""
    source = tmp_path / "source"
    source.write_bytes(b"..x..")
    return Entry(kind="file", mode=0o644, size=1, source=source, offset=2)


def test_later_layer_hides_files_and_what_was_below_them(store: LayerStore):
    lower = store.add_files({"a": b"1", "b/c": b"2", "b/d": b"3", "e/f": b"4"})
    upper = store.add_files(
        {"a": b"5", "b": b"6", "e/g": FileEntry(content=b"7", is_executable=True)}
    )
    merged = trees.merged_tree((lower, upper))
    assert sorted(merged) == ["a", "b", "e", "e/f", "e/g"]
    assert [merged[p].content() for p in ("a", "b", "e/f", "e/g")] == [b"5", b"6", b"4", b"7"]
    assert merged["e/g"].mode == 0o755
    assert merged["e"].kind == "dir"


def test_requests_put_folders_first_and_split_large_content(store, monkeypatch):
    monkeypatch.setattr(trees, "MAX_PUT_BYTES", 5)
    layer = store.add_files({"b/x": b"1234", "a": b"56", "z": b"789012345"})
    requests = list(trees.put_requests(["old"], trees.merged_tree((layer,))))
    assert [[row[0] for row in r.entries] for r in requests] == [["a", "b"], ["b/x"], ["z"]]
    assert [r.payload for r in requests] == [b"56", b"1234", b"789012345"]
    assert [list(r.removed) for r in requests] == [["old"], [], []]


@given(st.dictionaries(st.from_regex(r"[a-c]{1,2}(/[a-c]{1,2}){0,2}", fullmatch=True), st.binary()))
def test_requests_hold_every_path_once_and_parents_first(files):
    present = {p: Entry(kind="file", size=0) for p in files}
    for path in list(present):
        for parent in ("/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)):
            present[parent] = Entry(kind="dir")
    paths = [row[0] for r in trees.put_requests((), present) for row in r.entries]
    assert sorted(paths) == sorted(present)
    assert all(p.rpartition("/")[0] in ("", *paths[: paths.index(p)]) for p in paths)


@pytest.mark.parametrize(
    ("found", "kind", "differs"),
    [
        (row(), ChangeKind.MODIFIED, False),
        (row(content=b"y"), ChangeKind.MODIFIED, True),
        (row(content=None), ChangeKind.MODIFIED, True),
        (row(size=2, content=b"xx"), ChangeKind.MODIFIED, True),
        (row(mode=0o755), ChangeKind.MODE, True),
        (row(mode=0o755, content=b"y"), ChangeKind.MODIFIED, True),
        (row(kind="link", link="x", content=None), ChangeKind.MODIFIED, True),
        (row(kind=None), ChangeKind.DELETED, True),
    ],
)
def test_row_against_a_file_of_the_layers(entry, found, kind, differs):
    assert found.differs(entry) is differs
    assert found.change(entry).kind is kind


def test_row_that_is_not_in_the_layers_is_added():
    assert row().differs(None)
    assert row().change(None).kind is ChangeKind.ADDED
    assert not row(kind=None).differs(None)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", 7])
def test_row_with_a_path_outside_is_refused(path):
    with pytest.raises(ValueError, match="not a path below the workspace"):
        Row.parse([path, "file", 0o644, 0, None, False], None)


def test_row_with_an_unknown_type_is_refused():
    with pytest.raises(ValueError, match="not a type of file"):
        Row.parse(["x", "device", 0o644, 0, None, False], None)


def test_tree_of_an_image_keeps_modes_links_and_hard_links(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, extra in (
            ("testbed", tarfile.DIRTYPE, ""),
            ("testbed/sub", tarfile.DIRTYPE, ""),
            ("testbed/sub/run", tarfile.REGTYPE, "content"),
            ("testbed/hard", tarfile.LNKTYPE, "testbed/sub/run"),
            ("testbed/soft", tarfile.SYMTYPE, "/usr/bin/env"),
            ("testbed/device", tarfile.CHRTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                info.size = len(extra)
                tar.addfile(info, io.BytesIO(extra.encode()))
            else:
                info.linkname = extra
                tar.addfile(info)
    data = buffer.getvalue()
    tree = read_tree(iter([data[:700], data[700:]]), tmp_path / "spool")
    assert sorted(tree) == ["hard", "soft", "sub", "sub/run"]
    assert tree["hard"].content() == tree["sub/run"].content() == b"content"
    assert tree["soft"].link == "/usr/bin/env"
    assert read_tree(iter([]), tmp_path / "none") == {}
