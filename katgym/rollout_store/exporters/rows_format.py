"""Format `rows`: the fields of `katgym_trainer.Row`, one row for each path.

    Row(row["token_ids"], row["loss_mask"], row["policy_logprobs"], group=row["group"],
        rollout=(row["rollout"], row["seat"]))

`policy_logprobs` is None where a call's are not known. Advantages are the trainer's to compute, of
the rewards of a group.

Not here: rows with advantages (`katgym_trainer.rollouts.rollout_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from katgym.rollout_store.exporters.session_columns import SESSION_COLUMNS, session_values
from katgym.rollout_store.exporting import ColumnType, Exporter
from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout


def rows(stored: StoredSession) -> Iterator[dict[str, Any]]:
    """Yield a row for each path of a session."""
    rollout = as_rollout(stored)
    for path in rollout.trajectories():
        if not path.token_ids:
            continue
        is_known = not any(map(math.isnan, path.policy_logprobs))
        yield {
            "token_ids": path.token_ids,
            "loss_mask": path.loss_mask,
            "policy_logprobs": path.policy_logprobs if is_known else None,
            "group": stored.record.group_id or stored.record.session_id,
            "rollout": rollout.episode_id,
            "seat": rollout.seat,
            **session_values(stored),
        }


EXPORTER = Exporter(
    rows=rows,
    columns={
        "token_ids": ColumnType.TOKEN_IDS,
        "loss_mask": ColumnType.FLAGS,
        "policy_logprobs": ColumnType.NUMBERS,
        "group": ColumnType.TEXT,
        "rollout": ColumnType.TEXT,
        "seat": ColumnType.TEXT,
        **SESSION_COLUMNS,
    },
    needs_tokens=True,
)
