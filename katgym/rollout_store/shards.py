"""Finished rollouts in Parquet: a shard is two files, one row a session and one row a call.

Any reader of Parquet takes them; the README of this folder explains every column. Files are
written whole or not at all, and their pages carry checksums.

Not here: which sessions go into a shard, and when it counts (`sealing.py`).
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from katgym.environment.messages import Message
from katgym.errors import MissingDependencyError, UsageError
from katgym.play.rollout import Turn, parent_of
from katgym.policies.base import TokenRecord
from katgym.policies.version_span import VersionSpan
from katgym.rollout_store.encoding import (
    SAME,
    results_to_column,
    to_json,
    turn_from_row,
)
from katgym.rollout_store.faults import corrupt_shard
from katgym.rollout_store.records import FailedCall, SessionRecord, StoredSession
from katgym.rollout_store.schema import OLDER_VERSIONS, SCHEMA_VERSION, wrong_version
from katgym.rollout_store.session_encoding import (
    record_from_columns,
    record_to_columns,
)
from katgym.system import whole_file

_VERSION_KEY = b"katgym.rollout_store.version"
_ROW_GROUP = 2048
"""Turns read together to get at one of them."""
_STATISTICS_COLUMNS = (
    *("num_shared", "num_prompt_tokens", "num_completion_tokens"),
    *("has_tokens", "branch", "versions"),
)


def rollouts_file(folder: Path, name: str) -> Path:
    """Return the file with a shard's sessions."""
    return folder / f"rollouts-{name}.parquet"


def turns_file(folder: Path, name: str) -> Path:
    """Return the file with a shard's calls."""
    return folder / f"turns-{name}.parquet"


def write_turns(folder: Path, name: str, sessions: Sequence[StoredSession]) -> None:
    """Write the calls of a shard; on disk when this returns."""
    rows = [row for session in _by_id(sessions) for row in _turn_rows(session)]
    _write(turns_file(folder, name), "turns", rows)


def write_rollouts(folder: Path, name: str, sessions: Sequence[StoredSession]) -> None:
    """Write the sessions of a shard, after its calls; on disk when this returns."""
    _write(rollouts_file(folder, name), "rollouts", [_session_to_row(s) for s in _by_id(sessions)])


def read_records(
    folder: Path,
    name: str,
    without_groups: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
) -> list[SessionRecord]:
    """Return the sessions of a shard that are not of some groups; only: those with these ids."""
    filters = None if only is None else [("session_id", "in", set(only))]
    rows = _read(rollouts_file(folder, name), filters=filters)
    return [
        record_from_columns(row, row["reward_json"])
        for row in rows
        if row["group_id"] not in without_groups
    ]


def read_sealed(folder: Path, name: str, session_ids: Sequence[str]) -> list[StoredSession]:
    """Return some sessions of a shard, in the order of their ids."""
    only = [("session_id", "in", set(session_ids))]
    sessions = _read(rollouts_file(folder, name), filters=only)
    if missing := set(session_ids) - {session["session_id"] for session in sessions}:
        raise corrupt_shard(rollouts_file(folder, name), f"it has no session {min(missing)!r}")
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in _read(turns_file(folder, name), filters=only):
        rows.setdefault(row["session_id"], []).append(row)
    return [_stored(folder, name, found, rows.get(found["session_id"], [])) for found in sessions]


def read_shard(folder: Path, name: str) -> Iterator[StoredSession]:
    """Yield the sessions of a shard, by id; the turns of few are in memory at a time."""
    import pyarrow.parquet as pq  # read_records has told whether it is there

    sessions = _read(rollouts_file(folder, name))
    path = turns_file(folder, name)
    with _explained(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_version(path, file.schema_arrow.metadata)
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=256))
        rows: list[Mapping[str, Any]] = []
        for session in sessions:
            while len(rows) < session["num_turns"] and (more := next(batches, None)) is not None:
                rows += more
            own, rows = rows[: session["num_turns"]], rows[session["num_turns"] :]
            yield _stored(folder, name, session, own)


def read_memberships(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return ids, groups and metadata of a shard's sessions, the first that ended first."""
    names = ["session_id", "group_id", "metadata", "created_s", "ended_s"]
    rows = _read(rollouts_file(folder, name), columns=names)
    return sorted(rows, key=lambda row: row["ended_s"] or row["created_s"])


def read_turn_statistics(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return what statistics need of every turn of a shard: no ids, no text."""
    return _read(turns_file(folder, name), columns=list(_STATISTICS_COLUMNS))


def read_failed_calls(folder: Path, name: str) -> list[FailedCall]:
    """Return the failed calls of a shard's sessions."""
    rows = _read(rollouts_file(folder, name))
    return [FailedCall(**call) for row in rows for call in row["failed_calls"]]


def check_shard(folder: Path, name: str) -> None:
    """Read a shard whole; `CorruptStoreError` for one that cannot be."""
    for _ in read_shard(folder, name):
        pass


def _by_id(sessions: Sequence[StoredSession]) -> list[StoredSession]:
    """Sort them, so that row groups hold ranges of ids and one session is found in few."""
    return sorted(sessions, key=lambda session: session.record.session_id)


def _stored(
    folder: Path, name: str, session: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> StoredSession:
    if len(rows) != session["num_turns"] or any(
        row["session_id"] != session["session_id"] for row in rows
    ):
        why = f"session {session['session_id']!r} has not the {session['num_turns']} turns it had"
        raise corrupt_shard(turns_file(folder, name), why)
    record = record_from_columns(session, session["reward_json"])
    return StoredSession(
        record=record,
        turns=_turns(rows, record.final_messages),
        failed_calls=[FailedCall(**call) for call in session["failed_calls"]],
    )


def _session_to_row(session: StoredSession) -> dict[str, Any]:
    record = session.record
    components = {} if record.reward is None else record.reward.components
    columns = record_to_columns(record)
    return {
        **columns,
        "reward": None if record.reward is None else record.reward.value,
        "reward_components": [{"name": name, "value": c.score} for name, c in components.items()],
        "reward_json": columns["reward"],
        "num_turns": len(session.turns),
        "num_prompt_tokens": sum(turn.num_prompt_tokens for turn in session.turns),
        "num_completion_tokens": sum(turn.num_completion_tokens for turn in session.turns),
        "failed_calls": [asdict(call) for call in session.failed_calls],
    }


def _turn_rows(session: StoredSession) -> Iterator[dict[str, Any]]:
    for index, (turn, replies) in enumerate(zip(session.turns, session.replies, strict=False)):
        tokens = turn.tokens or TokenRecord()
        num = len(tokens.completion_ids)
        yield {
            **{name: getattr(turn, name) for name in SAME},
            "session_id": session.record.session_id,
            "index": index,
            "parent": parent_of(session.turns, index),
            "num_shared": tokens.num_shared,
            "prompt_ids": np.asarray(tokens.prompt_ids, dtype=np.int32),  # no object a number
            "completion_ids": np.asarray(tokens.completion_ids, dtype=np.int32),
            "policy_logprobs": np.asarray(tokens.policy_logprobs, dtype=np.float64),
            "loss_mask": np.repeat([False, True], [len(tokens.prompt_ids), num]),
            "versions": [asdict(span) for span in tokens.version_spans],
            "branch": None if tokens.branch is None else str(tokens.branch),
            "has_tokens": turn.tokens is not None,
            "routes": tokens.routes or None,
            "sampling": to_json("sampling", dict(turn.sampling)),
            "messages": to_json("messages", list(turn.messages)),
            "answer": None if turn.answer is None else to_json("answer", turn.answer),
            "tools": to_json("tools", list(turn.tools)) if turn.tools else None,
            "tool_results": results_to_column(turn.tool_results, replies),
        }


def _turns(rows: Sequence[Mapping[str, Any]], final: Sequence[Message]) -> list[Turn]:
    messages = [json.loads(row["messages"]) for row in rows]
    return [
        turn_from_row(
            row,
            messages=own,
            answer=None if row["answer"] is None else json.loads(row["answer"]),
            reply=reply,
            prompt_ids=row["prompt_ids"],
            completion_ids=row["completion_ids"],
            policy_logprobs=row["policy_logprobs"],
            version_spans=tuple(VersionSpan(**span) for span in row["versions"]),
            routes=row.get("routes") or b"",
        )
        for row, own, reply in zip(rows, messages, [*messages[1:], final], strict=False)
    ]


def _write(path: Path, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    pa, pq = import_pyarrow()
    from katgym.rollout_store.shard_columns import columns  # it needs pyarrow

    schema = columns(kind).with_metadata({_VERSION_KEY: str(SCHEMA_VERSION)})
    buffer = io.BytesIO()
    floats = "policy_logprobs.list.element"
    with pq.ParquetWriter(
        buffer,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in ("policy_logprobs", "routes")],
        column_encoding={floats: "BYTE_STREAM_SPLIT"} if kind == "turns" else None,
        write_page_checksum=True,
    ) as writer:
        for start in range(0, max(len(rows), 1), _ROW_GROUP):
            part = list(rows[start : start + _ROW_GROUP])
            writer.write_table(pa.Table.from_pylist(part, schema=schema))
    with whole_file(path) as file:
        file.write(buffer.getbuffer())


def _read(path: Path, **options: Any) -> list[dict[str, Any]]:
    _, pq = import_pyarrow()
    with _explained(path):
        _check_version(path, pq.read_schema(path).metadata)
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None, **options)
        return list(table.to_pylist())


def _check_version(path: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    version = int((metadata or {}).get(_VERSION_KEY, b"0"))
    if not version:
        raise corrupt_shard(path, "it is no shard of a rollout store")
    if version not in (*OLDER_VERSIONS, SCHEMA_VERSION):
        raise UsageError(wrong_version(path, version))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what pyarrow says of a broken or missing file into `CorruptStoreError`."""
    pa, _ = import_pyarrow()
    try:
        yield
    except UsageError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as e:
        why = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise corrupt_shard(path, why) from e


def import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; `MissingDependencyError` without them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise MissingDependencyError(
            "finished rollouts are Parquet files, which need pyarrow. Install it:"
            " pip install 'katgym[serve]'"
        ) from e
    return pyarrow, pyarrow.parquet
