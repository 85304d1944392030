"""Reads rows from whatever `data` names: JSON Lines, Parquet, a saved dataset, the hub.

Not here: which columns a row needs and what becomes of it (`problem_set.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError, UnknownNameError, UsageError, unknown_name

HUB_PREFIX = "hf:"
_ALLOWED = "a .jsonl or .parquet file, a folder written by save_to_disk, or 'hf:NAME'"
_DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One record of the data.

    `place` is where an error text finds it, such as `data.jsonl, line 3`. `split` is the name the
    dataset itself gives the row's split, None where it has none.
    """

    place: str
    values: Mapping[str, Any]
    split: str | None = None


def stamp(data: str) -> tuple[int, int]:
    """Return what changes when the data does: modification time in ns and size.

    (0, 0) for a hub dataset. Raises `UsageError` when `data` is nothing that can be read, and for
    a missing file names the nearest one in its folder.
    """
    if data.startswith(HUB_PREFIX):
        return 0, 0
    path = Path(data)
    folder = path.parent
    if path.is_dir():
        files = [path / name for name in _DATASET_FILES if (path / name).is_file()]
        if not files:
            raise UsageError(
                f"{str(path)!r} is a folder without a saved dataset"
                f" ({', '.join(_DATASET_FILES)}); data is {_ALLOWED}"
            )
        path = files[0]
    elif not folder.is_dir():
        raise UsageError(f"no data file {str(path)!r}: the folder {str(folder)!r} does not exist")
    elif not path.exists():
        names = [entry.name for entry in folder.iterdir()]
        hint = f"Looked in {str(folder)!r}."
        raise UnknownNameError(unknown_name("data file", path.name, names, hint=hint))
    elif path.suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"cannot read {data!r}: data is {_ALLOWED}")
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def read_rows(data: str) -> Iterator[ProblemRow]:
    """Yield the rows of `data` in order; `UsageError` names the line that is no JSON object."""
    path = Path(data)
    if data.startswith(HUB_PREFIX) or path.is_dir():
        return _read_dataset(data)
    return _read_parquet(path) if path.suffix == ".parquet" else _read_jsonl(path)


def _read_jsonl(path: Path) -> Iterator[ProblemRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                values = json.loads(line)
            except UnicodeDecodeError as e:
                raise UsageError(f"{place}: not UTF-8: {e.reason} at byte {e.start}") from e
            except (ValueError, RecursionError) as e:
                raise UsageError(f"{place}: not valid JSON: {e}") from e
            if not isinstance(values, dict):
                raise UsageError(f"{place}: a row is a JSON object, got {type(values).__name__}")
            yield ProblemRow(place, values)


def _read_parquet(path: Path) -> Iterator[ProblemRow]:
    try:
        from katgym_envs.math.problems.parquet_file import read_parquet
    except ImportError as e:
        raise MissingDependencyError(
            f"reading {str(path)!r} needs pyarrow. Install it: pip install 'katgym[math]'"
        ) from e
    for number, values in enumerate(read_parquet(path), start=1):
        yield ProblemRow(f"{path}, row {number}", values)


def _read_dataset(data: str) -> Iterator[ProblemRow]:
    try:
        from katgym_envs.math.problems import hub_dataset
    except ImportError as e:
        raise MissingDependencyError(
            f"reading {data!r} needs the datasets package. Install it: pip install datasets"
        ) from e
    is_hub = data.startswith(HUB_PREFIX)
    rows = (
        hub_dataset.read_hub(data.removeprefix(HUB_PREFIX))
        if is_hub
        else hub_dataset.read_saved(Path(data))
    )
    for number, (split, values) in enumerate(rows, start=1):
        yield ProblemRow(f"{data}, row {number}", values, split)
