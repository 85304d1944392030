"""Format `prompt-completion`: the messages of a call and its answer, every answer exactly once.

Conversational prompt-completion data as TRL names it: only the completion is trained.

Not here: whole conversations (`messages_format.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from katgym.play.rollout import prompt_messages
from katgym.rollout_store.exporters.session_columns import (
    SESSION_COLUMNS,
    session_values,
    tools_text,
)
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a row for each call of a session that has an answer in words."""
    for place, turn in enumerate(stored.turns):
        if turn.answer is None:
            continue
        yield {
            "prompt": prompt_messages(stored.turns, place),
            "completion": [turn.answer],
            "tools": tools_text([turn]),
            **session_values(stored),
        }


EXPORTER = Exporter(
    rows=rows,
    columns={
        "prompt": ColumnType.MESSAGES,
        "completion": ColumnType.MESSAGES,
        "tools": ColumnType.TEXT,
        **SESSION_COLUMNS,
    },
)
