"""Format `messages`: a conversation for each path of a session, as chat SFT takes it.

A session without branches is one row. On a branch what the model was shown there is the row, so an
answer that both paths show is in both of them. Tool calls' arguments are text, as sampled.

Not here: each answer once (`prompt_completion_format.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from katgym.rollout_store.exporters.session_columns import (
    SESSION_COLUMNS,
    session_values,
    tools_text,
)
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.recorded_details import policy_without_tokens
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout, conversation


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield the conversations of a session's paths."""
    for turns in _paths(stored):
        yield {
            "messages": conversation(stored, turns[-1]),
            "tools": tools_text([stored.texts[turn] for turn in turns]),
            **session_values(stored),
        }


def _paths(stored: StoredSession) -> list[Sequence[int]]:
    """Return the calls of each path; those without tokens are one conversation."""
    if policy_without_tokens(stored) is not None:
        return [range(len(stored.nodes))]
    return [path.turns for path in as_rollout(stored).trajectories()]


EXPORTER = Exporter(
    rows=rows,
    columns={"messages": ColumnType.MESSAGES, "tools": ColumnType.TEXT, **SESSION_COLUMNS},
)
