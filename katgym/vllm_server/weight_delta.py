"""Deltas of weight files: what changed since the last version, exact to the bit.

    write_delta(Path("v6/model.safetensors"), Path("v7/model.safetensors"), Path("v7.delta"))
    apply_delta(Path("here/v6.safetensors"), Path("v7.delta"), Path("here/v7.safetensors"))

A small learning rate leaves most bfloat16 numbers as they were. A delta holds, in pieces, the
distances between those that changed and the exclusive or of their bits, byte by byte of all, by
zlib; and the checksums of the file that it starts from and of the one that it gives. Nothing is
known of formats but how many bytes a number has. Works for any two files of one size.

Not here: getting deltas to a server's machine (`weight_receiver.py`).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from katgym.errors import InfrastructureError, UsageError

_MAGIC = b"katgym-delta-1\n"
_PIECE_BYTES = 16 << 20
_MAX_PART_BYTES = 2 * _PIECE_BYTES
_LEVEL = 1
_FAR = 255
"""A byte that stands for a distance which is in the list of far ones."""
_ITEMS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


class DeltaError(InfrastructureError):
    """A delta is of another file than the one that is here, or not whole: the file is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaHeader:
    """What a delta starts from, and what it gives.

    Example:
        DeltaHeader(base_sha256="9f86...", result_sha256="60303a...", num_bytes=988097824,
                    item_bytes=2)
    """

    base_sha256: str
    result_sha256: str
    num_bytes: int
    """Of both files."""
    item_bytes: int
    """Of a number; another count than the true one makes a delta longer, not wrong."""


def write_delta(base: Path, result: Path, delta: Path) -> DeltaHeader:
    """Write what turns one file into another of the same size; `UsageError` for other sizes."""
    num_bytes = result.stat().st_size
    if base.stat().st_size != num_bytes:
        raise UsageError(
            f"a delta is of two files of one size; {str(base)!r} has {base.stat().st_size} bytes,"
            f" {str(result)!r} has {num_bytes}: send the file"
        )
    item_bytes = _item_bytes(result)
    before, after = hashlib.sha256(), hashlib.sha256()
    with base.open("rb") as old, result.open("rb") as new, delta.open("wb") as out:
        out.write(_head(DeltaHeader(base_sha256="0" * 64, result_sha256="0" * 64,
                                    num_bytes=num_bytes, item_bytes=item_bytes)))  # fmt: skip
        while piece := new.read(_PIECE_BYTES):
            was = old.read(len(piece))
            before.update(was)
            after.update(piece)
            for part in _encode(was, piece, item_bytes):
                out.write(struct.pack("<Q", len(part)))
                out.write(part)
        header = DeltaHeader(
            base_sha256=before.hexdigest(), result_sha256=after.hexdigest(),
            num_bytes=num_bytes, item_bytes=item_bytes,
        )  # fmt: skip
        out.seek(0)
        out.write(_head(header))
    return header


def read_header(delta: Path) -> DeltaHeader:
    """Return what a delta is of; `DeltaError` for what is none."""
    with delta.open("rb") as file:
        return _read_header(file, delta)


def apply_delta(base: Path, delta: Path, result: Path) -> DeltaHeader:
    """Write the file that a delta gives; a file of that name is there only where it is right.

    Raises `DeltaError` where `base` is not the file that the delta starts from, or the delta is not
    whole.
    """
    unfinished = result.with_name(f"{result.name}.unfinished")
    before, after = hashlib.sha256(), hashlib.sha256()
    try:
        with base.open("rb") as old, delta.open("rb") as parts, unfinished.open("wb") as out:
            header = _read_header(parts, delta)
            for start in range(0, header.num_bytes, _PIECE_BYTES):
                was = old.read(min(_PIECE_BYTES, header.num_bytes - start))
                before.update(was)
                piece = _decode(was, [_read_part(parts) for _ in range(3)], header.item_bytes)
                after.update(piece)
                out.write(piece)
            is_longer = bool(old.read(1))
        if is_longer or before.hexdigest() != header.base_sha256:
            raise DeltaError(
                f"{str(base)!r} is not the file that the delta starts from (sha256"
                f" {header.base_sha256[:12]}...): send the whole file"
            )
        if after.hexdigest() != header.result_sha256:
            raise DeltaError(
                f"{str(delta)!r} gives another file than it was made of: send the whole file"
            )
        unfinished.replace(result)
    except (ValueError, IndexError, OverflowError, struct.error, zlib.error) as e:
        raise DeltaError(f"{str(delta)!r} is no whole delta ({e}): send the whole file") from e
    finally:
        unfinished.unlink(missing_ok=True)
    return header


def sha256_of(file: Path) -> str:
    """Return the checksum of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _encode(was: bytes, piece: bytes, item_bytes: int) -> tuple[bytes, bytes, bytes]:
    """Return distances, far distances, and bits that changed."""
    changed = _items(was, item_bytes) ^ _items(piece, item_bytes)
    places = np.flatnonzero(changed.any(axis=1))
    gaps = np.diff(places, prepend=-1)
    near = np.minimum(gaps, _FAR).astype(np.uint8)
    far = gaps[gaps >= _FAR].astype("<u4")
    planes = np.ascontiguousarray(changed[places].T)
    return (
        zlib.compress(near.tobytes(), _LEVEL),
        zlib.compress(far.tobytes(), _LEVEL),
        zlib.compress(planes.tobytes(), _LEVEL),
    )


def _decode(was: bytes, parts: list[bytes], item_bytes: int) -> bytes:
    near, far, planes = (_decompress(part) for part in parts)
    gaps = np.frombuffer(near, np.uint8).astype(np.int64)
    gaps[gaps == _FAR] = np.frombuffer(far, "<u4")
    places = np.cumsum(gaps) - 1
    items = _items(was, item_bytes)
    items[places] ^= np.frombuffer(planes, np.uint8).reshape(item_bytes, len(places)).T
    return items.tobytes()[: len(was)]


def _items(content: bytes, item_bytes: int) -> NDArray[np.uint8]:
    """Return bytes as numbers [count, item_bytes], with zeros behind the last."""
    padded = np.zeros(-(-len(content) // item_bytes) * item_bytes, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return padded.reshape(-1, item_bytes)


def _item_bytes(file: Path) -> int:
    """Return how many bytes most numbers of safetensors have; 1 for any other file."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            told = msgspec.json.decode(opened.read(min(length, 100 << 20)))
        kinds = [entry["dtype"] for name, entry in told.items() if name != "__metadata__"]
        return max({_ITEMS.get(kind, 1) for kind in kinds} or {1})
    except (struct.error, msgspec.DecodeError, AttributeError, KeyError, TypeError):
        return 1


def _head(header: DeltaHeader) -> bytes:
    """Return the first bytes of a delta, as many for each of a size."""
    return _MAGIC + msgspec.json.encode(header) + b"\n"


def _read_header(file: BinaryIO, delta: Path) -> DeltaHeader:
    try:
        if file.readline(100) != _MAGIC:
            raise ValueError("it begins otherwise")
        header = msgspec.json.decode(file.readline(10_000), type=DeltaHeader)
        if header.num_bytes < 0 or header.item_bytes not in (1, 2, 4, 8):
            raise ValueError(f"it begins with {header!r}")
        return header
    except ValueError as e:
        raise DeltaError(f"{str(delta)!r} is no delta ({e}): send the whole file") from e


def _decompress(part: bytes) -> bytes:
    limited = zlib.decompressobj()
    found = limited.decompress(part, _MAX_PART_BYTES)
    if not limited.eof:
        raise ValueError("it has more in it than a piece")
    return found


def _read_part(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", file.read(8))
    part = file.read(min(length, _MAX_PART_BYTES))
    if len(part) != length:
        raise ValueError("it ends in the middle")
    return part
