"""Trees as the host of containers knows them."""

from __future__ import annotations

import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from katgym.sandbox import LayerStore
from katgym.sandbox.docker_engine import tree
from katgym.sandbox.docker_engine.image_tree import read_tree
from katgym.sandbox.docker_engine.tree import TreeEntry
from katgym.sandbox.layer import FileEntry


def test_later_layer_hides_files_and_what_was_below_them(store: LayerStore):
    lower = store.add_files({"a": b"1", "b/c": b"2", "b/d": b"3", "e/f": b"4"})
    upper = store.add_files(
        {"a": b"5", "b": b"6", "e/g": FileEntry(content=b"7", is_executable=True)}
    )
    merged = tree.merge_layers((lower, upper))
    assert sorted(merged) == ["a", "b", "e", "e/f", "e/g"]
    assert [merged[p].content() for p in ("a", "b", "e/f", "e/g")] == [b"5", b"6", b"4", b"7"]
    assert merged["e/g"].mode == 0o755
    assert merged["e"].kind == "dir"


def test_requests_put_folders_first_and_split_large_content(store, monkeypatch):
    monkeypatch.setattr(tree, "MAX_PUT_BYTES", 5)
    layer = store.add_files({"b/x": b"1234", "a": b"56", "z": b"789012345"})
    requests = list(tree.put_requests(["old"], tree.merge_layers((layer,))))
    assert [[row[0] for row in r.entries] for r in requests] == [["a", "b"], ["b/x"], ["z"]]
    assert [r.payload for r in requests] == [b"56", b"1234", b"789012345"]
    assert [list(r.removed) for r in requests] == [["old"], [], []]


@given(st.dictionaries(st.from_regex(r"[a-c]{1,2}(/[a-c]{1,2}){0,2}", fullmatch=True), st.binary()))
def test_requests_hold_every_path_once_and_parents_first(files):
    present = {p: TreeEntry(kind="file", size=0) for p in files}
    for path in list(present):
        for parent in ("/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1)):
            present[parent] = TreeEntry(kind="dir")
    paths = [row[0] for r in tree.put_requests((), present) for row in r.entries]
    assert sorted(paths) == sorted(present)
    assert all(p.rpartition("/")[0] in ("", *paths[: paths.index(p)]) for p in paths)


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
    found = read_tree(iter([data[:700], data[700:]]), tmp_path / "spool")
    assert sorted(found) == ["hard", "soft", "sub", "sub/run"]
    assert found["hard"].content() == found["sub/run"].content() == b"content"
    assert found["soft"].link == "/usr/bin/env"
    assert read_tree(iter([]), tmp_path / "none") == {}
