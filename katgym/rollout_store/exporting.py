"""Exports rollouts to one file, JSON Lines or Parquet by its ending, in a format by name.

A format is an `Exporter`: a function from a session to rows, and the types of their columns. Those
of katgym are in `exporters/`; plugins add theirs with hook `katgym_register_exporters`.

Not here: the formats; which shards and tables sessions come from (`store.py`).
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from katgym import plugins
from katgym.errors import UsageError
from katgym.plugins.contributions import EntryKind
from katgym.rollout_store.encoding import to_json
from katgym.rollout_store.records import SessionStatus, StoredSession, reward_value
from katgym.rollout_store.shards import import_pyarrow
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import StoreReader
from katgym.system import whole_file

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]

_CHUNK = 256
"""Rows written together to Parquet."""


class ColumnType(StrEnum):
    """What a column of an exported file holds; a value may also be None."""

    TEXT = "text"
    NUMBER = "number"
    INTEGER = "integer"
    TOKEN_IDS = "token_ids"
    INTEGERS = "integers"
    NUMBERS = "numbers"
    FLAGS = "flags"
    MESSAGES = "messages"
    """Chat messages of `katgym.environment.messages.Message`."""
    JSON = "json"
    """Any JSON value; JSON text in Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A format.

    Example:
        Exporter(rows=rows_of, columns={"prompt": ColumnType.TEXT, "reward": ColumnType.NUMBER})
    """

    rows: Callable[[StoredSession], Iterable[Row]]
    """Makes the rows of a session: plain JSON values, exactly those of `columns`."""
    columns: Mapping[str, ColumnType]
    needs_tokens: bool = False
    """Rollouts of policies that record no tokens are left out, with a warning."""


def exporter(name: str) -> Exporter:
    """Return a format by name; `UnknownNameError` names the nearest."""
    entry = plugins.load().find(EntryKind.EXPORTER, name)
    found = entry.load()
    if not isinstance(found, Exporter):
        raise UsageError(
            f"exporter {name!r} of plugin {entry.plugin!r} is a katgym.rollout_store.Exporter, got"
            f" {type(found).__name__}"
        )
    return found


def export(
    store: RolloutStore | StoreReader,
    out: Path,
    *,
    format: str,
    statuses: Sequence[SessionStatus] = (SessionStatus.FINISHED,),
    min_reward: float | None = None,
) -> int:
    """Write the rows of a store's sessions to a file, whole or not at all; return their number.

    out: ends in `.jsonl` or `.parquet`. min_reward: leave out sessions below it and those without a
    reward.
    """
    chosen = (
        stored
        for stored in store.each(statuses)
        if min_reward is None
        or ((value := reward_value(stored.record)) is not None and value >= min_reward)
    )
    return write_rows(out, format, exporter(format), chosen)


def write_rows(out: Path, name: str, form: Exporter, sessions: Iterable[StoredSession]) -> int:
    """Write the rows of sessions to a file; return their number. name: for messages."""
    writers = {".jsonl": _write_lines, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise UsageError(
            f"the file to write ends in {' or '.join(writers)}, which says how; got {str(out)!r}"
        )
    return writers[out.suffix](out, name, form, _checked(sessions, name, form))


def _checked(chosen: Iterable[StoredSession], name: str, form: Exporter) -> Iterator[Row]:
    """Yield the rows of sessions; says at the end of which ones the format can make none."""
    left_out: Counter[str] = Counter()
    for stored in chosen:
        if form.needs_tokens and any(turn.tokens is None for turn in stored.turns):
            left_out[stored.record.rollout.policy if stored.record.rollout else ""] += 1
            continue
        for row in form.rows(stored):
            if row.keys() != form.columns.keys():
                raise UsageError(
                    f"exporter {name!r} made a row with {sorted(row)!r}; its columns are"
                    f" {sorted(form.columns)!r}"
                )
            yield row
    for policy, num in left_out.items():
        logger.warning(
            "left out %d rollouts: policy %r records no tokens, which format %r is made of;"
            " formats messages and prompt-completion are not",
            num,
            policy,
            name,
        )


def _write_lines(out: Path, name: str, form: Exporter, rows: Iterable[Row]) -> int:
    num = 0
    with whole_file(out) as file:
        for row in rows:
            ordered = {column: row[column] for column in form.columns}
            file.write(to_json(f"a row of exporter {name!r}", ordered).encode() + b"\n")
            num += 1
    return num


def _write_parquet(out: Path, name: str, form: Exporter, rows: Iterable[Row]) -> int:
    pa, pq = import_pyarrow()
    schema = pa.schema([(column, _arrow_type(pa, kind)) for column, kind in form.columns.items()])
    num = 0
    left = iter(rows)
    with whole_file(out) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while chunk := list(itertools.islice(left, _CHUNK)):
            try:
                flat = [_with_json_text(name, form, row) for row in chunk]
                table = pa.Table.from_pylist(flat, schema=schema)
            except (pa.ArrowException, TypeError) as e:
                raise UsageError(f"a row of exporter {name!r} does not fit its columns: {e}") from e
            writer.write_table(table)
            num += len(chunk)
    return num


def _with_json_text(name: str, form: Exporter, row: Row) -> dict[str, Any]:
    flat = dict(row)
    for column, kind in form.columns.items():
        if kind is ColumnType.JSON:
            flat[column] = to_json(f"column {column!r} of exporter {name!r}", row[column])
    return flat


def _arrow_type(pa: Any, kind: ColumnType) -> Any:
    text = pa.string()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function), ("error", text)])
    message = pa.struct(
        [
            *(("role", text), ("content", text), ("tool_calls", pa.list_(call))),
            *(("tool_call_id", text), ("name", text), ("reasoning_content", text)),
        ]
    )
    return {
        ColumnType.TEXT: text,
        ColumnType.NUMBER: pa.float64(),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.TOKEN_IDS: pa.list_(pa.int32()),
        ColumnType.INTEGERS: pa.list_(pa.int64()),
        ColumnType.NUMBERS: pa.list_(pa.float64()),
        ColumnType.FLAGS: pa.list_(pa.bool_()),
        ColumnType.MESSAGES: pa.list_(message),
        ColumnType.JSON: text,
    }[ColumnType(kind)]
