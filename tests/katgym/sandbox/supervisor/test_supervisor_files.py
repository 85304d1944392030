"""Files through a supervisor: what may be read and written, and that no link leads out."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.supervisor import files, syscalls


async def read(box, path, max_bytes=1000):
    fields = {"path": str(path), "max_bytes": max_bytes}
    return (await box.channel.request("read", fields, max_reply_bytes=max_bytes))[1]


async def write(box, path, data, mode=0o644):
    await box.channel.request("write", {"path": str(path), "mode": mode}, data)


def test_what_is_written_is_read_with_its_mode(supervised):
    async def play(box):
        await write(box, "deep/er/file", b"\x00\xff", mode=0o755)
        await write(box, box.tmp / "x", b"tmp")
        assert await read(box, "deep/er/file") == b"\x00\xff"
        assert await read(box, box.work / "deep/er/file") == b"\x00\xff"
        assert await read(box, box.tmp / "x") == b"tmp"
        assert stat.S_IMODE((box.work / "deep/er/file").stat().st_mode) == 0o755

    supervised(play)


UNREADABLE = {
    "missing": errno.ENOENT,
    "folder": errno.EISDIR,
    ".": errno.EISDIR,
    "": errno.EISDIR,
    "pipe": errno.EINVAL,
    "large": errno.EFBIG,
    "../outside": errno.EXDEV,
    "folder/../../outside": errno.EXDEV,
    "/etc/passwd": errno.EXDEV,
    "link-out": errno.EXDEV,
    "folder-out/outside": errno.EXDEV,
    "absolute-out": errno.EXDEV,
    "/proc/self/status": errno.EXDEV,
    "loop": errno.ELOOP,
}


def test_what_cannot_be_read_says_why(supervised, subtests):
    async def play(box):
        (box.work.parent / "outside").write_text("secret")
        (box.work / "folder").mkdir()
        os.mkfifo(box.work / "pipe")
        (box.work / "large").write_bytes(bytes(1001))
        (box.work / "link-out").symlink_to("../outside")
        (box.work / "folder-out").symlink_to("..")
        (box.work / "absolute-out").symlink_to(box.work.parent / "outside")
        (box.work / "loop").symlink_to("loop")
        for path, number in UNREADABLE.items():
            with subtests.test(path=path):
                with pytest.raises(SandboxFileError) as caught:
                    await read(box, path)
                assert caught.value.errno == number

    supervised(play)


def test_links_that_stay_inside_are_followed(supervised):
    async def play(box):
        (box.work / "a").mkdir()
        (box.work / "a/file").write_text("content")
        (box.work / "relative").symlink_to("a/../a/file")
        (box.work / "absolute").symlink_to(box.work / "a/file")
        (box.work / "folder").symlink_to(box.work / "a")
        await write(box, "folder/new", b"through a link")
        found = [await read(box, name) for name in ("relative", "absolute", "folder/file")]
        assert found == [b"content"] * 3
        assert (box.work / "a/new").read_bytes() == b"through a link"

    supervised(play)


def test_write_replaces_a_link_and_never_follows_it_and_leaves_nothing_else(supervised):
    async def play(box):
        outside = box.work.parent / "outside"
        outside.write_text("untouched")
        (box.work / "link").symlink_to(outside)
        (box.work / "folder").symlink_to(box.work.parent)
        (box.work / "taken").mkdir()
        await write(box, "link", b"new")
        with pytest.raises(SandboxFileError, match="leads out"):
            await write(box, "folder/outside", b"bad")
        with pytest.raises(SandboxFileError, match="leads out"):
            await write(box, "../outside", b"bad")
        with pytest.raises(SandboxFileError):
            await write(box, "taken", b"x")
        assert outside.read_text() == "untouched"
        assert not (box.work / "link").is_symlink()
        assert sorted(os.listdir(box.work)) == ["folder", "link", "taken"]  # no temporary file

    supervised(play)


def test_fallback_without_openat2_follows_the_same_rules(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSYS, "no such system call")

    monkeypatch.setattr(syscalls, "openat2", refuse)
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_text("content")
    (root / "in").symlink_to("a/file")
    (root / "out").symlink_to("../secret")
    (tmp_path / "secret").write_text("secret")
    folders = files.Folders((os.fsencode(root),), None)
    assert files.read_file(folders, b"in", 100) == b"content"
    assert files.read_file(folders, b"a/../in", 100) == b"content"
    for path in (b"out", b"../secret", b"a/../../secret"):
        with pytest.raises(OSError, match="leads out"):
            files.read_file(folders, path, 100)


def test_wipe_empties_hostile_trees(supervised):
    async def play(box):
        before = os.getcwd()
        os.chdir(box.tmp)
        try:
            for _ in range(300):
                os.mkdir("d" * 100)
                os.chdir("d" * 100)
        finally:
            os.chdir(before)
        locked = box.tmp / "locked"
        locked.mkdir()
        (locked / "file").write_text("x")
        locked.chmod(0)
        outside = box.work / "kept"
        outside.write_text("kept")
        (box.tmp / "link").symlink_to(box.work)
        await box.channel.request("wipe", timeout_s=300)
        assert os.listdir(box.tmp) == []
        assert outside.read_text() == "kept"

    supervised(play)
