"""Format `rollouts`: sessions as rollouts, for `katgym train` and whoever reads them.

In JSON Lines every line is one of `Rollout.to_json`; in Parquet each field is JSON text.

Not here: how a session becomes a rollout (`katgym.rollout_store.rollouts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from katgym.play.rollout import JSON_FIELDS
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a session as one rollout."""
    yield as_rollout(stored).to_json()


EXPORTER = Exporter(rows=rows, columns=dict.fromkeys(JSON_FIELDS, ColumnType.JSON))
