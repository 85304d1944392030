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

from katgym.errors import MissingDependencyError, UsageError
from katgym.policies.base import BranchReason
from katgym.rollout_store.encoding import to_json
from katgym.rollout_store.faults import corrupt_shard
from katgym.rollout_store.records import (
    FailedCall,
    Node,
    NodeText,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.schema import SCHEMA_VERSION
from katgym.storage import whole_file
from katgym.version_span import VersionSpan

_VERSION_KEY = b"katgym.rollout_store.version"
_ROW_GROUP = 2048
"""Nodes read together to get at one of them."""
_STATISTICS_COLUMNS = (
    *("parent", "num_shared", "num_prompt_tokens", "num_completion_tokens", "branch", "versions"),
)


def rollouts_file(folder: Path, name: str) -> Path:
    """Return the file with a shard's sessions."""
    return folder / f"rollouts-{name}.parquet"


def nodes_file(folder: Path, name: str) -> Path:
    """Return the file with a shard's calls."""
    return folder / f"nodes-{name}.parquet"


def write_nodes(folder: Path, name: str, sessions: Sequence[StoredSession]) -> None:
    """Write the calls of a shard; on disk when this returns."""
    rows = [
        _node_to_row(session.record.session_id, node, text)
        for session in _by_id(sessions)
        for node, text in zip(session.nodes, session.texts, strict=True)
    ]
    _write(nodes_file(folder, name), "nodes", rows)


def write_rollouts(folder: Path, name: str, sessions: Sequence[StoredSession]) -> None:
    """Write the sessions of a shard, after its calls; on disk when this returns."""
    _write(rollouts_file(folder, name), "rollouts", [_session_to_row(s) for s in _by_id(sessions)])


def read_records(
    folder: Path, name: str, without_groups: Collection[str] = ()
) -> list[SessionRecord]:
    """Return the sessions of a shard that are not of some groups."""
    rows = _read(rollouts_file(folder, name))
    return [_record(row) for row in rows if row["group_id"] not in without_groups]


def read_sealed(folder: Path, name: str, session_ids: Sequence[str]) -> list[StoredSession]:
    """Return some sessions of a shard, in the order of their ids."""
    only = [("session_id", "in", set(session_ids))]
    sessions = _read(rollouts_file(folder, name), filters=only)
    if missing := set(session_ids) - {session["session_id"] for session in sessions}:
        raise corrupt_shard(rollouts_file(folder, name), f"it has no session {min(missing)!r}")
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in _read(nodes_file(folder, name), filters=only):
        rows.setdefault(row["session_id"], []).append(row)
    return [_stored(folder, name, found, rows.get(found["session_id"], [])) for found in sessions]


def read_shard(folder: Path, name: str) -> Iterator[StoredSession]:
    """Yield the sessions of a shard, by id; the nodes of few are in memory at a time."""
    import pyarrow.parquet as pq  # read_records has told whether it is there

    sessions = _read(rollouts_file(folder, name))
    path = nodes_file(folder, name)
    with _explained(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_version(path, file.schema_arrow.metadata)
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=256))
        rows: list[Mapping[str, Any]] = []
        for session in sessions:
            while len(rows) < session["num_nodes"] and (more := next(batches, None)) is not None:
                rows += more
            own, rows = rows[: session["num_nodes"]], rows[session["num_nodes"] :]
            yield _stored(folder, name, session, own)


def read_node_statistics(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return what statistics need of every node of a shard: no ids, no text."""
    return _read(nodes_file(folder, name), columns=list(_STATISTICS_COLUMNS))


def read_failed_calls(folder: Path, name: str) -> list[FailedCall]:
    """Return the failed calls of a shard's sessions."""
    rows = _read(rollouts_file(folder, name))
    return [call for row in rows for call in _failed_calls(row)]


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
    if len(rows) != session["num_nodes"] or any(
        row["session_id"] != session["session_id"] for row in rows
    ):
        why = f"session {session['session_id']!r} has not the {session['num_nodes']} nodes it had"
        raise corrupt_shard(nodes_file(folder, name), why)
    return StoredSession(
        record=_record(session),
        nodes=[_node(row) for row in rows],
        texts=[_text(row) for row in rows],
        failed_calls=_failed_calls(session),
    )


def _failed_calls(row: Mapping[str, Any]) -> list[FailedCall]:
    """Return the failed calls of a session; shards of version 1 have none."""
    return [FailedCall(**call) for call in row.get("failed_calls") or ()]


def _session_to_row(session: StoredSession) -> dict[str, Any]:
    record = session.record
    values = {name: getattr(record, name) for name in SessionRecord.__slots__}
    return {
        **values,
        "status": str(record.status),
        "metadata": to_json("metadata", dict(record.metadata)),
        "reward_components": [
            {"name": name, "value": value} for name, value in record.reward_components.items()
        ],
        "num_nodes": len(session.nodes),
        "num_prompt_tokens": sum(n.num_shared + len(n.prompt_ids) for n in session.nodes),
        "num_completion_tokens": sum(len(n.completion_ids) for n in session.nodes),
        "failed_calls": [asdict(call) for call in session.failed_calls],
    }


def _record(row: Mapping[str, Any]) -> SessionRecord:
    values = {name: row[name] for name in SessionRecord.__slots__}
    values["status"] = SessionStatus(values["status"])
    values["metadata"] = json.loads(values["metadata"])
    values["reward_components"] = {c["name"]: c["value"] for c in values["reward_components"]}
    return SessionRecord(**values)


def _node_to_row(session_id: str, node: Node, text: NodeText) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in Node.__slots__}
    num = len(node.completion_ids)
    return {
        **values,
        "session_id": session_id,
        # Arrays: pyarrow takes them without making an object of every number.
        "prompt_ids": np.asarray(node.prompt_ids, dtype=np.int32),
        "completion_ids": np.asarray(node.completion_ids, dtype=np.int32),
        "policy_logprobs": np.asarray(node.policy_logprobs, dtype=np.float64),
        "loss_mask": np.repeat([False, True], [len(node.prompt_ids), num]),
        "versions": [asdict(span) for span in node.versions],
        "branch": None if node.branch is None else str(node.branch),
        "sampling": to_json("sampling", dict(node.sampling)),
        "num_prompt_tokens": node.num_shared + len(node.prompt_ids),
        "num_completion_tokens": num,
        "num_shared_messages": text.num_shared_messages,
        "messages": to_json("messages", list(text.messages)),
        "answer": None if text.answer is None else to_json("answer", text.answer),
        "tools": to_json("tools", list(text.tools)) if text.tools else None,
    }


def _node(row: Mapping[str, Any]) -> Node:
    values = {name: row[name] for name in Node.__slots__}
    values["versions"] = [VersionSpan(**span) for span in values["versions"]]
    branch = values["branch"]
    values["branch"] = None if branch is None else BranchReason(branch)
    values["sampling"] = json.loads(values["sampling"])
    return Node(**values)


def _text(row: Mapping[str, Any]) -> NodeText:
    return NodeText(
        num_shared_messages=row["num_shared_messages"],
        messages=json.loads(row["messages"]),
        answer=None if row["answer"] is None else json.loads(row["answer"]),
        tools=[] if row["tools"] is None else json.loads(row["tools"]),
    )


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
        use_dictionary=[name for name in schema.names if name not in ("policy_logprobs", "text")],
        column_encoding={floats: "BYTE_STREAM_SPLIT"} if kind == "nodes" else None,
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
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{str(path)!r} was written by a newer katgym: its schema is version {version}, this"
            f" katgym knows versions 1 to {SCHEMA_VERSION}. Hint: pip install -U katgym"
        )


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
