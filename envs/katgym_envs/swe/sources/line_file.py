"""JSON Lines: whole files read strictly, and journals that are appended to and survive a kill.

Not here: what the lines mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from katgym.errors import UsageError
from katgym_envs.swe.sources.atomic_files import explained


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
            yield number, _decoded(path, number, line)


def to_lines(objects: list[dict[str, Any]]) -> bytes:
    """Return the objects as JSON Lines."""
    return "".join(json.dumps(o, ensure_ascii=True) + "\n" for o in objects).encode()


class Journal:
    """A file of lines that only grows; every line is on disk when `append` returns.

    A last line that a kill cut short is removed on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def open(self) -> list[dict[str, Any]]:
        """Open for appending and return what is there."""
        with explained(self.path):
            if self.path.exists():
                data = self.path.read_bytes()
                whole = data.rfind(b"\n") + 1
                if whole < len(data):
                    os.truncate(self.path, whole)
            self._file = self.path.open("ab")
        return [value for _, value in read_lines(self.path)]

    def append(self, value: dict[str, Any]) -> None:
        """Write one line."""
        assert self._file is not None, "the journal is not open"
        with explained(self.path):
            self._file.write(to_lines([value]))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _decoded(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{str(path)!r} line {number}: not JSON: {e}") from e
    if not isinstance(value, dict):
        raise UsageError(
            f"{str(path)!r} line {number}: a row is a JSON object, got {type(value).__name__}"
        )
    return value
