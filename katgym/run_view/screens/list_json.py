"""The lists of a run's rollouts and groups as JSON that tables are made of.

Not here: the tables (`assets/table.js`, `assets/lists.js`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Any

from katgym.run_view.run_view import RolloutHead, RunView


def list_json(view: RunView, with_page: Collection[str] | None = None) -> dict[str, Any]:
    """Return all groups with their rollouts.

    with_page: ids of groups that have a page; None: all have one.
    """
    return {
        "name": view.name,
        "kind": str(view.kind),
        "range": list(view.reward_range),
        "groups": [
            {
                "file": group_name(head.group_id)
                if with_page is None or head.group_id in with_page
                else None,
                "id": head.group_id,
                "task": head.task_id,
                "env": head.env_id,
                "step": head.step,
                "untrained": "held out"
                if head.is_held_out
                else "refused"
                if head.is_refused
                else "",
                "rollouts": [_row(one) for one in head.rollouts],
            }
            for head in view.heads
        ],
    }


def group_name(group_id: str) -> str:
    """Return the name of a group's files: the same in every call, and fit for any file system."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", group_id).strip("-").lower()[-48:]
    digest = hashlib.sha256(group_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable}-{digest}".lstrip("-")


def _row(one: RolloutHead) -> list[Any]:
    """Return a rollout as the script's `RolloutRow` names its entries."""
    return [
        None if one.reward is None else round(one.reward, 6), int(one.is_success), one.status,
        one.failure, one.num_turns, one.num_calls, one.num_parallel, one.num_errors, one.num_tokens,
        round(one.wall_s, 2),
    ]  # fmt: skip
