"""Sdists are read whole, and a hostile archive is refused with the reason."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym_envs.swe.packages import read_sdist
from katgym_envs.swe.packages.sdist_archive import ArchiveLimits

FILES = {"pkg-1.0/PKG-INFO": b"Name: pkg\n", "pkg-1.0/pkg/__init__.py": b"x = 1\r\n\x00\xff"}
READ = {"PKG-INFO": b"Name: pkg\n", "pkg/__init__.py": b"x = 1\r\n\x00\xff"}


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def tar(
    path: Path, *more: tarfile.TarInfo, files: dict[str, bytes] = FILES, mode: str = "w:gz"
) -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = member(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return path


def zipped(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_every_kind_of_archive_is_read_below_its_top_folder(tmp_path: Path) -> None:
    folder = member("pkg-1.0/empty", tarfile.DIRTYPE)
    for mode in ("w:gz", "w:bz2", "w:xz", "w"):
        found = read_sdist(tar(tmp_path / "pkg-1.0.tar.gz", folder, mode=mode))
        assert list(found.items()) == sorted(READ.items()), mode
    assert read_sdist(zipped(tmp_path / "pkg-1.0.zip")) == READ


def test_link_inside_becomes_the_file(tmp_path: Path) -> None:
    for kind, target in ((tarfile.SYMTYPE, "PKG-INFO"), (tarfile.LNKTYPE, "pkg-1.0/PKG-INFO")):
        path = tar(tmp_path / "a.tar.gz", member("pkg-1.0/README", kind, target))
        assert read_sdist(path)["README"] == b"Name: pkg\n", kind


def test_hostile_tar_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = (
        (member("pkg-1.0/../../evil"), "a.tar.gz is refused: 'pkg-1.0/../../evil'"),
        (member("/etc/evil"), "'/etc/evil' is not a path inside the archive"),
        (member("pkg-1.0/a\\b"), "is not a path inside the archive"),
        (member("pkg-1.0/a", tarfile.SYMTYPE, "/etc/passwd"), "a.tar.gz is refused"),
        (member("pkg-1.0/a", tarfile.SYMTYPE, "../../x"), "would link to"),
        (member("pkg-1.0/a", tarfile.LNKTYPE, "../x"), "a.tar.gz is refused"),
        (member("pkg-1.0/a", tarfile.SYMTYPE, "missing"), "is not a sound sdist: KeyError"),
        (member("pkg-1.0/a", tarfile.SYMTYPE, "a"), "is not a sound sdist: RecursionError"),
        (member("pkg-1.0/a", tarfile.CHRTYPE), "is a special file"),
        (member("pkg-1.0/a", tarfile.BLKTYPE), "is a special file"),
        (member("pkg-1.0/a", tarfile.FIFOTYPE), "is a special file"),
        (member("other-1.0/a"), "holds ['other-1.0', 'pkg-1.0'] instead of 1 folder"),
        (member("setup.py"), "instead of 1 folder"),
        (member("pkg-1.0/pkg"), "'pkg-1.0/pkg' is both a file and a folder"),
    )
    for bad, message in cases:
        with subtests.test(name=bad.name, kind=bad.type, link=bad.linkname):
            with pytest.raises(UsageError) as raised:
                read_sdist(tar(tmp_path / "a.tar.gz", bad))
            assert message in str(raised.value)
            assert list(tmp_path.iterdir()) == [tmp_path / "a.tar.gz"]


def test_hostile_zip_is_refused(tmp_path: Path) -> None:
    for name in ("pkg-1.0/../../evil", "/etc/evil", "pkg-1.0/..\\evil"):
        with pytest.raises(UsageError, match="is not a path inside the archive"):
            read_sdist(zipped(tmp_path / "a.zip", {**FILES, name: b"x"}))
    path = zipped(tmp_path / "a.zip")
    link = zipfile.ZipInfo("pkg-1.0/a")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(UsageError, match=r"'pkg-1\.0/a' is a link or a device"):
        read_sdist(path)


def test_limits_hold_for_both_kinds(tmp_path: Path) -> None:
    limits = ArchiveLimits(max_files=3, max_file_bytes=1000, max_bytes=2500)
    cases = {
        "'p/0' is larger than 1000 bytes": [1001],
        "its files are larger than 2500 bytes together": [900, 900, 900],
        "it holds more than 3 files": [1, 1, 1, 1],
    }
    for message, sizes in cases.items():
        files = {f"p/{i}": b"\0" * size for i, size in enumerate(sizes)}
        for path in (tar(tmp_path / "a.tar.gz", files=files), zipped(tmp_path / "a.zip", files)):
            with pytest.raises(UsageError, match=message):
                read_sdist(path, limits=limits)
    at_limit = {"p/a": b"\0" * 1000, "p/b": b"\0" * 1000, "p/c": b"\0" * 500}
    assert len(read_sdist(tar(tmp_path / "b.tar.gz", files=at_limit), limits=limits)) == 3


def test_bomb_in_a_header_is_not_unpacked(tmp_path: Path) -> None:
    """A pax header of 400 MB, packed into one: tarfile alone would read all of it."""
    header = member("header", tarfile.XHDTYPE)
    header.size = 400 << 20
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.fileobj.write(header.tobuf(tarfile.USTAR_FORMAT))  # type: ignore[union-attr]
        for _ in range(400):
            archive.fileobj.write(bytes(1 << 20))  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="are larger than 1048576 bytes together"):
        read_sdist(path, limits=ArchiveLimits(max_bytes=1 << 20))


def test_what_is_no_archive_or_half_of_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    whole = tar(path).read_bytes()
    none = (b"", b"no archive", b"\x1f\x8bbroken", b"BZhbroken", b"\xfd7zXZbroken", b"PK\x05\x06")
    for content in none:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"^a\.tar\.gz (is not a sound sdist|holds no files)"):
            read_sdist(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"^a\.tar\.gz is not a sound sdist"):
        read_sdist(path)
