"""Turns as columns of SQLite, bit for bit: numbers as little-endian blobs, text as JSON.

Token ids are int32. Log-probs are float32 where every one of a turn comes back the same, float64
otherwise; the blob's length tells which. Text of some length is deflated, with a window and tables
small enough that setting them up does not cost more than the text.

Not here: sessions (`session_encoding.py`); the tables (`schema.py`); Parquet (`shards.py`).
"""

from __future__ import annotations

import array
import hashlib
import json
import math
import operator
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from katgym.environment.messages import Message
from katgym.environment.scheduler import ToolResult
from katgym.errors import UsageError
from katgym.play.rollout import Turn
from katgym.policies.base import BranchReason, TokenRecord
from katgym.policies.version_span import VersionSpan, one_span
from katgym.system.large_json import encode_in_steps

MAX_TURNS = 2**20
"""Of one session."""
_NO_TOKENS = TokenRecord()
_DEFLATED_FROM = 4096
"""Bytes. To deflate 2 KB takes a third of the time that encoding a turn takes and saves 1 KB, which
a shard saves anyway."""

_LARGE = 2**20
"""Characters from which text is encoded in steps, so that other threads go on."""

_JSON = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)

SAME = (
    *("call_id", "choice", "num_prompt_tokens", "num_completion_tokens", "finish_reason", "model"),
    *("route", "upstream", "started_s", "sent_s", "completed_s", "ended_s", "num_shared_messages"),
)
"""Columns that hold a turn's values as they are."""
_same_values = operator.attrgetter(*SAME)
TURN_COLUMNS = (
    *("idx", "parent", "num_shared", *SAME, "prompt_ids", "completion_ids", "policy_logprobs"),
    *("version", "versions", "branch", "has_tokens", "sampling", "checksum", "tools_sha256"),
    *("tool_results", "text", "routes"),
)


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """A turn as it is written."""

    values: tuple[Any, ...]
    """Of `TURN_COLUMNS`."""
    tools: tuple[bytes, str] | None
    """Hash and JSON of the tools that were offered."""
    num_bytes: int
    """Of ids, log-probs, text and expert routes."""


def encode_turn(
    turn: Turn,
    index: int,
    parent: int | None,
    replies: Sequence[Message] = (),
    tools: tuple[bytes, str] | None = None,
) -> EncodedTurn:
    """Return a turn as its columns; parent: `parent_of` it.

    replies: messages that came after its answer; a tool result that says the same as its message is
    not kept twice. tools: the turn's, encoded, where the caller has them.

    Raises `UsageError` for a turn that does not hold together.
    """
    tokens = turn.tokens or _NO_TOKENS
    _check_turn(turn, tokens, index, parent)
    prompt = ids_to_blob("prompt_ids", tokens.prompt_ids)
    completion = ids_to_blob("completion_ids", tokens.completion_ids)
    logprobs = logprobs_to_blob(tokens.policy_logprobs)
    if turn.tools and tools is None:
        dumped = to_json("tools", list(turn.tools))
        tools = (hashlib.sha256(dumped.encode()).digest(), dumped)
    text = text_to_column(turn)
    values = (  # of TURN_COLUMNS
        *(index, parent, tokens.num_shared, *_same_values(turn), prompt, completion, logprobs),
        *_spans_to_columns(tokens),
        None if tokens.branch is None else str(tokens.branch),
        turn.tokens is not None,
        to_json("sampling", dict(turn.sampling)) if turn.sampling else "{}",
        checksum(prompt, completion, logprobs, text, tokens.routes),
        None if tools is None else tools[0],
        results_to_column(turn.tool_results, replies),
        text,
        tokens.routes or None,
    )
    num_bytes = sum(map(len, (prompt, completion, logprobs, text, tokens.routes)))
    return EncodedTurn(values, tools, num_bytes)


def turns_from_columns(
    rows: Sequence[Mapping[str, Any]],
    final_messages: Sequence[Message],
    *,
    is_compact: bool = False,
) -> list[Turn]:
    """Return the turns of a session's rows, which have `TURN_COLUMNS` and the JSON `tools`.

    final_messages: those of its rollout. is_compact: ids and log-probs are `array.array`s, which
    take an eighth of the memory of lists.
    """
    texts = [json.loads(t if isinstance(t, str) else zlib.decompress(t))
             for t in (row["text"] for row in rows)]  # fmt: skip
    replies = [*(text["messages"] for text in texts[1:]), final_messages]
    keep: Callable[[Any], Any] = (lambda values: values) if is_compact else list
    turns = []
    for row, text, reply in zip(rows, texts, replies, strict=False):
        sampled = _from_little("i", row["completion_ids"])
        turn = turn_from_row(
            row,
            messages=text["messages"],
            answer=text["answer"],
            reply=reply,
            prompt_ids=keep(_from_little("i", row["prompt_ids"])),
            completion_ids=keep(sampled),
            policy_logprobs=keep(logprobs_from_blob(row["policy_logprobs"], len(sampled))),
            version_spans=spans_from_columns(row["version"], row["versions"], len(sampled)),
            routes=row["routes"] or b"",
        )
        turns.append(turn)
    return turns


def turn_from_row(
    row: Mapping[str, Any],
    *,
    messages: Sequence[Message],
    answer: Message | None,
    reply: Sequence[Message],
    **ids: Any,
) -> Turn:
    """Return the turn of a row of SQLite or Parquet, which differ in what is given beside it.

    reply: the messages after its answer. ids: the fields of `TokenRecord` that hold a token each.
    """
    tokens = None
    if row["has_tokens"]:
        branch = None if row["branch"] is None else BranchReason(row["branch"])
        tokens = TokenRecord(
            parent=row["parent"], num_shared=row["num_shared"], branch=branch, **ids
        )
    return Turn(
        **{name: row[name] for name in SAME},
        tokens=tokens,
        sampling=json.loads(row["sampling"]),
        messages=messages,
        answer=answer,
        tools=[] if row["tools"] is None else json.loads(row["tools"]),
        tool_results=results_from_column(row["tool_results"], reply),
    )


def results_to_column(results: Sequence[ToolResult], replies: Sequence[Message]) -> str | None:
    """Return tool results as JSON; one that its message repeats has no `content`."""
    if not results:
        return None
    values = msgspec.to_builtins(results)
    for value in values:
        if _reply_to(value["call_id"], replies) == value["content"]:
            del value["content"]
    return to_json("tool_results", values)


def results_from_column(text: str | None, replies: Sequence[Message]) -> list[ToolResult]:
    """Return the tool results that `results_to_column` wrote."""
    values = [] if text is None else json.loads(text)
    for value in values:
        if "content" not in value:
            value["content"] = _reply_to(value["call_id"], replies)
    return msgspec.convert(values, list[ToolResult])


def _reply_to(call_id: str, replies: Iterable[Message]) -> str | None:
    """Return the text of the tool message for a call, None without one."""
    for message in replies:
        if message["role"] == "tool" and message.get("tool_call_id") == call_id:
            return message["content"]
    return None


def is_unchanged(row: Mapping[str, Any]) -> bool:
    """Return whether the bytes of a row are those that were written."""
    names = ("prompt_ids", "completion_ids", "policy_logprobs", "text", "routes")
    return checksum(*(row[name] for name in names)) == int(row["checksum"])


def is_hash(sha256: bytes | None, tools: str | None) -> bool:
    """Return whether tools are those of a hash; none have none."""
    return sha256 == (None if tools is None else hashlib.sha256(tools.encode()).digest())


def checksum(
    prompt: bytes,
    completion: bytes,
    logprobs: bytes,
    text: str | bytes,
    routes: bytes | None = None,
) -> int:
    """Return the CRC-32 that guards a turn's blobs and text."""
    crc = zlib.crc32(logprobs, zlib.crc32(completion, zlib.crc32(prompt)))
    crc = zlib.crc32(text.encode() if isinstance(text, str) else text, crc)
    return zlib.crc32(routes or b"", crc)


def ids_to_blob(name: str, ids: Sequence[int]) -> bytes:
    """Return token ids as int32; `UsageError` for what is none."""
    try:
        packed = array.array("i", ids)
    except (TypeError, OverflowError) as e:
        raise UsageError(f"{name} is a list of token ids from 0 to {2**31 - 1}: {e}") from e
    # `reduce` is `min` without a call in Python, which takes as long as 100 ids.
    least = int(np.minimum.reduce(np.frombuffer(packed, dtype=np.int32))) if packed else 0
    if least < 0:
        raise UsageError(f"{name} holds {least}; a token id is at least 0")
    return _little(packed)


def logprobs_to_blob(logprobs: Sequence[float]) -> bytes:
    """Return a turn's log-probs as float32 where that changes no bit, as float64 otherwise."""
    wide = np.array(logprobs, dtype="<f8")
    if not np.logical_and.reduce(np.isfinite(wide)):
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


def text_to_column(turn: Turn) -> str | bytes:
    """Return messages and answer as JSON text, deflated where that is shorter."""
    value = {"messages": list(turn.messages), "answer": turn.answer}
    if sum(len(message["content"] or "") for message in turn.messages) > _LARGE:
        data = encode_in_steps(value)
        dumped = ""
    else:
        dumped = to_json("messages", value)
        data = dumped.encode()
    if len(data) < _DEFLATED_FROM:
        return dumped
    deflate = zlib.compressobj(1, zlib.DEFLATED, 13, 5)
    packed = deflate.compress(data) + deflate.flush()
    return packed if len(packed) < len(data) else dumped or data.decode()


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


def _check_turn(turn: Turn, tokens: TokenRecord, index: int, parent: int | None) -> None:
    num = len(tokens.completion_ids)
    if len(tokens.policy_logprobs) not in (0, num):
        raise UsageError(
            f"turn {index} has {len(tokens.policy_logprobs)} policy_logprobs for {num}"
            " completion_ids; allowed is one for each, or none at all if they are not known"
        )
    numbers = (index, turn.choice, tokens.num_shared, turn.num_shared_messages)
    if min(numbers) < 0:
        raise UsageError(
            "a turn's index, choice, num_shared and num_shared_messages are at least 0, got"
            f" {numbers!r}"
        )
    if index >= MAX_TURNS:
        raise UsageError(f"a turn's index is at most {MAX_TURNS - 1}, got {index!r}")
    if parent is None and tokens.num_shared:
        raise UsageError(f"turn {index} has no parent to share {tokens.num_shared} tokens with")
    if parent is not None and not 0 <= parent < index:
        raise UsageError(f"turn {index} has parent {parent}; a parent comes before")
    if not all(map(math.isfinite, (turn.started_s, turn.sent_s, turn.completed_s, turn.ended_s))):
        raise UsageError(f"the times of turn {index} have to be finite numbers")


def _spans_to_columns(tokens: TokenRecord) -> tuple[int | None, bytes | None]:
    """Return the version of all tokens, or (version, end) pairs as int64; neither: not known."""
    spans = tokens.version_spans
    if not spans:
        return None, None
    if len(spans) == 1:
        return spans[0].version, None
    pairs = [number for span in spans for number in (span.version, span.end)]
    return None, _little(array.array("q", pairs))


def spans_from_columns(
    version: int | None, blob: bytes | None, num: int
) -> tuple[VersionSpan, ...]:
    """Return the version spans of `num` sampled tokens."""
    if version is not None:
        return one_span(version, num)
    numbers = list(_from_little("q", blob or b""))
    starts = [0, *numbers[1::2]]
    pairs = zip(numbers[::2], starts, numbers[1::2], strict=False)
    return tuple(VersionSpan(version=v, start=start, end=end) for v, start, end in pairs)


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
