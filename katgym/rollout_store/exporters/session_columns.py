"""The columns that every format has besides its own: where a row comes from, and its reward.

Not here: the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katgym.play.rollout import Turn
from katgym.rollout_store.encoding import to_json
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


def tools_text(turns: Sequence[Turn]) -> str | None:
    """Return the last tools that were offered as JSON, which TRL reads; None without any.

    As a list their schemas would be merged into one another in Parquet.
    """
    tools = next((turn.tools for turn in reversed(turns) if turn.tools), None)
    return None if tools is None else to_json("tools", list(tools))
