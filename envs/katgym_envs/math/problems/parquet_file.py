"""Reads rows from a Parquet file; the one module that needs pyarrow.

Not here: other formats (`rows.py`), what a row has to hold (`problem_set.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from katgym.errors import UsageError


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one dict per row, in file order; `UsageError` when the file is no Parquet."""
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except pyarrow.ArrowException as e:
        raise UsageError(f"{path} is not a readable Parquet file: {e}") from e
