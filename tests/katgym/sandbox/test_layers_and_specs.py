"""Layers are named by their content and lead nowhere else; specs of sandboxes are checked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.errors import UsageError
from katgym.sandbox import LayerStore, SandboxLimits, SandboxSpec
from katgym.sandbox.layer import FileEntry


def test_equal_trees_are_stored_once_whatever_their_order(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    one = store.add_files({"a": b"1", "d/b": FileEntry(content=b"2", is_executable=True)})
    two = store.add_files({"d/b": FileEntry(content=b"2", is_executable=True), "a": b"1"})
    assert one == two
    assert [p.name for p in tmp_path.iterdir()] == [one.digest]
    assert (one.path / "a").read_bytes() == b"1"
    assert stat.S_IMODE((one.path / "d/b").stat().st_mode) == 0o755
    assert store.get(one.digest) == one and store.get("0" * 64) is None


@pytest.mark.parametrize(
    "other",
    [
        {"a": b"2"},
        {"b": b"1"},
        {"a": FileEntry(content=b"1", is_executable=True)},
        {"a": FileEntry(link_target="1")},
        {"a": b"1", "b": b""},
    ],
)
def test_whatever_differs_changes_the_digest(
    tmp_path: Path, other: dict[str, bytes | FileEntry]
) -> None:
    store = LayerStore(tmp_path)
    assert store.add_files({"a": b"1"}).digest != store.add_files(other).digest


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


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "./a", "", "a\0b", "a/"])
def test_paths_that_are_not_plainly_relative_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="not a relative path"):
        LayerStore(tmp_path).add_files({path: b""})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "target"), [("l", "/etc"), ("l", ".."), ("d/l", "../../x")])
def test_links_that_lead_out_are_refused(tmp_path: Path, path: str, target: str) -> None:
    with pytest.raises(UsageError, match="leads out of the tree"):
        LayerStore(tmp_path).add_files({path: FileEntry(link_target=target)})


def test_a_file_that_is_also_a_directory_and_special_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a file and the directory of 'a/b'"):
        LayerStore(tmp_path / "s").add_files({"a": b"", "a/b": b""})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="'pipe' is neither file, link nor directory"):
        LayerStore(tmp_path / "s").add_directory(tmp_path)
    with pytest.raises(UsageError, match="no such directory"):
        LayerStore(tmp_path / "s").add_directory(tmp_path / "none")


@pytest.mark.parametrize("field", ["wall_s", "memory_bytes", "max_files"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "7", True])
def test_limits_are_positive_or_none(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"{field} is a finite number > 0 or None, got {value!r}"):
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


@pytest.mark.parametrize("workdir", ["workspace", "/", "/a/../b"])
def test_a_workdir_is_absolute_and_below_the_root(workdir: str) -> None:
    with pytest.raises(UsageError, match="workdir is an absolute path below /"):
        SandboxSpec(workdir=workdir)


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"": "1"}, {"A": "\0"}])
def test_variables_are_checked(env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="not an environment variable"):
        SandboxSpec(env=env)
