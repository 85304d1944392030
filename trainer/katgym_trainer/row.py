"""One row of training data: the tokens of one exact model call or of one append-only trajectory.

Not here: how rows share prefixes (`token_trie.py`), losses.

Letters: T tokens of one row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Row:
    """Entry t of every list speaks of token t given those before it; entry 0 is never trained.

    The arrays cannot be written.

    Example:
        Row([5, 6, 7], [0, 1, 1], policy_logprobs=[0.0, -0.1, -2.3], advantages=0.5, group="task-1")
    """

    token_ids: Ints
    loss_mask: Bools
    policy_logprobs: Floats | None
    advantages: Floats
    weight: float
    group: Hashable
    rollout: Hashable
    context: Hashable
    extras: Ints | None

    def __init__(
        self,
        token_ids: Sequence[int] | Ints,
        loss_mask: Sequence[int] | Sequence[bool] | Bools | Ints,
        policy_logprobs: Sequence[float] | Floats | None = None,
        advantages: float | Sequence[float] | Floats = 0.0,
        weight: float = 1.0,
        group: Hashable = None,
        *,
        rollout: Hashable = None,
        context: Hashable = None,
        extras: Sequence[int] | Ints | None = None,
    ) -> None:
        """Check and keep; `ValueError` names what does not fit.

        loss_mask: true (1) on trained tokens.
        policy_logprobs: of each token when it was sampled; looked at on trained tokens alone. None:
            not known, which off-policy losses refuse.
        advantages: a number for the row, or one for each token.
        weight: of the row in the loss, at least 0.
        group: rows of one group come from one task.
        rollout: rows of one rollout count once in statistics; None: a rollout of its own.
        context: what else changes the forward of the whole row (an adapter, an image): rows of
            different contexts share nothing.
        extras: what else changes the forward of each token (expert routes), as a number: tokens of
            different extras are different tokens. None is 0 for each.
        """
        tokens = _tokens(token_ids)
        num = len(tokens)
        mask = _mask(loss_mask, num)
        trained = np.flatnonzero(mask[1:]) + 1
        logprobs = None
        if policy_logprobs is not None:
            logprobs = _logprobs(policy_logprobs, num, trained)
        if isinstance(advantages, (int, float, np.number)):
            advantages = np.full(num, float(advantages))
        values = _numbers("advantages", advantages, num)
        _check_finite("advantages", values, trained)
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight is a number of at least 0, got {weight!r}")
        more = None if extras is None else _extras(extras, num)
        for array in (tokens, mask, logprobs, values, more):
            if array is not None:
                array.flags.writeable = False
        fields = {
            "token_ids": tokens, "loss_mask": mask, "policy_logprobs": logprobs,
            "advantages": values, "weight": float(weight), "group": group, "rollout": rollout,
            "context": context, "extras": more,
        }  # fmt: skip
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        """Trained tokens; the first never is."""
        return int(self.loss_mask[1:].sum())


_MAX_TOKEN_ID = 2**31 - 1
_MAX_LOGPROB = 1e-3
"""Samplers round; a log-prob of a hair above 0 is no mistake of the caller's."""


def _integers(name: str, values: Sequence[int] | Ints) -> Ints:
    array = np.array(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} is a list of integers, got shape {array.shape} of {array.dtype}")
    return array.astype(np.int64)


def _tokens(values: Sequence[int] | Ints) -> Ints:
    tokens = _integers("token_ids", values)
    if not len(tokens):
        raise ValueError("token_ids is empty; a row has at least one token")
    bad = tokens[(tokens < 0) | (tokens > _MAX_TOKEN_ID)]
    if len(bad):
        raise ValueError(f"token_ids holds {bad[0]}, allowed is 0 to {_MAX_TOKEN_ID}")
    return tokens


def _extras(values: Sequence[int] | Ints, num: int) -> Ints:
    extras = _integers("extras", values)
    if len(extras) != num:
        raise ValueError(f"extras has {len(extras)} entries, token_ids has {num}")
    return extras


def _logprobs(values: Sequence[float] | Floats, num: int, trained: Ints) -> Floats:
    logprobs = _numbers("policy_logprobs", values, num)
    _check_finite("policy_logprobs", logprobs, trained)
    over = trained[logprobs[trained] > _MAX_LOGPROB]
    if len(over):
        t = int(over[0])
        raise ValueError(f"policy_logprobs[{t}] is {logprobs[t]}, a log-prob is at most 0")
    return logprobs


def _mask(values: Any, num: int) -> Bools:
    array = np.array(values)
    if array.shape != (num,):
        raise ValueError(f"loss_mask has shape {array.shape}, token_ids has {num} entries")
    if not np.isin(array, (0, 1)).all():
        raise ValueError("loss_mask holds true and false (1 and 0) alone; `weight` scales a row")
    return array.astype(np.bool_)


def _numbers(name: str, values: Any, num: int) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name} is a list of numbers, one for each token: {e}") from e
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape}, token_ids has {num} entries")
    return array


def _check_finite(name: str, values: Floats, trained: Ints) -> None:
    bad = trained[~np.isfinite(values[trained])]
    if len(bad):
        t = int(bad[0])
        raise ValueError(f"{name}[{t}] is {values[t]}, and the token is trained")
