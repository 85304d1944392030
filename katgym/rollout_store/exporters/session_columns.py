"""The columns that every format has besides its own: where a row comes from, and its reward.

Not here: the formats.
"""

from __future__ import annotations

from typing import Any

from katgym.rollout_store.exporting import ColumnType
from katgym.rollout_store.records import StoredSession, reward_value

SESSION_COLUMNS = {
    "session_id": ColumnType.TEXT,
    "group_id": ColumnType.TEXT,
    "status": ColumnType.TEXT,
    "reward": ColumnType.NUMBER,
}


def session_values(stored: StoredSession) -> dict[str, Any]:
    """Return the values of `SESSION_COLUMNS`; the reward is None where it is not valid."""
    record = stored.record
    return {
        "session_id": record.session_id,
        "group_id": record.group_id,
        "status": str(record.status),
        "reward": reward_value(record),
    }
