"""Format `verl`: the fields of an `AgentLoopOutput` of verl, which it pads into its `DataProto`.

`response_ids` holds sampled and tools' tokens, `response_mask` is 1 on the sampled ones. `uid` is
the group whose rewards are compared; a session without one is its own. One row for each path; a
session's `reward_score` stands on every row of it.

Not here: padding, which needs the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from katgym.rollout_store.exporters.session_columns import SESSION_COLUMNS, session_values
from katgym.rollout_store.exporters.token_paths import token_paths
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a row for each path of a session."""
    values = session_values(stored)
    for path in token_paths(stored):
        yield {
            "uid": stored.record.group_id or stored.record.session_id,
            "prompt_ids": path.prompt_ids,
            "response_ids": path.response_ids,
            "response_mask": path.mask,
            "response_logprobs": path.logprobs,
            "reward_score": values["reward"],
            "num_turns": path.num_turns,
            **values,
        }


EXPORTER = Exporter(
    rows=rows,
    columns={
        "uid": ColumnType.TEXT,
        "prompt_ids": ColumnType.TOKEN_IDS,
        "response_ids": ColumnType.TOKEN_IDS,
        "response_mask": ColumnType.INTEGERS,
        "response_logprobs": ColumnType.NUMBERS,
        "reward_score": ColumnType.NUMBER,
        "num_turns": ColumnType.INTEGER,
        **SESSION_COLUMNS,
    },
    needs_tokens=True,
)
