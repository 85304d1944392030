"""Reads an sdist, a tar or zip file by a stranger, into `{path: bytes}` without touching the disk.

Nothing is extracted, so there is no path to escape to; sizes are counted while they are unpacked.
Not here: fetching it (`sdist.py`). It does not protect against what the files say: they are run in
a sandbox only.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from katgym.errors import UsageError

# Of a tar file, besides contents: headers and the filling of blocks.
_BYTES_OF_MEMBER = 2048
_BYTES_OF_END = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """How much an sdist may hold."""

    max_files: int = 20_000
    max_file_bytes: int = 32 << 20
    max_bytes: int = 256 << 20
    """Unpacked, all files together."""


def read_sdist(path: Path, *, limits: ArchiveLimits | None = None) -> dict[str, bytes]:
    """Return the files below the sdist's one top folder, sorted by path.

    A link to a file of the archive becomes that file. Raises `UsageError` for what is not an sdist,
    for a path or link that leaves the folder, a device, and anything over the limits.
    """
    limits = limits or ArchiveLimits()
    data = path.read_bytes()
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            members = _zip_members(data)
        else:
            members = _tar_members(_unpack(data, limits))
        files = _collect(members, limits)
    except _UNSOUND as e:
        raise UsageError(f"{path.name} is not a sound sdist: {type(e).__name__}: {e}") from e
    except _RefusedError as e:
        raise UsageError(f"{path.name} is refused: {e}") from e
    if not files:
        raise UsageError(f"{path.name} holds no files")
    tops = {member.split("/", 1)[0] for member in files}
    if len(tops) != 1 or any("/" not in member for member in files):
        raise UsageError(
            f"{path.name} is not an sdist: it holds {sorted(tops)[:4]} instead of 1 folder"
        )
    folders = {str(parent) for member in files for parent in PurePosixPath(member).parents}
    both = folders.intersection(files)
    if both:
        raise UsageError(f"{path.name} is refused: {min(both)!r} is both a file and a folder")
    return {member.split("/", 1)[1]: files[member] for member in sorted(files)}


# RuntimeError: an encrypted zip, an unknown compression, links in a circle.
_UNSOUND = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, KeyError,
    RuntimeError,
)  # fmt: skip


class _RefusedError(Exception):
    """A member that no honest sdist has."""


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    stream: IO[bytes]


def _unpack(data: bytes, limits: ArchiveLimits) -> io.BytesIO:
    """Return the tar file, unpacked here as tarfile reads a header of any size at once."""
    reader: IO[bytes] = io.BytesIO(data)
    for magic, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open)):
        if data.startswith(magic):
            reader = cast(IO[bytes], opened(io.BytesIO(data)))
    with reader:
        most = limits.max_bytes + limits.max_files * _BYTES_OF_MEMBER + _BYTES_OF_END
        unpacked = reader.read(most + 1)
    if len(unpacked) > most:
        raise _RefusedError(f"its files are larger than {limits.max_bytes} bytes together")
    return io.BytesIO(unpacked)


def _tar_members(unpacked: io.BytesIO) -> Iterator[_Member]:
    with tarfile.open(fileobj=unpacked, mode="r:") as archive:
        for info in archive:
            try:
                tarfile.data_filter(info, "/nowhere")
            except tarfile.FilterError as e:
                raise _RefusedError(str(e).replace("/nowhere", "the archive")) from e
            if info.isdir():
                continue
            if info.issparse():
                raise _RefusedError(f"{info.name!r} is a sparse file")
            content = archive.extractfile(info)
            if content is not None:  # a link to a folder
                yield _Member(info.name, content)


def _zip_members(data: bytes) -> Iterator[_Member]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise _RefusedError(f"{info.filename!r} is a link or a device")
            with archive.open(info) as content:
                yield _Member(info.filename, content)


def _collect(members: Iterator[_Member], limits: ArchiveLimits) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for member in members:
        path = member.path
        if path.startswith("/") or "\\" in path or "\0" in path or ".." in path.split("/"):
            raise _RefusedError(f"{path!r} is not a path inside the archive")
        path = str(PurePosixPath(path))
        content = member.stream.read(limits.max_file_bytes + 1)
        total += len(content)
        if len(content) > limits.max_file_bytes:
            raise _RefusedError(f"{path!r} is larger than {limits.max_file_bytes} bytes")
        if total > limits.max_bytes:
            raise _RefusedError(f"its files are larger than {limits.max_bytes} bytes together")
        files[path] = content
        if len(files) > limits.max_files:
            raise _RefusedError(f"it holds more than {limits.max_files} files")
    return files
