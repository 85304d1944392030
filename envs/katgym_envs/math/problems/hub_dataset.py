"""Reads rows of a Hugging Face dataset, saved in a folder or named on the hub.

The one module that needs `datasets`. Not here: plain files (`rows.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from katgym.errors import UsageError

SplitRow = tuple[str | None, dict[str, Any]]
"""The name of the dataset's own split, None where it has only one, and the row."""


def read_saved(folder: Path) -> Iterator[SplitRow]:
    """Yield the rows of what `Dataset.save_to_disk` wrote; `UsageError` for another folder."""
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as e:
        raise UsageError(f"the folder {str(folder)!r} holds no readable dataset: {e}") from e
    return _rows(loaded)


def read_hub(name: str) -> Iterator[SplitRow]:
    """Yield the rows of `name`, downloaded unless cached; `hf:NAME@CONFIG` picks a config."""
    repository, _, config = name.partition("@")
    try:
        loaded = datasets.load_dataset(repository, config or None)
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot load the dataset 'hf:{name}': {e}") from e
    return _rows(loaded)


def _rows(loaded: Any) -> Iterator[SplitRow]:
    if isinstance(loaded, datasets.DatasetDict) and len(loaded) > 1:
        for split, part in loaded.items():
            yield from ((str(split), dict(row)) for row in part)
        return
    parts = loaded.values() if isinstance(loaded, datasets.DatasetDict) else [loaded]
    for part in parts:
        yield from ((None, dict(row)) for row in part)
