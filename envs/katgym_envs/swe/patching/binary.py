"""`GIT binary patch`: contents in base 85 and zlib, whole ("literal") or as copies and inserts from
the old content ("delta").

Strict: blob names, sizes and the compressed stream have to fit. Not here: the header before it
(`git_header.py`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MAX_BINARY_BYTES = 64 << 20
"""Of all contents that one patch may inflate to."""
_START = re.compile(rb"(literal|delta) (\d{1,12})\r?\n")
_LINE = re.compile(rb"([A-Za-z])((?:[0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]{5})+)\r?\n")
_HASHES = {40: "sha1", 64: "sha256"}


class BinaryError(ValueError):
    """A binary patch is broken, too large, or does not fit the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryPatch:
    """New content of one file, as data.

    Example:
        BinaryPatch(data=b"\\0", is_delta=False, old_blob=40 * "0", new_blob="f76dd238...")
    """

    data: bytes
    is_delta: bool
    old_blob: str
    """Hash of the content it applies to, in full; zeros: of no file."""
    new_blob: str

    def apply(self, old: bytes) -> bytes:
        """Return the new content; `BinaryError` if `old` is not what it was made from."""
        is_new, is_deleted = not self.old_blob.strip("0"), not self.new_blob.strip("0")
        if old if is_new else _blob(old, self.old_blob) != self.old_blob:
            raise BinaryError("the file is not the one that the binary patch was made from")
        if is_deleted:
            return b""
        new = apply_delta(old, self.data) if self.is_delta else self.data
        if _blob(new, self.new_blob) != self.new_blob:
            raise BinaryError("the binary patch makes another content than its index line names")
        return new


def is_full_name(blob: str) -> bool:
    """Return whether a blob's name is not abbreviated."""
    return len(blob) in _HASHES and re.fullmatch("[0-9a-f]+", blob) is not None


def _blob(data: bytes, like: str) -> str:
    """Return git's name of the content, by the hash function of another name."""
    digest = hashlib.new(_HASHES[len(like)], usedforsecurity=False)
    digest.update(b"blob %d\0" % len(data))
    digest.update(data)
    return digest.hexdigest()


def is_hunk_start(line: bytes) -> bool:
    """Return whether the line starts contents: `literal SIZE` or `delta SIZE`."""
    return _START.fullmatch(line) is not None


def read_hunk(lines: Sequence[bytes], start: int, max_bytes: int) -> tuple[bool, bytes, int, int]:
    """Read the contents that start at a line.

    Returns whether they are a delta, the inflated bytes, how many of `max_bytes` they take and the
    index of the line after them. `BinaryError` if they are broken or more than `max_bytes`.
    """
    found = _START.fullmatch(lines[start]) if start < len(lines) else None
    if found is None:
        raise BinaryError("a binary patch goes on with 'literal SIZE' or 'delta SIZE'")
    is_delta, size = found[1] == b"delta", int(found[2])
    if size > max_bytes:
        raise BinaryError(f"the binary patch inflates to more than {MAX_BINARY_BYTES} bytes")
    end = hunk_end(lines, start)
    inflater = zlib.decompressobj()
    try:
        # One byte more than is promised, so that a stream without an end is seen.
        data = inflater.decompress(_decode(lines[start + 1 : end]), size + 1)
    except zlib.error as e:
        raise BinaryError("the binary patch's zlib stream is broken") from e
    if len(data) != size or not inflater.eof or inflater.unused_data:
        raise BinaryError(f"the binary patch does not inflate to the {size} bytes that it names")
    # A delta is worked off in steps of a few bytes: they cost more time than bytes of a content.
    num_bytes = 16 * size + _delta_sizes(data)[1] if is_delta else size
    if num_bytes > max_bytes:
        raise BinaryError(f"the binary patch makes more than {MAX_BINARY_BYTES} bytes")
    return is_delta, data, num_bytes, end + 1


def hunk_end(lines: Sequence[bytes], start: int) -> int:
    """Return the index of the blank line that ends the contents; that of no line at the end."""
    end = start + 1
    while end < len(lines) and lines[end].strip(b"\r\n"):
        if _LINE.fullmatch(lines[end]) is None:
            raise BinaryError(f"no line of a binary patch: {lines[end][:60]!r}")
        end += 1
    return end


def _decode(lines: Sequence[bytes]) -> bytes:
    """Return the bytes of lines: a letter for the number of bytes, then groups of five for four."""
    groups, sizes = [], []
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found is not None  # `hunk_end` saw it
        letter = found[1][0]
        size = letter - 64 if letter <= 90 else letter - 70  # A-Z: 1 to 26, a-z: 27 to 52
        groups.append(found[2])
        sizes.append((size, len(found[2]) // 5 * 4))
        if not sizes[-1][1] - 4 < size <= sizes[-1][1]:
            raise BinaryError("a line of the binary patch is not as long as it says")
    try:
        data = base64.b85decode(b"".join(groups))
    except ValueError as e:
        raise BinaryError("a line of the binary patch is no base 85") from e
    pieces, at = [], 0
    for size, padded in sizes:
        pieces.append(data[at : at + size])
        at += padded
    return b"".join(pieces)


def _delta_sizes(delta: bytes) -> tuple[int, int, int]:
    """Return the sizes of the old and new content, and where the instructions start."""
    sizes, at = [], 0
    for _ in range(2):
        size = shift = 0
        while True:
            if at >= len(delta) or shift > 56:
                raise BinaryError("the delta's sizes are broken")
            byte = delta[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        sizes.append(size)
    return sizes[0], sizes[1], at


def apply_delta(old: bytes, delta: bytes) -> bytes:
    """Return the content that a delta makes of another; `BinaryError` if sizes do not fit."""
    old_size, new_size, at = _delta_sizes(delta)
    if old_size != len(old):
        raise BinaryError(f"the delta is for {old_size} bytes, the file has {len(old)}")
    new = bytearray()
    while at < len(delta):
        code = delta[at]
        at += 1
        if code < 0x80:  # so many bytes follow; 0 is reserved
            piece = delta[at : at + code]
            at += code
            is_whole = code > 0 and len(piece) == code
        else:  # bits 0 to 3: which bytes of the offset follow; 4 to 6: which of the size
            fields = [0, 0]
            for bit in range(7):
                if code >> bit & 1:
                    byte = delta[at] if at < len(delta) else 0
                    fields[bit // 4] |= byte << 8 * (bit % 4)
                    at += 1
            start, size = fields[0], fields[1] or 0x10000
            piece = old[start : start + size]
            is_whole = at <= len(delta) and len(piece) == size
        if not is_whole or len(new) + len(piece) > new_size:
            raise BinaryError("the delta's instructions are broken")
        new += piece
    if len(new) != new_size:
        raise BinaryError(f"the delta makes {len(new)} bytes and names {new_size}")
    return bytes(new)
