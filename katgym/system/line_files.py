"""JSON Lines: whole files read strictly, and journals that are appended to and survive a kill.

Not here: what the lines mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.system.atomic_files import explain_os_error


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number, from 1, and its object; blank lines are skipped.

    `UsageError` names the line that is not a JSON object, or says that there is no such file.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {str(path)!r}: {e.strerror}") from e
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, _decode(path, number, line)


def to_lines(objects: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the objects as JSON Lines."""
    return "".join(json.dumps(o, ensure_ascii=True) + "\n" for o in objects).encode()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a journal that may be written to at this moment; none without a file.

    A last line without its end is left out. `UsageError` names a line that cannot be read.
    """
    if not path.exists():
        return
    left = _whole_bytes(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            left -= len(line)
            if left < 0:
                return
            yield _decode(path, number, line)


class Journal:
    """A file of lines that only grows; every line is on disk when `append` returns.

    A last line that a kill cut short is removed on opening, one that a full disk cut short at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def open(self) -> None:
        """Open for appending behind the last whole line."""
        with explain_os_error(self.path):
            self._file = self.path.open("ab", buffering=0)  # nothing is left to write on closing
            whole = _whole_bytes(self.path)
            if whole < self.path.stat().st_size:
                self._file.truncate(whole)

    def append(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Write lines, all or none; blocks until they are on disk."""
        assert self._file is not None, "the journal is not open"
        with explain_os_error(self.path):
            before, left = os.fstat(self._file.fileno()).st_size, memoryview(to_lines(values))
            try:
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                self._file.truncate(before)
                raise
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _whole_bytes(path: Path) -> int:
    """Return how many bytes of a file are whole lines; only its end is read."""
    end = path.stat().st_size
    with path.open("rb") as file:
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _decode(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{str(path)!r} line {number}: not JSON: {e}") from e
    if not isinstance(value, dict):
        raise UsageError(
            f"{str(path)!r} line {number}: a row is a JSON object, got {type(value).__name__}"
        )
    return value
