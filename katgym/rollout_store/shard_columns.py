"""The columns of a shard's two files; this folder's README says what stands in them.

Every shard has the same types, so that readers of many files never have to guess; log-probs are
float64, of which a float32 takes no more room once it is split by bytes and compressed.

Not here: writing and reading (`shards.py`).
"""

from __future__ import annotations

import pyarrow as pa

_IDS = pa.list_(pa.int32())
_SPANS = pa.list_(pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32())]))
_COMPONENTS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
_FAILED = pa.list_(
    pa.struct(
        [
            *(("call_id", pa.string()), ("route", pa.string()), ("status", pa.int32())),
            *(("kind", pa.string()), ("reason", pa.string()), ("received_s", pa.float64())),
        ]
    )
)
_ROLLOUTS = [
    *(("session_id", pa.string()), ("group_id", pa.string()), ("metadata", pa.string())),
    *(("created_s", pa.float64()), ("ended_s", pa.float64()), ("status", pa.string())),
    *(("reward", pa.float64()), ("reward_components", _COMPONENTS), ("reward_json", pa.string())),
    *(("rollout", pa.string()),),
    *(("key_sha256", pa.string()), ("max_calls", pa.int64()), ("max_tokens", pa.int64())),
    *(("deadline_s", pa.float64()), ("num_turns", pa.int64()), ("num_prompt_tokens", pa.int64())),
    *(("num_completion_tokens", pa.int64()), ("failed_calls", _FAILED)),
]
_TURNS = [
    *(("session_id", pa.string()), ("index", pa.int32()), ("call_id", pa.string())),
    *(("choice", pa.int32()), ("parent", pa.int32()), ("num_shared", pa.int64())),
    *(("prompt_ids", _IDS), ("completion_ids", _IDS), ("policy_logprobs", pa.list_(pa.float64()))),
    *(("loss_mask", pa.list_(pa.bool_())), ("versions", _SPANS), ("branch", pa.string())),
    *(("has_tokens", pa.bool_()), ("num_prompt_tokens", pa.int64())),
    *(("num_completion_tokens", pa.int64()), ("finish_reason", pa.string())),
    *(("model", pa.string()), ("route", pa.string()), ("sampling", pa.string())),
    *(("upstream", pa.string()), ("started_s", pa.float64()), ("sent_s", pa.float64())),
    *(("completed_s", pa.float64()), ("ended_s", pa.float64())),
    *(("num_shared_messages", pa.int32()), ("messages", pa.string()), ("answer", pa.string())),
    *(("tools", pa.string()), ("tool_results", pa.string()), ("routes", pa.binary())),
]


def columns(kind: str) -> pa.Schema:
    """Return the columns of `rollouts` or of `turns`."""
    return pa.schema({"rollouts": _ROLLOUTS, "turns": _TURNS}[kind])
