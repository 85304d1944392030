"""Reads an sdist, a tar or zip file by a stranger, into `{path: bytes}` without touching the disk.

Nothing is extracted, so there is no path to escape to; sizes are counted while they are unpacked.
Not here: fetching it (`sdist.py`). It does not protect against what the files say: they are run in
a sandbox only.
"""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from katgym.errors import UsageError


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
        members = _zip_members(data) if zipfile.is_zipfile(io.BytesIO(data)) else _tar_members(data)
        files = _collect(members, limits)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as e:
        raise UsageError(f"{path.name} is not a sound sdist: {type(e).__name__}: {e}") from e
    except _RefusedError as e:
        raise UsageError(f"{path.name} is refused: {e}") from e
    if not files:
        raise UsageError(f"{path.name} holds no files")
    return dict(sorted(_without_top_folder(files, path.name).items()))


class _RefusedError(Exception):
    """A member that no honest sdist has."""


@dataclass(frozen=True, slots=True)
class _Member:
    path: str
    stream: IO[bytes]


def _tar_members(data: bytes) -> Iterator[_Member]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
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
        path = _checked_path(member.path)
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


def _checked_path(path: str) -> str:
    if path.startswith("/") or "\\" in path or "\0" in path or ".." in path.split("/"):
        raise _RefusedError(f"{path!r} is not a path inside the archive")
    return str(PurePosixPath(path))


def _without_top_folder(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    tops = {path.split("/", 1)[0] for path in files}
    if len(tops) != 1 or any("/" not in path for path in files):
        raise UsageError(f"{name} is not an sdist: it holds {sorted(tops)[:4]} instead of 1 folder")
    return {path.split("/", 1)[1]: content for path, content in files.items()}
