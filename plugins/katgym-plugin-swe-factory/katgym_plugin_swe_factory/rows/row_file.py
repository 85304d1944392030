"""Reads the objects of a JSON Lines, JSON or Parquet file, with their line numbers.

Not here: what the objects mean (`normalise.py`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError, UsageError
from katgym_plugin_swe_factory.rows.broken_row import RowError

Numbered = tuple[int, dict[str, Any] | RowError]
"""A line's number, from 1, and its object, or why it has none."""


def read_objects(path: Path) -> Iterator[Numbered]:
    """Yield every object of the file; a broken line is yielded as the error it is.

    A `.parquet` file is read by row groups; any other is a JSON array if its first character is
    `[`, else JSON Lines, in which blank lines are skipped. `UsageError` if the file cannot be read.
    """
    if not path.is_file():
        raise UsageError(f"no such file: {str(path)!r}")
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    with path.open("rb") as file:
        start = file.read(64).lstrip()
    values: Iterator[tuple[int, Any]] = _lines(path)
    if start.startswith(b"["):
        try:
            values = enumerate(json.loads(path.read_bytes()), 1)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"{str(path)!r} starts as a JSON array but is none: {e}") from e
    for number, value in values:
        if not isinstance(value, dict | RowError):
            value = RowError("", f"a row is a JSON object, got {type(value).__name__}")
        yield number, value


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as e:
                    yield number, RowError("", f"not JSON: {e}")


def _parquet(path: Path) -> Iterator[Numbered]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq  # a row file may well be none, and then needs no pyarrow
    except ImportError as e:
        raise MissingDependencyError(
            "Parquet files need pyarrow. Hint: pip install 'katgym[math]' or pyarrow"
        ) from e
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield number, {name: _plain(item) for name, item in value.items()}
    except pa.ArrowException as e:
        raise UsageError(f"{str(path)!r} cannot be read as Parquet: {e}") from e


def _plain(value: Any) -> Any:
    """Return a Parquet value as JSON has it."""
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
