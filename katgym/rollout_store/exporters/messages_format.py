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
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield the conversations of a session's paths."""
    rollout = as_rollout(stored)
    # Without tokens they are one conversation.
    paths: list[Sequence[int]] = [range(len(rollout.turns))]
    if all(turn.tokens is not None for turn in rollout.turns):
        paths = [path.turns for path in rollout.trajectories()]
    for turns in paths:
        yield {
            "messages": rollout.conversation(turns[-1]) if turns else [],
            "tools": tools_text([rollout.turns[turn] for turn in turns]),
            **session_values(stored),
        }


EXPORTER = Exporter(
    rows=rows,
    columns={"messages": ColumnType.MESSAGES, "tools": ColumnType.TEXT, **SESSION_COLUMNS},
)
