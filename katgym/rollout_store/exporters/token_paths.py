"""A path's tokens cut in two: what came before the first sampled token, and everything from it on.

Not here: the paths (`katgym.play.rollout.Rollout.trajectories`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from katgym.rollout_store.records import StoredSession
from katgym.rollout_store.rollouts import as_rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPath:
    """The last three line up.

    Example:
        TokenPath(prompt_ids=[1, 2], response_ids=[7, 8, 9], mask=[1, 0, 1],
                  logprobs=[-0.5, 0.0, -0.1], num_turns=2)
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 on sampled tokens, 0 on what the environment put between them."""
    logprobs: list[float] | None
    """0.0 where the mask is 0; None if those of a call are not known."""
    num_turns: int
    """Model calls on the path."""


def token_paths(stored: StoredSession) -> Iterator[TokenPath]:
    """Yield the paths of a session that have a sampled token; each of them is sampled on one."""
    for path in as_rollout(stored).trajectories():
        if True not in path.loss_mask:
            continue
        first = path.loss_mask.index(True)
        logprobs = path.policy_logprobs[first:]
        yield TokenPath(
            prompt_ids=path.token_ids[:first],
            response_ids=path.token_ids[first:],
            mask=[int(is_sampled) for is_sampled in path.loss_mask[first:]],
            logprobs=None if any(map(math.isnan, logprobs)) else logprobs,
            num_turns=len(path.turns),
        )
