"""Expert routes of a rollout's rows: each token's from the turn that ran it.

Told are all tokens that a sampler ran: not the last one of a row, nor those of turns whose server
told nothing.

Letters: T tokens of one row, L layers, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from katgym.play.rollout import Rollout
from katgym.policies.base import TokenRecord
from katgym.policies.expert_routes import first_told, read_routes
from katgym_trainer.routing.row_routes import RowRoutes


def path_routes(rollout: Rollout, turns: Sequence[int]) -> RowRoutes | None:
    """Return the routes of a trajectory of a rollout; None if nobody told any.

    turns: of the trajectory, root first. Raises `ValueError` for turns of different models.
    """
    # The calls whose tokens stand on the path, also those that its first turn goes on from.
    records = [r for turn in reversed(turns) if (r := rollout.turns[turn].tokens) is not None]
    while (parent := records[-1].parent) is not None:
        above = rollout.turns[parent].tokens
        assert above is not None, "checked before"
        records.append(above)
    records.reverse()
    told = [read_routes(record.routes) for record in records if record.routes]
    if not told:
        return None
    shapes = {routes.shape[1:] for routes in told}
    if len(shapes) > 1:
        raise ValueError(
            f"rollout {rollout.episode_id!r} has routes of {sorted(shapes)!r} (layers, experts of a"
            " token): its turns were sampled from different models, of which one is trained"
        )
    longest = max(map(_num_tokens, records))
    dtype = np.result_type(*(routes.dtype for routes in told)).newbyteorder("=")
    experts_TLK, is_told_T = np.zeros((longest, *shapes.pop()), dtype), np.zeros(longest, bool)
    for record in records:
        is_told_T[record.num_shared :] = False  # of tokens of the parent that this one lacks
        if record.routes:
            at = slice(first_told(record.num_shared), _num_tokens(record) - 1)
            experts_TLK[at], is_told_T[at] = read_routes(record.routes), True
    return RowRoutes(experts_TLK, is_told_T).first(_num_tokens(records[-1]))


def _num_tokens(record: TokenRecord) -> int:
    """Return how many tokens a call's prompt and completion have."""
    return record.num_shared + len(record.prompt_ids) + len(record.completion_ids)
