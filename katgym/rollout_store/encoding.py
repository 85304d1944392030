"""Nodes as columns of SQLite, bit for bit: numbers as little-endian blobs, text as JSON.

Token ids are int32. Log-probs are float32 where every one of a node comes back the same, float64
otherwise; the blob's length tells which. Text of some length is deflated, with a window and tables
small enough that setting them up does not cost more than the text.

Not here: the tables (`schema.py`); Parquet (`shards.py`).
"""

from __future__ import annotations

import array
import hashlib
import json
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from katgym.errors import UsageError
from katgym.policies.base import BranchReason
from katgym.rollout_store.records import FailedCall, Node, NodeText
from katgym.version_span import VersionSpan, check_spans, one_span

MAX_NODES = 2**20
"""Of one session."""
_DEFLATED_FROM = 4096
"""Bytes. To deflate 2 KB takes a third of the time that encoding a node takes and saves 1 KB, which
a shard saves anyway."""

_JSON = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)

NODE_COLUMNS = (
    *("idx", "call_id", "choice", "parent", "num_shared", "prompt_ids", "completion_ids"),
    *("policy_logprobs", "version", "versions", "branch", "finish_reason", "model", "route"),
    *("sampling", "upstream", "received_s", "sent_s", "answered_s", "checksum"),
    *("num_shared_messages", "tools_sha256", "text"),
)
_BLOBS = ("prompt_ids", "completion_ids", "policy_logprobs", "versions")


def node_to_columns(node: Node, text: NodeText) -> tuple[tuple[Any, ...], tuple[bytes, str] | None]:
    """Return the values of `NODE_COLUMNS`, and hash and JSON of the tools that were offered.

    Raises `UsageError` for a node that does not hold together.
    """
    _check_node(node)
    prompt = ids_to_blob("prompt_ids", node.prompt_ids)
    completion = ids_to_blob("completion_ids", node.completion_ids)
    logprobs = logprobs_to_blob(node)
    version, versions = _spans_to_columns(node)
    tools = None
    if text.tools:
        dumped = to_json("tools", list(text.tools))
        tools = (hashlib.sha256(dumped.encode()).digest(), dumped)
    said = text_to_column(text)
    values = (
        *(node.index, node.call_id, node.choice, node.parent, node.num_shared, prompt, completion),
        *(logprobs, version, versions, None if node.branch is None else str(node.branch)),
        *(node.finish_reason, node.model, node.route, to_json("sampling", dict(node.sampling))),
        *(node.upstream, node.received_s, node.sent_s, node.answered_s),
        *(checksum(prompt, completion, logprobs, said), text.num_shared_messages),
        *(None if tools is None else tools[0], said),
    )
    return values, tools


def node_from_columns(row: Mapping[str, Any], *, is_compact: bool = False) -> Node:
    """Return the node of a row of `NODE_COLUMNS`.

    is_compact: its numbers are `array.array`s, which take an eighth of the memory of lists.
    """
    prompt = _from_little("i", row["prompt_ids"])
    sampled = _from_little("i", row["completion_ids"])
    logprobs = logprobs_from_blob(row["policy_logprobs"], len(sampled))
    return Node(
        index=row["idx"],
        call_id=row["call_id"],
        choice=row["choice"],
        parent=row["parent"],
        num_shared=row["num_shared"],
        prompt_ids=prompt if is_compact else list(prompt),
        completion_ids=sampled if is_compact else list(sampled),
        policy_logprobs=logprobs if is_compact else list(logprobs),
        versions=spans_from_columns(row["version"], row["versions"], len(sampled)),
        branch=None if row["branch"] is None else BranchReason(row["branch"]),
        finish_reason=row["finish_reason"],
        model=row["model"],
        route=row["route"],
        sampling=json.loads(row["sampling"]),
        upstream=row["upstream"],
        received_s=row["received_s"],
        sent_s=row["sent_s"],
        answered_s=row["answered_s"],
    )


def is_unchanged(row: Mapping[str, Any]) -> bool:
    """Return whether the bytes of a row are those that were written."""
    guarded = (row[name] for name in ("prompt_ids", "completion_ids", "policy_logprobs", "text"))
    return checksum(*guarded) == int(row["checksum"])


def is_hash(sha256: bytes | None, tools: str | None) -> bool:
    """Return whether tools are those of a hash; none have none."""
    if sha256 is None or tools is None:
        return sha256 is None and tools is None
    return hashlib.sha256(tools.encode()).digest() == sha256


def checksum(prompt: bytes, completion: bytes, logprobs: bytes, text: str | bytes) -> int:
    """Return the CRC-32 that guards a node's blobs and text."""
    crc = zlib.crc32(completion, zlib.crc32(prompt))
    return zlib.crc32(text.encode() if isinstance(text, str) else text, zlib.crc32(logprobs, crc))


def ids_to_blob(name: str, ids: Sequence[int]) -> bytes:
    """Return token ids as int32; `UsageError` for what is none."""
    try:
        packed = array.array("i", ids)
    except (TypeError, OverflowError) as e:
        raise UsageError(f"{name} is a list of token ids from 0 to {2**31 - 1}: {e}") from e
    if packed and (least := int(np.frombuffer(packed, dtype=np.int32).min())) < 0:
        raise UsageError(f"{name} holds {least}; a token id is at least 0")
    return _little(packed)


def logprobs_to_blob(node: Node) -> bytes:
    """Return a node's log-probs as float32 where that changes no bit, as float64 otherwise."""
    wide = np.array(node.policy_logprobs, dtype="<f8")
    if not np.isfinite(wide).all():
        place = int(np.flatnonzero(~np.isfinite(wide))[0])
        raise UsageError(
            f"policy_logprobs[{place}] is {float(wide[place])!r}; the log-prob of a sampled token"
            " is finite"
        )
    with np.errstate(over="ignore", under="ignore"):
        narrow = wide.astype("<f4")
    data = wide.tobytes()
    return narrow.tobytes() if narrow.astype("<f8").tobytes() == data else data


def logprobs_from_blob(blob: bytes, num: int) -> array.array[float]:
    """Return the log-probs of a blob, of `num` tokens or of none."""
    dtype = "<f4" if len(blob) == 4 * num else "<f8"
    return array.array("d", np.frombuffer(blob, dtype=dtype).astype("=f8").tobytes())


def text_to_column(text: NodeText) -> str | bytes:
    """Return messages and answer as JSON text, deflated where that is shorter."""
    value = {"messages": list(text.messages), "answer": text.answer}
    dumped = to_json("messages", value)
    data = dumped.encode()
    if len(data) < _DEFLATED_FROM:
        return dumped
    deflate = zlib.compressobj(1, zlib.DEFLATED, 13, 5)
    packed = deflate.compress(data) + deflate.flush()
    return packed if len(packed) < len(data) else dumped


def text_from_columns(row: Mapping[str, Any], tools: str | None) -> NodeText:
    """Return the text of a row; tools: the JSON behind its hash."""
    said = row["text"]
    value = json.loads(said if isinstance(said, str) else zlib.decompress(said))
    return NodeText(
        num_shared_messages=row["num_shared_messages"],
        messages=value["messages"],
        answer=value["answer"],
        tools=[] if tools is None else json.loads(tools),
    )


def failed_to_columns(call: FailedCall) -> tuple[Any, ...]:
    """Return a failed call's values; lone surrogates of the reason, which may quote, become `?`."""
    reason = call.reason.encode("utf-8", "replace").decode()
    return call.call_id, call.route, call.status, call.kind, reason, call.received_s


def to_json(name: str, value: Any) -> str:
    """Return JSON text that SQLite and Parquet take; `UsageError` for what is not JSON."""
    try:
        text = _JSON.encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:  # lone surrogates: only escaped are they text
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as e:
        raise UsageError(f"{name} has to be plain JSON without NaN and infinity: {e}") from e
    return text


def _check_node(node: Node) -> None:
    num = len(node.completion_ids)
    if len(node.policy_logprobs) not in (0, num):
        raise UsageError(
            f"node {node.index} has {len(node.policy_logprobs)} policy_logprobs for {num}"
            " completion_ids; allowed is one for each, or none at all if they are not known"
        )
    if node.index < 0 or node.choice < 0 or node.num_shared < 0:
        raise UsageError(
            f"index, choice and num_shared are at least 0, got {node.index!r}, {node.choice!r} and"
            f" {node.num_shared!r}"
        )
    if node.index >= MAX_NODES:
        raise UsageError(f"a node's index is at most {MAX_NODES - 1}, got {node.index!r}")
    if node.parent is None and node.num_shared:
        raise UsageError(f"node {node.index} has no parent to share {node.num_shared} tokens with")
    if node.parent is not None and not 0 <= node.parent < node.index:
        raise UsageError(f"node {node.index} has parent {node.parent}; a parent comes before")
    if not all(map(math.isfinite, (node.received_s, node.sent_s, node.answered_s))):
        raise UsageError(f"the times of node {node.index} have to be finite numbers")


def _spans_to_columns(node: Node) -> tuple[int | None, bytes | None]:
    """Return the version of all tokens, or (version, end) pairs as int64; neither: not known."""
    spans = node.versions
    if not spans:
        return None, None
    check_spans(spans, len(node.completion_ids), of=f"node {node.index}")
    if len(spans) == 1:
        return spans[0].version, None
    pairs = [number for span in spans for number in (span.version, span.end)]
    return None, _little(array.array("q", pairs))


def spans_from_columns(version: int | None, blob: bytes | None, num: int) -> list[VersionSpan]:
    """Return the version spans of `num` sampled tokens."""
    if version is not None:
        return list(one_span(version, num))
    numbers = list(_from_little("q", blob or b""))
    starts = [0, *numbers[1::2]]
    pairs = zip(numbers[::2], starts, numbers[1::2], strict=False)
    return [VersionSpan(version=v, start=start, end=end) for v, start, end in pairs]


def _little(packed: array.array[int]) -> bytes:
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _from_little(code: str, blob: bytes) -> array.array[int]:
    packed = array.array(code)
    packed.frombytes(blob)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
