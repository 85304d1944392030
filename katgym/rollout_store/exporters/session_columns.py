"""The columns that every format has besides its own: where a row comes from, and its reward.

Not here: the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katgym.rollout_store.encoding import to_json
from katgym.rollout_store.exporting import ColumnType
from katgym.rollout_store.records import NodeText, SessionStatus, StoredSession

SESSION_COLUMNS = {
    "session_id": ColumnType.TEXT,
    "group_id": ColumnType.TEXT,
    "status": ColumnType.TEXT,
    "reward": ColumnType.NUMBER,
}


def session_values(stored: StoredSession) -> dict[str, Any]:
    """Return the values of `SESSION_COLUMNS`; the reward is None where it is not valid."""
    record = stored.record
    is_valid = record.status is SessionStatus.FINISHED
    return {
        "session_id": record.session_id,
        "group_id": record.group_id,
        "status": str(record.status),
        "reward": record.reward if is_valid else None,
    }


def tools_text(texts: Sequence[NodeText]) -> str | None:
    """Return the last tools that were offered as JSON, which TRL reads; None without any.

    As a list their schemas would be merged into one another in Parquet.
    """
    tools = next((text.tools for text in reversed(texts) if text.tools), None)
    return None if tools is None else to_json("tools", list(tools))
