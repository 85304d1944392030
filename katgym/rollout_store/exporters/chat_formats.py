"""Formats of messages: `messages`, `prompt-completion`, and `rollouts` as they are.

Not here: formats of token ids (`token_formats.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from katgym.play.rollout import JSON_FIELDS, Turn, prompt_messages
from katgym.rollout_store.encoding import to_json
from katgym.rollout_store.exporters.session_columns import SESSION_COLUMNS, session_values
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout

logger = logging.getLogger(__name__)


def messages_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a conversation for each path of a session, as chat SFT takes it.

    A session without branches is one row. On a branch what the model was shown there is the row, so
    an answer that both paths show is in both of them. Tool calls' arguments are text, as sampled.
    A path with an answer that was sampled under a constraint is left out with a warning: nothing
    here would tell a trainer not to train on it.
    """
    rollout = as_rollout(stored)
    # Without tokens they are one conversation.
    paths: list[Sequence[int]] = [range(len(rollout.turns))]
    if all(turn.tokens is not None for turn in rollout.turns):
        paths = [path.turns for path in rollout.trajectories()]
    for turns in paths:
        held = [turn for turn in turns if rollout.turns[turn].constraint]
        if held:
            _log_left_out(stored, held[0])
            continue
        yield {
            "messages": rollout.conversation(turns[-1]) if turns else [],
            "tools": _tools_text([rollout.turns[turn] for turn in turns]),
            **session_values(stored),
        }


def prompt_completion_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield the messages of each call and its answer, every answer in words exactly once.

    Conversational prompt-completion data as TRL names it: only the completion is trained. Answers
    that were sampled under a constraint are left out with a warning.
    """
    for place, turn in enumerate(stored.turns):
        if turn.constraint:
            _log_left_out(stored, place)
        elif turn.answer is not None:
            yield {
                "prompt": prompt_messages(stored.turns, place),
                "completion": [turn.answer],
                "tools": _tools_text([turn]),
                **session_values(stored),
            }


def _log_left_out(stored: StoredSession, place: int) -> None:
    logger.warning(
        "session %r: left out what holds the answer of call %d, sampled under a constraint (%s)",
        stored.record.session_id,
        place,
        stored.turns[place].constraint,
    )


def _tools_text(turns: Sequence[Turn]) -> str | None:
    """Return the last tools that were offered as JSON, which TRL reads; None without any.

    As a list their schemas would be merged into one another in Parquet.
    """
    tools = next((turn.tools for turn in reversed(turns) if turn.tools), None)
    return None if tools is None else to_json("tools", list(tools))


def rollouts_rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a session as one rollout, for `katgym train` and whoever reads them.

    In JSON Lines every line is one of `Rollout.to_json`; in Parquet each field is JSON text.
    """
    yield as_rollout(stored).to_json()


MESSAGES = Exporter(
    rows=messages_rows,
    columns={"messages": ColumnType.MESSAGES, "tools": ColumnType.TEXT, **SESSION_COLUMNS},
)
PROMPT_COMPLETION = Exporter(
    rows=prompt_completion_rows,
    columns={
        "prompt": ColumnType.MESSAGES,
        "completion": ColumnType.MESSAGES,
        "tools": ColumnType.TEXT,
        **SESSION_COLUMNS,
    },
)
ROLLOUTS = Exporter(rows=rollouts_rows, columns=dict.fromkeys(JSON_FIELDS, ColumnType.JSON))
